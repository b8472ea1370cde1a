"""What a start does about the writers of processes that are gone.

A clean HEAD that agrees with the last line needs no more. Otherwise the last segment is read:
a torn last line is cut, and calls that were admitted and not ended are closed as `lost`. The
first line of a segment says how many calls were open there; only while some of those are
missing is the segment before read too, so a start reads little and keeps only open calls.

Nothing is repaired that a crash cannot explain. A broken chain, or a log behind its HEAD, is
left untouched as evidence, never written to again, and reported in the new process's log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from callgate.audit.chain import GENESIS, Chain, expected_hash, stated_hash
from callgate.audit.events import ADMITTED, TERMINAL, Event, decode_record
from callgate.audit.files import (
    Lock,
    last_line,
    lines,
    new_writer,
    segment_path,
    segments,
    writers,
)
from callgate.audit.head import HeadState, read_head
from callgate.audit.writer import Writer
from callgate.files import UnsafePath, open_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CHUNK_LINES = 256
"""Lines a write when many calls were lost: some 64 KiB."""


class BrokenChain(Exception):
    """Raised when a writer's files cannot be the work of a crash."""


class Line(msgspec.Struct, gc=False):
    """What recovery needs of a line; the chain vouches for the rest."""

    seq: int
    event: str
    request_id: str | None = None
    count: int | None = None
    prev: str | None = None


decode_line = msgspec.json.Decoder(Line).decode


class Place(NamedTuple):
    """Where a writer's log ends, and the calls that are open there."""

    number: int
    size: int | None
    """Of the good part of segment `number`; None if the next line begins a new segment."""
    seq: int
    hash: bytes
    clean: bool
    lost: tuple[bytes, ...] = ()
    """The `admitted` lines of calls without an end."""


@dataclass(slots=True)
class _Scan:
    """One segment read from its first line to its last whole one."""

    count: int = 0
    first_seq: int = 0
    prev: bytes = GENESIS
    seq: int = 0
    hash: bytes = GENESIS
    size: int = 0
    event: str = ""
    torn: bool = False
    opened: dict[str, bytes] = field(default_factory=dict)
    ended_before: set[str] = field(default_factory=set)
    """Calls that ended here and were admitted in an earlier segment."""


def inspect(directory: Path) -> Place:
    """Where the log of an unlocked writer ends; raises `BrokenChain`."""
    head = read_head(directory)
    numbers = segments(directory)
    if numbers and not _has_header(segment_path(directory, numbers[-1])):
        numbers.pop()  # died before its first line was whole; it will be begun again
    if numbers:
        # Whoever may go on in it must be able to open it; to read it is less.
        os.close(open_file(segment_path(directory, numbers[-1]), os.O_WRONLY))
    if head is None:
        if numbers:
            raise BrokenChain("HEAD is missing or damaged")
        return Place(0, None, 0, GENESIS, clean=False)
    if not numbers:
        if head.seq:
            raise BrokenChain(f"HEAD is at line {head.seq}, but there are no segments")
        return Place(0, None, 0, GENESIS, clean=False)
    if head.clean and not head.open_calls:
        return _clean_place(directory, numbers[-1], head)
    return _scanned_place(directory, numbers, head)


def _has_header(file: Path) -> bool:
    return next(lines(file), b"").endswith(b"\n")


def _clean_place(directory: Path, number: int, head: HeadState) -> Place:
    file = segment_path(directory, number)
    line = last_line(file)
    if stated_hash(line) != head.hash:
        raise BrokenChain(f"{file.name} does not end where HEAD says")
    closed = decode_line(line).event == "audit.segment_closed"
    return Place(number, None if closed else file.stat().st_size, head.seq, head.hash, clean=True)


def _scanned_place(directory: Path, numbers: list[int], head: HeadState) -> Place:
    last = _scan(directory, numbers[-1], head)
    if last.seq < head.seq:
        raise BrokenChain(f"the log ends at line {last.seq}, HEAD is at {head.seq}")
    opened = dict(last.opened)
    ended = set(last.ended_before)
    count, prev, first_seq = last.count, last.prev, last.first_seq
    for number in reversed(numbers[:-1]):
        if count <= len(ended):
            break
        scan = _scan(directory, number, head)
        if scan.torn or scan.hash != prev or scan.seq + 1 != first_seq:
            raise BrokenChain(f"segment {number} does not lead to the next one")
        still_open = {key: line for key, line in scan.opened.items() if key not in ended}
        opened = still_open | opened
        ended = (ended - scan.opened.keys()) | scan.ended_before
        count, prev, first_seq = scan.count, scan.prev, scan.first_seq
    return Place(
        number=numbers[-1],
        size=None if last.event == "audit.segment_closed" else last.size,
        seq=last.seq,
        hash=last.hash,
        clean=False,
        lost=tuple(opened.values()),
    )


