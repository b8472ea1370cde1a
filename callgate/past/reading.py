"""Read records out of the segments of an audit, and say how much of what was read was verified.

Which segments are read follows from their indexes. A segment that is read is verified while it is
read: each line's hash must follow from the line before, and its first line from the segment before
it, where that was read, too. A fault hides nothing: the record is shown, and the fault is told.

What was there when the question was asked is what is answered: a segment is read up to the size
that it had then, and one that was deleted meanwhile is counted.
"""

from __future__ import annotations

import heapq
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from callgate.audit.chain import GENESIS, MAX_LINE_BYTES, expected_hash, stated_hash
from callgate.audit.files import is_locked, open_to_read, segment_path, segments, writers
from callgate.audit.index import (
    MIN_BYTES,
    SegmentIndex,
    load_index_key,
    make_index,
    read_index,
    write_index,
)
from callgate.files import find_directory_fault
from callgate.past.rows import Row, decode_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from callgate.past.rows import Query

_EVENT: Final = b',"event":"'
_EVENT_WITHIN: Final = 100
"""In a line of ours the event stands behind the time stamp; another line is decoded."""
_SEARCH_BYTES: Final = 1 << 20
MAX_FAULTS: Final = 5
"""Told one by one; `audit verify` has them all."""


@dataclass(slots=True)
class Coverage:
    """How much there is, how much of it was read, and how much of that was verified."""

    segments: int = 0
    read: int = 0
    verified: int = 0
    vanished: int = 0
    """Deleted between the question and the answer."""
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    def fault(self, text: str) -> None:
        """Count a fault, and keep it if there are few."""
        self.fault_count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(text)


@dataclass(slots=True)
class Source:
    """One segment, as it was when the question was asked."""

    directory: Path
    number: int
    size: int
    last: bool
    """The last one of its writer: its end may be torn."""
    index: SegmentIndex | None = None
    may_index: bool = False
    """An index can be made: it is large, and nobody writes to it."""
    keeps: bool = False
    """What is made may be kept beside it: the directory is ours."""
    whole_bytes: int = 0
    """How much of it are whole lines, once it was read."""

    @property
    def name(self) -> str:
        """Return the segment as messages name it."""
        return f"{self.directory.name}/{self.number:08d}.jsonl"


