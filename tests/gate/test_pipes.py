"""Readers and writers on real descriptors: order, bounds, holds, the other side's end."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.gate.pacing import Pace, PacedWriter, pace_reading
from callgate.gate.pipes import (
    FLOOD_FRAMES,
    HIGH_WATER_BYTES,
    LOW_WATER_BYTES,
    Reader,
    Writer,
    enlarge,
)
from tests.router.helpers import until, within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX descriptors")

BIG = b"x" * (2 * 1024 * 1024)
"""More than a pipe holds."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            assert fd in CLOSED
            CLOSED.discard(fd)


CLOSED: set[int] = set()
"""By the tests themselves."""


def shut(fd: int) -> None:
    os.close(fd)
    CLOSED.add(fd)


def nothing() -> None:
    pass


class Other:
    """Reads the other side, when it is told to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.data = b""

    async def read(self, size: int) -> bytes:
        """So many bytes more."""
        wanted = len(self.data) + size

        def enough() -> bool:
            try:
                self.data += os.read(self._fd, min(1 << 20, wanted - len(self.data)))
            except BlockingIOError:
                return False
            return len(self.data) >= wanted

        await until(enough)
        return self.data[wanted - size :]


async def test_frames_of_one_write_are_one_system_call(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    real = os.write

    def counted(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return real(fd, data)

    writer = Writer(pipe[1], nothing)
    monkeypatch.setattr(os, "write", counted)

    writer.write([b"one\n", b"two\n"], [b"first\n"])

    monkeypatch.undo()
    assert writes == [14]
    assert os.read(pipe[0], 100) == b"first\none\ntwo\n"
    writer.close()


async def test_what_cannot_be_written_waits_in_order(pipe: tuple[int, int]) -> None:
    writer = Writer(pipe[1], nothing)
    other = Other(pipe[0])

    writer.write([BIG, b"second\n"])
    writer.write([b"third\n"])

    got = await other.read(len(BIG) + 13)
    assert got == BIG + b"second\nthird\n"
    await within(writer.drain())
    writer.close()


async def test_first_goes_before_whole_frames_but_not_into_one(pipe: tuple[int, int]) -> None:
    writer = Writer(pipe[1], nothing)
    writer.write([BIG, b"second\n"])

    writer.write([b"third\n"], [b"a\n", b"b\n"])

    got = await Other(pipe[0]).read(len(BIG) + 17)
    assert got == BIG + b"a\nb\nsecond\nthird\n"
    writer.close()


async def test_a_frame_that_waits_can_be_withdrawn_and_one_that_has_begun_cannot(
    pipe: tuple[int, int],
) -> None:
    writer = Writer(pipe[1], nothing)
    second = b"second\n"
    writer.write([BIG, second, b"third\n"])

    assert not writer.withdraw(BIG)
    assert not writer.withdraw(b"".join([second]) + b"?")
    assert writer.withdraw(second)

    assert not writer.withdraw(second)
    assert await Other(pipe[0]).read(len(BIG) + 6) == BIG + b"third\n"
    writer.close()


async def test_a_frame_is_known_by_its_head(pipe: tuple[int, int]) -> None:
    writer = Writer(pipe[1], nothing)
    writer.write([BIG, b"1 same\n"])

    assert writer.withdraw(b"2 same") is None
    writer.write([b"2 same\n"])
    assert writer.withdraw(b"2 sa") == b"2 same\n"
    assert writer.withdraw(b"2 sa") is None
    assert writer.withdraw(b"1 same\n") == b"1 same\n"


async def test_it_is_a_flood_when_few_frames_are_very_many_bytes(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.gate.pipes.MAX_WAITING_BYTES", 2 * len(BIG))
    writer = Writer(pipe[1], nothing)
    writer.write([BIG, BIG])
    before = writer.flooded

    writer.write([BIG])

    assert (before, writer.flooded) == (False, True)
    writer.close()


async def test_the_source_is_held_at_the_high_water_and_released_at_the_low(
    pipe: tuple[int, int],
) -> None:
    told: list[str] = []
    writer = Writer(pipe[1], nothing)
    writer.on_full = lambda: told.append("full")
    writer.on_drained = lambda: told.append("drained")
    os.write(pipe[1], b"x" * 65_536)  # now it holds no more
    writer.write([b"y" * HIGH_WATER_BYTES])
    assert told == []

    writer.write([b"z"])
    writer.write([b"z"])
    assert (told, writer.full) == (["full"], True)
    await Other(pipe[0]).read(65_536 + HIGH_WATER_BYTES - LOW_WATER_BYTES - 65_536 - 10)
    assert told == ["full"]

    await Other(pipe[0]).read(65_536 + 10)
    await until(lambda: told == ["full", "drained"])

    assert not writer.full
    writer.close()


async def test_frames_that_are_withdrawn_release_the_source_too(pipe: tuple[int, int]) -> None:
    told: list[str] = []
    writer = Writer(pipe[1], nothing)
    writer.on_drained = lambda: told.append("drained")
    os.write(pipe[1], b"x" * 65_536)
    waiting = b"y" * (HIGH_WATER_BYTES + 1)
    writer.write([waiting])

    assert writer.withdraw(waiting)

    assert told == ["drained"]
    writer.close()


async def test_a_flood_is_seen(pipe: tuple[int, int]) -> None:
    writer = Writer(pipe[1], nothing)
    writer.write([BIG])
    writer.write([b"x"] * (FLOOD_FRAMES - 1))
    before = writer.flooded

    writer.write([b"x"])

    assert (before, writer.flooded) == (False, True)
    writer.close()


async def test_a_writer_whose_other_side_has_gone_says_so_once_and_keeps_what_waits(
    pipe: tuple[int, int],
) -> None:
    told: list[str] = []
    writer = Writer(pipe[1], lambda: told.append("gone"))
    shut(pipe[0])
    unsent = b"unsent\n"

    writer.write([unsent])
    writer.write([b"more\n"], [b"first\n"])
    await within(writer.drain())
    await asyncio.sleep(0)

    assert told == ["gone"]
    assert writer.withdraw(unsent)
    writer.close()


async def test_a_writer_learns_of_the_end_without_a_write(pipe: tuple[int, int]) -> None:
    told: list[str] = []
    writer = Writer(pipe[1], lambda: told.append("gone"))
    writer.watch_other_side()

    shut(pipe[0])

    await until(lambda: told == ["gone"])
    writer.close()


async def test_a_socket_that_is_written_to_is_not_a_socket_that_has_gone() -> None:
    told: list[str] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = Writer(ours.fileno(), lambda: told.append("gone"))
        writer.watch_other_side()

        theirs.send(b"unasked")
        for _ in range(20):
            await asyncio.sleep(0)

        assert told == []
        writer.write([b"still here"])
        assert theirs.recv(100) == b"still here"
        writer.close()


async def test_a_closed_writer_writes_nothing(pipe: tuple[int, int]) -> None:
    writer = Writer(pipe[1], nothing)
    writer.write([BIG])
    writer.close()

    writer.write([b"late"])

    await within(writer.drain())
    got = await Other(pipe[0]).read(65_536)
    assert b"late" not in got


async def test_a_file_is_written_at_once(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        writer = Writer(file.fileno(), nothing)

        writer.write([b"one\n", BIG])

        assert (tmp_path / "out").read_bytes() == b"one\n" + BIG
        writer.close()


async def test_a_short_write_to_a_file_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    with (tmp_path / "out").open("wb") as file:
        writer = Writer(file.fileno(), nothing)
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))

        writer.write([b"0123456789"])

        monkeypatch.undo()
        assert (tmp_path / "out").read_bytes() == b"0123456789"
        writer.close()


# Reading.


class Heard:
    """What a reader hands over."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = 0

    def take(self, data: bytes) -> None:
        self.data += data

    def end(self) -> None:
        self.ended += 1