def _scan(directory: Path, number: int, head: HeadState) -> _Scan:
    file = segment_path(directory, number)
    scan = _Scan()
    for line in lines(file):
        if not line.endswith(b"\n"):
            scan.torn = True
            break
        try:
            found = decode_line(line)
        except msgspec.DecodeError as error:
            raise BrokenChain(f"{file.name}: after line {scan.seq}: not a record") from error
        if not scan.seq:
            if found.event != "audit.started" or found.prev is None:
                raise BrokenChain(f"{file.name} does not begin with a header")
            scan.count = found.count or 0
            scan.first_seq = found.seq
            scan.prev = scan.hash = found.prev.encode()
            scan.seq = found.seq - 1
            _compare(scan, head)
        digest = expected_hash(line, scan.hash)
        if found.seq != scan.seq + 1 or stated_hash(line) != digest:
            raise BrokenChain(f"{file.name}: the chain breaks at line {scan.seq + 1}")
        scan.seq, scan.hash, scan.event = found.seq, digest, found.event
        scan.size += len(line)
        _compare(scan, head)
        if found.request_id is None:
            continue
        if found.event == ADMITTED:
            scan.opened[found.request_id] = line
        elif found.event in TERMINAL and scan.opened.pop(found.request_id, None) is None:
            scan.ended_before.add(found.request_id)
    return scan


def _compare(scan: _Scan, head: HeadState) -> None:
    if scan.seq == head.seq and scan.hash != head.hash:
        raise BrokenChain(f"line {head.seq} is not the one that HEAD knows")


class Adopted(NamedTuple):
    """The writer of this process, and what was found on the way to it."""

    writer: Writer
    recovered: int
    """Writers that a dead process had left open."""
    broken: tuple[str, ...]
    """Writers that were left untouched: no crash explains their files, or others may change them."""


def adopt(root: Path, *, policy: str, clock: Callable[[], int]) -> Adopted:
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
    return Adopted(mine, recovered, tuple(broken))


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
        place = inspect(directory)
        if place.clean and not wanted:
            lock.release()
            return None, True
        writer = attach(directory, lock, place, policy=policy, clock=clock)
    except BaseException:
        lock.release()
        raise
    if not place.clean:
        _recover(writer, place)
    return writer, place.clean


def attach(
    directory: Path, lock: Lock, place: Place, *, policy: str, clock: Callable[[], int]
) -> Writer:
    """A writer that goes on where the log ends."""
    return Writer(
        directory,
        lock,
        Chain(place.seq, place.hash),
        policy=policy,
        clock=clock,
        number=place.number,
        size=place.size,
        open_calls=len(place.lost),
    )


def _recover(writer: Writer, place: Place) -> None:
    """Cut what is torn, end what was lost, say so. Done again, it does nothing twice."""
    try:
        if writer.trouble:
            writer.mend()
        for start in range(0, len(place.lost), _CHUNK_LINES):
            chunk = place.lost[start : start + _CHUNK_LINES]
            data = b"".join(writer.seal(_lost(line)) for line in chunk)
            writer.commit(data, writer.open_calls - len(chunk))
        if place.seq:
            writer.append(
                Event(event="audit.recovered", segment=writer.name, count=len(place.lost)), 0
            )
    except BaseException:
        writer.close(clean=False)
        raise


def _lost(line: bytes) -> Event:
    """The end of a call that nobody saw end, under the names it was admitted with."""
    call = decode_record(line)
    return Event(
        event="tool.call.lost",
        request_id=call.request_id,
        correlation_id=call.correlation_id,
        causation_id=call.causation_id,
        caller=call.caller,
        agent=call.agent,
        tool=call.tool,
        policy=call.policy,
        trace_id=call.trace_id,
    )
