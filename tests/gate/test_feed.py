from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.gate import feed as feed_module
from callgate.gate.feed import BYTE_NS, CREDIT_NS, PRICE, READ_NS, Feed, Waste
from callgate.peers.hub import PASS_FRAMES
from callgate.peers.turns import TURN_FRAMES
from tests.peers.helpers import FOREVER_S, Clock, lines, note, rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.peers.helpers import Rig

SECOND_NS = 1_000_000_000


def test_a_blank_every_60_microseconds_costs_a_bounded_part_of_a_processor() -> None:
    """Of 10 s, in which its writer writes 166,000 times."""
    waste, now_ns, spent_ns = Waste(), 0, 0
    while now_ns < 10 * SECOND_NS:
        cost_ns = 40_000
        spent_ns += READ_NS + cost_ns
        now_ns += max(60_000, READ_NS + cost_ns)
        now_ns += waste.pause_ns(now_ns, cost_ns, 1, 1.0)

    assert spent_ns < (10 * SECOND_NS + CREDIT_NS) / PRICE + 10 * (READ_NS + 40_000)


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 10**7)), max_size=50))
def test_what_is_of_use_is_never_paused_for(reads: list[tuple[int, int]]) -> None:
    waste = Waste()
    for size, cost_ns in reads:
        assert waste.pause_ns(0, cost_ns, size, 0.0) == 0


def test_pieces_of_a_large_frame_are_no_waste() -> None:
    waste = Waste()
    for _ in range(10_000):
        assert waste.pause_ns(0, 512 * 1024 * BYTE_NS // 2, 512 * 1024, 1.0) == 0


def test_a_page_of_text_at_the_start_is_not_paused_for_and_a_useful_frame_is_no_excuse() -> None:
    waste = Waste()
    assert waste.pause_ns(0, 30_000_000, 5_000, 1.0) == 0
    assert waste.pause_ns(0, 30_000_000, 5_000, 1.0) > 0
    assert waste.pause_ns(0, 0, 100, 0.0) == 0
    assert waste.pause_ns(0, 30_000_000, 5_000, 0.5) > 0


class Fed:
    """A gate whose agent writes into a pipe that the test holds."""

    def __init__(self, gate: Rig, pipe: tuple[int, int]) -> None:
        self.ended = asyncio.Event()
        self.feed = Feed(pipe[0], gate.peer, gate.hub, self.ended.set)
        self.reads: list[int] = []
        received = self.feed.reader.on_data

        def counted(data: bytes) -> None:
            self.reads.append(len(data))
            received(data)

        self.feed.reader.on_data = counted


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reads, writes = os.pipe()
    yield reads, writes
    os.close(reads)
    with suppress(OSError):  # most tests end it
        os.close(writes)


async def test_noise_is_read_with_pauses_and_an_answer_after_it_arrives(
    tmp_path: Path, clock: Clock, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "CREDIT_NS", 0)
    monkeypatch.setattr(feed_module, "READ_NS", 2_000_000)
    async with rig(tmp_path, clock) as gate, asyncio.timeout(FOREVER_S):
        fed = Fed(gate, pipe)
        for _ in range(1_000):
            os.write(pipe[1], b" ")
            await asyncio.sleep(0)
        os.write(pipe[1], b"\n" + lines(note("notifications/message", {})))
        while not gate.to_client():  # noqa: ASYNC110  # a pipe of the test sets no event
            await asyncio.sleep(0.001)
        fed.feed.reader.close()

    assert len(fed.reads) < 20
    assert sum(fed.reads) > 1_000


async def test_timers_and_others_have_their_turn_within_one_read(
    tmp_path: Path, clock: Clock, pipe: tuple[int, int]
) -> None:
    async with rig(tmp_path, clock) as gate, asyncio.timeout(FOREVER_S):
        fed = Fed(gate, pipe)
        turns = gate.peer.turns
        rests: list[int] = []

        def look() -> None:
            if turns.waiting:
                rests.append(len(turns._frames) - turns._next)
            if not fed.ended.is_set():
                asyncio.get_running_loop().call_soon(look)

        look()
        os.write(pipe[1], b"{}\n" * 5 * TURN_FRAMES)
        os.close(pipe[1])
        await fed.ended.wait()

        assert gate.hub.unreadable == 5 * TURN_FRAMES
        assert sorted(set(rests), reverse=True) == [n * TURN_FRAMES for n in (4, 3, 2, 1)]
        assert len(fed.reads) == 1
    assert TURN_FRAMES % PASS_FRAMES == 0


async def test_a_client_that_read_nothing_goes_on_where_it_was_stopped(
    tmp_path: Path, clock: Clock, pipe: tuple[int, int]
) -> None:
    async with rig(tmp_path, clock) as gate, asyncio.timeout(FOREVER_S):
        ended = asyncio.Event()
        feed = Feed(pipe[0], gate.caller, gate.hub, ended.set)
        gate.client_pipe.flooded = True
        feed.after_turn = lambda: feed.reader.pause("flood") if gate.client_pipe.flooded else None
        os.write(pipe[1], b"{}\n" * 2 * TURN_FRAMES)
        os.close(pipe[1])
        while not gate.hub.unreadable:  # noqa: ASYNC110  # nor does a counter
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert gate.hub.unreadable == PASS_FRAMES

        gate.client_pipe.flooded = False
        feed.resume()
        await ended.wait()

        assert gate.hub.unreadable == 2 * TURN_FRAMES