async def test_a_reader_hands_over_everything_and_then_the_end(pipe: tuple[int, int]) -> None:
    heard = Heard()
    Reader(pipe[0], heard.take, heard.end)

    os.write(pipe[1], b"some")
    await until(lambda: heard.data == b"some")
    assert heard.ended == 0
    shut(pipe[1])

    await until(lambda: heard.ended == 1)


async def test_a_reader_stands_still_while_anybody_holds_it(pipe: tuple[int, int]) -> None:
    heard = Heard()
    reader = Reader(pipe[0], heard.take, heard.end)
    reader.pause("a")
    reader.pause("b")
    reader.pause("a")
    os.write(pipe[1], b"some")

    reader.resume("a")
    reader.resume("a")
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard.data == b""
    reader.resume("b")

    await until(lambda: heard.data == b"some")
    reader.close()


async def test_a_closed_reader_reads_nothing_whoever_releases_it(pipe: tuple[int, int]) -> None:
    heard = Heard()
    reader = Reader(pipe[0], heard.take, heard.end)
    reader.pause("a")
    reader.close()
    os.write(pipe[1], b"some")

    reader.resume("a")
    for _ in range(20):
        await asyncio.sleep(0)

    assert (heard.data, heard.ended) == (b"", 0)


async def test_a_file_is_read_to_its_end_with_holds(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(BIG)
    heard = Heard()
    with (tmp_path / "in").open("rb") as file:
        reader = Reader(file.fileno(), heard.take, heard.end)
        reader.pause("a")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert heard.data == b""

        reader.resume("a")

        await until(lambda: heard.ended == 1)
    assert heard.data == BIG


async def test_what_cannot_be_read_ends(tmp_path: Path) -> None:
    heard = Heard()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        Reader(fd, heard.take, heard.end)

        await until(lambda: heard.ended == 1)
    finally:
        os.close(fd)


async def test_enlarging_what_is_no_pipe_does_nothing(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        enlarge(file.fileno())


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "first", "read", "withdraw"]), st.integers(1, 90_000)),
        max_size=40,
    )
)
def test_whatever_happens_whole_frames_arrive_once(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_whole_frames_arrive_once(steps))