class PastLog:
    """The segments under one path, at one moment."""

    def __init__(self, root: Path) -> None:
        """List what is there; raises `OSError` if `root` cannot be read."""
        self.coverage = Coverage()
        self.sources: list[Source] = []
        self._heads: dict[tuple[str, int], str] = {}
        """What the header of a segment says of the hash before it."""
        self._ends: dict[tuple[str, int], str] = {}
        status = root.stat()
        if (fault := find_directory_fault(status, status.st_uid, above=True)) is not None:
            self.coverage.fault(f"{root}: {fault}")
        self._key = load_index_key(root)
        for directory in writers(root):
            self._list(directory)
        self.coverage.segments = len(self.sources)

    def _list(self, directory: Path) -> None:
        """Add the segments of one writer, each with its index if it has one."""
        ours = not hasattr(os, "geteuid") or directory.stat().st_uid == os.geteuid()
        live = is_locked(directory)
        numbers = segments(directory)
        for number in numbers:
            last = number == numbers[-1]
            try:
                size = segment_path(directory, number).stat().st_size
            except FileNotFoundError:
                self.coverage.vanished += 1
                continue
            source = Source(directory, number, size, last, keeps=ours)
            if self._key is not None and size >= MIN_BYTES and not (last and live):
                source.index = read_index(directory, number, self._key)
                source.may_index = source.index is None
            self.sources.append(source)

    def newest(self, query: Query, limit: int) -> list[Row]:
        """Return the last `limit` records that the query wants, oldest first.

        The newest segments are read first, and no older one than is needed.
        """
        kept: list[tuple[str, int, int, Row]] = []
        count = 0
        for source in sorted(self._wanted(query), key=_ended, reverse=True):
            if len(kept) == limit and _ended(source) < kept[0][0]:
                break
            for row in self.rows(source, query):
                count += 1
                heapq.heappush(kept, (row.ts, row.seq, count, row))
                if len(kept) > limit:
                    heapq.heappop(kept)
        return [row for *_, row in sorted(kept, key=lambda entry: entry[:3])]

    def all(self, query: Query) -> Iterator[Row]:
        """Yield every record that the query wants, in the order of their times."""
        by_writer: dict[str, list[Source]] = {}
        for source in self._wanted(query):
            by_writer.setdefault(source.directory.name, []).append(source)
        streams = [self._stream(sources, query) for sources in by_writer.values()]
        return heapq.merge(*streams, key=lambda row: row.ts)

    def unordered(self, query: Query) -> Iterator[Row]:
        """Yield every record that the query wants, writer by writer."""
        return self._stream(self._wanted(query), query)

    def by_writer(self, query: Query) -> Iterator[tuple[bool, Iterator[Row]]]:
        """Yield for each writer whether a process writes there, and its records."""
        wanted: dict[Path, list[Source]] = {}
        for source in self._wanted(query):
            wanted.setdefault(source.directory, []).append(source)
        for directory, sources in wanted.items():
            yield is_locked(directory), self._stream(sources, query)

    def _stream(self, sources: Iterable[Source], query: Query) -> Iterator[Row]:
        for source in sources:
            yield from self.rows(source, query)

    def _wanted(self, query: Query) -> list[Source]:
        """Return the segments that may have some of it; make the indexes that are missing.

        For one id none is made: to search for its bytes is quicker.
        """
        needle = query.needle
        wanted: list[Source] = []
        for source in self.sources:
            if source.may_index and needle is None and self._key is not None:
                source.index = _make_index(source, self._key)
                source.may_index = False
            if source.index is not None:
                if not _may_hold(source.index, query):
                    continue
            elif needle is not None and not self._has(source, needle):
                continue
            wanted.append(source)
        return wanted

    def _has(self, source: Source, needle: bytes) -> bool:
        """Return False if a segment has the bytes nowhere."""
        if source.size < MIN_BYTES:
            return True
        try:
            with open_to_read(segment_path(source.directory, source.number)) as stream:
                before = b""
                while block := stream.read(_SEARCH_BYTES):
                    if needle in before + block[: len(needle)] or needle in block:
                        return True
                    before = block[-len(needle) :]
        except OSError:
            return True  # whoever reads it says what is wrong
        return False

    def rows(self, source: Source, query: Query) -> Iterator[Row]:
        """Yield the records of one segment that the query wants, and verify the segment."""
        needle, wants = query.needle, query.wants
        names = frozenset(event.encode() for event in query.events)
        check = _ChainCheck(source, self.coverage.fault)
        try:
            for line in _whole_lines(source, self.coverage.fault):
                check.follow(line)
                if needle is not None and needle not in line:
                    continue
                at = line.find(_EVENT, 0, _EVENT_WITHIN) + len(_EVENT)
                if at >= len(_EVENT) and line[at : line.find(b'"', at)] not in names:
                    continue  # half of a log is admissions, which few questions are about
                try:
                    row = decode_row(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    check.fault("not a record")
                    continue
                if wants(row):
                    yield row
        except FileNotFoundError:
            self.coverage.vanished += 1
            return
        except OSError as error:
            self.coverage.fault(f"{source.name}: {error.strerror or 'cannot be read'}")
            return
        self.coverage.read += 1
        self.coverage.verified += check.is_good and self._links(source, check)

    def _links(self, source: Source, check: _ChainCheck) -> bool:
        """Compare a segment's ends with those of its neighbours that were read."""
        writer, number = source.directory.name, source.number
        head, end = check.first_prev, check.hash.decode("ascii", "replace")
        self._heads[writer, number], self._ends[writer, number] = head, end
        before = self._ends.get((writer, number - 1), head)
        after = self._heads.get((writer, number + 1), end)
        if before == head and after == end:
            return True
        self.coverage.fault(f"{source.name}: does not follow from the segment beside it")
        return False


class _ChainCheck:
    """Follows the hashes of one segment, from what its first line says stood before it."""

    __slots__ = ("_count", "_previous", "_tell", "_where", "faults", "first_prev", "hash")

    def __init__(self, source: Source, tell: Callable[[str], None]) -> None:
        self.faults = 0
        self.first_prev = ""
        self.hash = GENESIS
        self._count = 0
        self._where = source.name
        self._tell = tell
        self._previous = f"{source.directory.name}/{source.number}"

    @property
    def is_good(self) -> bool:
        """Return True if every line followed from the one before."""
        return self._count > 0 and not self.faults

    def follow(self, line: bytes) -> None:
        """Compare one line's hash."""
        self._count += 1
        if self._count == 1:
            self._begin(line)
        found = stated_hash(line)
        if found is None:
            self.fault("no hash at the end of the line")
            return
        if found != expected_hash(line, self.hash):
            self.fault("the line is not the one that its hash was made of")
        self.hash = found

    def _begin(self, line: bytes) -> None:
        try:
            header = decode_row(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # whoever decodes it next says so
        if header.event != "audit.started" or header.prev is None:
            self.fault("expected the header of a segment")
        elif header.segment != self._previous:
            self.fault("this is another segment's header")
        else:
            self.first_prev = header.prev
            self.hash = header.prev.encode("utf-8", "replace")

    def fault(self, text: str) -> None:
        """Tell a fault of the current line."""
        self.faults += 1
        self._tell(f"{self._where}:{self._count}: {text}")


def _whole_lines(source: Source, fault: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the lines of a segment up to its size then; a torn end of the last one is none."""
    left = source.size
    with open_to_read(segment_path(source.directory, source.number)) as stream:
        while left > 0 and (line := stream.readline(min(left, MAX_LINE_BYTES + 1))):
            left -= len(line)
            if line.endswith(b"\n"):
                source.whole_bytes = source.size - left
                yield line
            elif left or not source.last:
                fault(f"{source.name}: a line that is torn or too long")
                _skip_line(stream, left)
                left = source.size - stream.tell()


def _skip_line(stream: BinaryIO, left: int) -> None:
    """Read to the end of a line that is longer than lines are."""
    while left > 0 and (part := stream.readline(min(left, MAX_LINE_BYTES))):
        left -= len(part)
        if part.endswith(b"\n"):
            return


def _may_hold(index: SegmentIndex, query: Query) -> bool:
    """Return False if a segment has none of the records, by its index."""
    if query.since is not None and index.last_ts < query.since:
        return False
    call = query.request_id
    if call is not None and (
        index.first_id is None
        or index.last_id is None
        or not index.first_id <= call <= index.last_id
    ):
        return False
    return not (query.signs or query.events).isdisjoint(index.events)


def _make_index(source: Source, key: bytes) -> SegmentIndex | None:
    """Make a segment's index, and keep it where that may be."""
    try:
        made = make_index(source.directory, source.number)
        if made is not None and source.keeps:
            write_index(source.directory, made, key)
    except OSError:
        return None  # it is read like one that has none
    return made if made is None or made.size == source.size else None


def _ended(source: Source) -> str:
    return "~" if source.index is None else source.index.last_ts
