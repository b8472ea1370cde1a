"""Looking for the next bytes: only where they come at once, never for long, never past a hold."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pytest

from callgate.gate import eager as eager_module
from callgate.gate.eager import LOOK_NS, TURN_NS, Eager, can_look
from callgate.gate.pipes import Reader
from tests.router.helpers import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody looks"),
    pytest.mark.usefixtures("clock"),
]

STEP_NS = 1_000
"""What passes between two looks at the clock."""


class Clock:
    """Moves a little whenever it is read, as a clock does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        monkeypatch.setattr(eager_module, "monotonic_ns", self.read)

    def read(self) -> int:
        self.now_ns += STEP_NS
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Two:
    """Two pipes, read together; what happens is written down."""

    def __init__(self) -> None:
        self.fds = [*os.pipe(), *os.pipe()]
        self.happened: list[str] = []
        self.then: dict[bytes, Callable[[], None]] = {}
        self.a = self.reader(self.fds[0])
        self.b = self.reader(self.fds[2])
        self.a.eager = self.b.eager = Eager(self.a, self.b)

    def reader(self, fd: int) -> Reader:
        return Reader(fd, self._received, lambda: self.happened.append("end"))

    def _received(self, data: bytes) -> None:
        self.happened.append(data.decode())
        then = self.then.get(data)
        if then is not None:
            then()

    def say(self, where: str, data: bytes) -> None:
        os.write(self.fds["ab".index(where) * 2 + 1], data)

    def loop_turns(self) -> None:
        """The loop's next turn shows."""
        asyncio.get_running_loop().call_soon(self.happened.append, "loop")

    def answer(self) -> None:
        """What the other side says at once."""
        self.loop_turns()
        self.say("b", b"answer")

    async def saw(self, *wanted: str) -> None:
        await until(lambda: len(self.happened) >= len(wanted))
        assert tuple(self.happened) == wanted

    def close(self) -> None:
        self.a.close()
        self.b.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    made = Two()
    yield made
    made.close()


async def make_quick(two: Two) -> None:
    """One read, and another at once: from now on it pays to look."""
    two.say("a", b"one")
    await two.saw("one")
    two.say("a", b"two")
    await two.saw("one", "two")
    two.happened.clear()


async def test_what_follows_at_once_is_read_before_the_loop_has_a_turn(two: Two) -> None:
    two.then[b"ask"] = two.answer
    await make_quick(two)

    two.say("a", b"ask")

    await two.saw("ask", "answer", "loop")


async def test_what_takes_its_time_is_left_to_the_loop(two: Two, clock: Clock) -> None:
    two.then[b"ask"] = two.answer
    await make_quick(two)

    clock.now_ns += LOOK_NS
    two.say("a", b"ask")
    await two.saw("ask", "loop", "answer")


async def test_one_look_in_vain_is_the_last(
    two: Two, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: rests.append(1))
    await make_quick(two)
    rests.clear()

    two.say("a", b"last")
    await two.saw("last")
    looked = len(rests)
    clock.now_ns += LOOK_NS
    two.say("a", b"later")
    await two.saw("last", "later")

    assert 0 < looked <= LOOK_NS // STEP_NS
    assert len(rests) == looked


async def test_the_loop_has_its_turn_whatever_comes(two: Two) -> None:
    most = TURN_NS // STEP_NS + 2
    """Reads in a turn, each of which looks at the clock once."""

    def begin() -> None:
        two.loop_turns()
        two.say("b", b"ping")

    def go_on(where: str, data: bytes) -> None:
        if len(two.happened) < 3 * most:
            two.say(where, data)

    two.then = {
        b"ask": begin,
        b"ping": lambda: go_on("a", b"pong"),
        b"pong": lambda: go_on("b", b"ping"),
    }
    await make_quick(two)

    two.say("a", b"ask")
    await until(lambda: len(two.happened) >= 3 * most)

    assert 2 < two.happened.index("loop") <= most


async def test_what_is_held_is_not_read(two: Two) -> None:
    def hold() -> None:
        two.b.hold("full")
        two.say("b", b"answer")
        asyncio.get_running_loop().call_later(0, two.b.release, "full")
        two.loop_turns()

    two.then[b"ask"] = hold
    await make_quick(two)

    two.say("a", b"ask")

    await two.saw("ask", "loop", "answer")


async def test_an_end_is_seen_once(two: Two) -> None:
    def end() -> None:
        os.close(two.fds.pop())

    two.then[b"ask"] = end
    await make_quick(two)

    two.say("a", b"ask")
    await two.saw("ask", "end")
    two.say("a", b"more")

    await two.saw("ask", "end", "more")


async def test_what_a_thread_reads_is_not_looked_at(two: Two, tmp_path: Path) -> None:
    """Two would read it, and what they read would come in any order."""
    file = tmp_path / "requests"
    file.write_bytes(b"all")
    fd = os.open(file, os.O_RDONLY)
    redirected = two.reader(fd)
    try:
        assert can_look(two.a, two.b)
        assert not can_look(two.a, redirected)
        await two.saw("all", "end")
    finally:
        redirected.close()
        os.close(fd)


@pytest.mark.parametrize(("processors", "looks"), [({0}, False), ({0, 3}, True)])
def test_on_one_processor_nobody_looks(
    processors: set[int], looks: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: processors)

    assert can_look() is looks