async def _whole_frames_arrive_once(steps: list[tuple[str, int]]) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    writer = Writer(writing, nothing)
    sent: dict[int, bytes] = {}
    got = b""

    def read(size: int) -> None:
        nonlocal got
        try:
            got += os.read(reading, size)
        except BlockingIOError:
            return

    for number, (step, size) in enumerate(steps):
        frame = b"%06d" % number + b"." * size + b"\n"
        if step == "write":
            sent[number] = frame
            writer.write([frame])
        elif step == "first":
            sent[number] = frame
            writer.write([], [frame])
        elif step == "withdraw" and sent:
            chosen = sorted(sent)[size % len(sent)]
            if writer.withdraw(sent[chosen]):
                del sent[chosen]
        else:
            read(size)
        await asyncio.sleep(0)
    while len(got) < sum(map(len, sent.values())):
        read(1 << 20)
        await asyncio.sleep(0)
    assert sorted(got.splitlines(keepends=True)) == sorted(sent.values())
    writer.close()
    os.close(reading)
    os.close(writing)


# Pacing.


def paced(fd: int, bits_per_second: int, **told: Any) -> PacedWriter:
    writer = PacedWriter(Writer(fd, nothing), Pace(bits_per_second))
    for name, function in told.items():
        setattr(writer, name, function)
    return writer


SLOW = 8 * 40_000
"""40 kB a second, of which 10 kB at once."""


async def test_a_paced_writer_takes_its_time(pipe: tuple[int, int]) -> None:
    loop = asyncio.get_running_loop()
    writer = paced(pipe[1], SLOW)
    other = Other(pipe[0])
    started = loop.time()

    writer.write([b"x" * 20_000])
    await other.read(5_000)
    early = loop.time() - started
    await other.read(15_000)
    late = loop.time() - started

    assert late >= 0.25
    assert early < late / 2
    writer.close()


