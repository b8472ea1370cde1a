"""What a start does about the writers of processes that are gone.

A clean HEAD that agrees with the last line needs no more. Otherwise the last segment is read: a
torn last line is cut, and calls that were admitted and not ended are closed as `lost`. Only for a
segment of version 1 that began with calls open are those before it read, too.

Nothing is repaired that a crash cannot explain. A broken chain, or a log behind its HEAD, is
left untouched as evidence, never written to again, and reported in the new process's log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from callgate.audit.chain import GENESIS, Chain, body_of, stated_hash
from callgate.audit.events import Event, decode_record
from callgate.audit.files import Lock, last_line, lines, new_writer, segment_path, segments, writers
from callgate.audit.head import HeadState, read_head
from callgate.audit.reader import Segment, Walk
from callgate.audit.writer import Writer
from callgate.files import UnsafePath, open_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from callgate.audit.reader import Kind


class BrokenChain(Exception):
    """Raised when a writer's files cannot be the work of a crash."""


class LogEnd(NamedTuple):
    """Where a writer's log ends, and the calls that are open there."""

    number: int
    size: int | None
    """Of the good part of segment `number`; None if the next line begins a new segment."""
    seq: int
    hash: bytes
    clean: bool
    open: dict[str, str]
    """Calls without an end, each with the body that has its names."""


_NOTHING = LogEnd(0, None, 0, GENESIS, clean=False, open={})


def find_end(directory: Path) -> LogEnd:
    """Return where the log of an unlocked writer ends; raises `BrokenChain`."""
    head = read_head(directory)
    numbers = segments(directory)
    if numbers:
        # Whoever may go on in it must be able to open it; to read it is less.
        os.close(open_file(segment_path(directory, numbers[-1]), os.O_WRONLY))
        if not next(lines(segment_path(directory, numbers[-1])), b"").endswith(b"\n"):
            numbers.pop()  # died before its first line was whole; it will be begun again
    if head is None:
        if numbers:
            raise BrokenChain("HEAD is missing or damaged")
        return _NOTHING
    if not numbers:
        if head.seq:
            raise BrokenChain(f"HEAD is at line {head.seq}, but there are no segments")
        return _NOTHING
    if head.clean and not head.open_calls:
        return _clean_end(directory, numbers[-1], head)
    return _crashed_end(directory, numbers, head)


def _clean_end(directory: Path, number: int, head: HeadState) -> LogEnd:
    file = segment_path(directory, number)
    line = last_line(file)
    if stated_hash(line) != head.hash:
        raise BrokenChain(f"{file.name} does not end where HEAD says")
    closed = decode_record(line).event == "audit.segment_closed"
    size = None if closed else file.stat().st_size
    return LogEnd(number, size, head.seq, head.hash, clean=True, open={})


def _crashed_end(directory: Path, numbers: list[int], head: HeadState) -> LogEnd:
    walk = _read(directory, numbers[-1:], head)
    if walk.due:  # died before its head was whole; it will be begun again
        numbers = numbers[:-1]
        walk = _read(directory, numbers[-1:], head)
    if walk.unknown:
        walk = _read(directory, numbers, head)
    if walk.seq < head.seq:
        raise BrokenChain(f"the log ends at line {walk.seq}, HEAD is at {head.seq}")
    return LogEnd(
        number=numbers[-1],
        size=None if walk.event == "audit.segment_closed" else walk.size,
        seq=walk.seq,
        hash=walk.hash,
        clean=False,
        open={call: body_of(line) for call, line in walk.open.items()},
    )


def _read(directory: Path, numbers: list[int], head: HeadState) -> Walk:
    """Read segments one after the other; what no crash explains raises `BrokenChain`."""
    walk = Walk(directory, head, _refuse)
    for number in numbers:
        walk.segment(Segment(number, first=number == numbers[0], may_tear=number == numbers[-1]))
    return walk


def _refuse(kind: Kind, where: str, message: str) -> None:
    if kind != "call":  # the chain is whole; what it says of calls is for `verify` to judge
        raise BrokenChain(f"{where}: {message}")


class Recovered(NamedTuple):
    """The writer of this process, and what was found on the way to it."""

    writer: Writer
    recovered: int
    """Writers that a dead process had left open."""
    broken: tuple[str, ...]
    """Writers that were left untouched: a crash does not explain them, or they are not ours."""


def recover_writers(root: Path, *, policy: str, clock: Callable[[], int]) -> Recovered:
    """Recover the writers nobody holds, and go on in one of them or in a new one.

    Going on in an old one bounds the directories by the processes that ever ran at once.
    """
    mine: Writer | None = None
    recovered = 0
    broken: list[str] = []
    for directory in writers(root):
        # An OSError is no verdict on a writer: it may be another user's, or the disk full.
        with suppress(OSError):
            try:
                writer, clean = _revive(directory, wanted=mine is None, policy=policy, clock=clock)
            except (BrokenChain, UnsafePath, msgspec.DecodeError):
                broken.append(directory.name)
                continue
            if writer is None:
                continue
            recovered += not clean
            if mine is None:
                mine = writer
            else:
                writer.close()
    if mine is None:
        directory = new_writer(root, clock())
        lock = Lock.take(directory)
        if lock is None:
            raise BlockingIOError(f"{directory} was locked as it was made")
        mine = Writer(directory, lock, Chain(), policy=policy, clock=clock)
    return Recovered(mine, recovered, tuple(broken))


def _revive(
    directory: Path, *, wanted: bool, policy: str, clock: Callable[[], int]
) -> tuple[Writer | None, bool]:
    """A writer that nobody holds, put right, and whether it was clean.

    None if it is held, or clean and not wanted.
    """
    lock = Lock.take(directory)
    if lock is None:
        return None, True
    try:
        end = find_end(directory)
        if end.clean and not wanted:
            lock.release()
            return None, True
        writer = attach(directory, lock, end, policy=policy, clock=clock)
    except BaseException:
        lock.release()
        raise
    if not end.clean:
        _recover(writer)
    return writer, end.clean


def attach(
    directory: Path, lock: Lock, end: LogEnd, *, policy: str, clock: Callable[[], int]
) -> Writer:
    """Return a writer that goes on where the log ends."""
    return Writer(
        directory,
        lock,
        Chain(end.seq, end.hash),
        policy=policy,
        clock=clock,
        number=end.number,
        size=end.size,
        opened=end.open,
    )


def _recover(writer: Writer) -> None:
    """Cut a torn last line, write `tool.call.lost` for each open call, then `audit.recovered`.

    Safe to repeat.
    """
    begun, lost = writer.chain.seq, tuple(writer.open)
    try:
        writer.repair()
        writer.lose(lost)
        if begun:
            writer.append(Event(event="audit.recovered", segment=writer.name, count=len(lost)))
    except BaseException:
        writer.close(clean=False)
        raise