async def test_a_cancel_goes_before_paced_frames_and_never_into_one(pipe: tuple[int, int]) -> None:
    writer = paced(pipe[1], SLOW)
    other = Other(pipe[0])
    begun, waits = b"b" * 12_000, b"w" * 100
    writer.write([begun, waits])
    await other.read(1_000)

    writer.write([], [b"CANCEL"])

    assert await other.read(11_000 + 106) == b"b" * 11_000 + b"CANCEL" + waits
    writer.close()


async def test_a_paced_frame_that_has_not_begun_can_be_taken_back(pipe: tuple[int, int]) -> None:
    writer = paced(pipe[1], SLOW)
    other = Other(pipe[0])
    first = b"f" * 12_000
    only = b"o" * 9_000
    writer.write([first, only])
    await other.read(1_000)

    assert not writer.withdraw(first)
    assert writer.withdraw(only)
    await other.read(11_000)
    writer.write([b"end"])

    assert await other.read(3) == b"end"
    writer.close()


async def test_taking_back_the_one_paced_frame_breaks_nothing(pipe: tuple[int, int]) -> None:
    writer = paced(pipe[1], SLOW)
    other = Other(pipe[0])
    writer.write([b"f" * 10_000])
    await other.read(10_000)
    second = b"s" * 10_000
    writer.write([second])
    await asyncio.sleep(0)

    assert writer.withdraw(second)
    writer.write([b"end"])

    assert await other.read(3) == b"end"
    writer.close()


async def test_a_paced_writer_holds_its_source_by_what_waits_in_it(pipe: tuple[int, int]) -> None:
    told: list[str] = []
    writer = paced(
        pipe[1],
        SLOW,
        on_full=lambda: told.append("full"),
        on_drained=lambda: told.append("drained"),
    )
    small, large = b"x", b"y" * HIGH_WATER_BYTES

    writer.write([large, small])
    assert told == ["full"]
    assert writer.withdraw(large)

    assert told == ["full", "drained"]
    writer.close()


async def test_a_paced_writer_does_not_pile_up_behind_a_reader_that_does_not_read(
    pipe: tuple[int, int],
) -> None:
    fast = PacedWriter(inner := Writer(pipe[1], nothing), Pace(8_000_000_000))
    frames = [b"%d" % number + b"." * 50_000 for number in range(20)]

    fast.write(list(frames))
    await until(lambda: len(inner._waiting) == 1)
    for _ in range(50):
        await asyncio.sleep(0)

    assert len(inner._waiting) == 1
    assert fast.withdraw(fast._waiting[-1])
    fast.close()


async def test_a_paced_writer_keeps_what_nobody_reads_any_more(pipe: tuple[int, int]) -> None:
    writer = paced(pipe[1], 8_000_000_000)
    shut(pipe[0])
    first, second = b"first", b"second"
    writer.write([first])
    await until(lambda: writer._writer.broken)

    writer.write([second])
    await asyncio.sleep(0)

    assert writer.withdraw(second)
    writer.close()


async def test_reading_is_paced_and_other_holds_count(pipe: tuple[int, int]) -> None:
    loop = asyncio.get_running_loop()
    heard = Heard()
    reader = Reader(pipe[0], heard.take, heard.end)
    pace_reading(reader, Pace(SLOW), heard.take)
    os.write(pipe[1], b"x" * 20_000)
    started = loop.time()
    await until(lambda: len(heard.data) >= 10_000)
    reader.pause("client")
    before = len(heard.data)
    await asyncio.sleep(0.3)
    assert len(heard.data) == before

    reader.resume("client")

    await until(lambda: len(heard.data) == 20_000)
    assert loop.time() - started >= 0.25
    reader.close()
