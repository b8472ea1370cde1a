"""Read a writer's segments and follow their chain: the one reader, of recovery and of `verify`.

What is wrong is told to `note`, which counts it (`verify`) or raises (recovery); after a fault the
walk goes on from what the line claims to be, so that one changed line is one problem.

Since version 2 each segment stands alone: behind its header stand all calls that are open there,
again, as `tool.call.carried`. So recovery reads the last segment only, and a segment may be
deleted though a call that began in it is still open. Of version 1 there is only a number of open
calls in the header; to know which, one has to read from the first segment on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from callgate.audit.chain import GENESIS, MAX_LINE_BYTES, expected_hash, stated_hash
from callgate.audit.events import (
    ADMITTED,
    CARRIED,
    TERMINAL,
    Record,
    decode_record,
    severity_of,
)
from callgate.audit.files import lines, segment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from callgate.audit.head import HeadState

Kind = Literal["line", "chain", "segment", "head", "call", "anchor", "directory", "recovery"]
"""`recovery` is the work of a crash, which the next start puts right; all others are not."""

_PROGRESS_BYTES = 1 << 20


class Anchor(msgspec.Struct, frozen=True):
    """A place in a writer's chain."""

    writer: str
    seq: int
    hash: str


class Segment(NamedTuple):
    """Which segment to read, and what may be expected of it."""

    number: int
    first: bool
    """Nothing was read before it."""
    may_tear: bool
    """A crash may have left it unfinished."""


class Walk:
    """Where a walk along one writer's chain stands, and what it has met."""

    def __init__(
        self,
        directory: Path,
        head: HeadState | None,
        note: Callable[[Kind, str, str], None],
        anchor: Anchor | None = None,
    ) -> None:
        self.seq = 0
        self.hash = GENESIS
        self.first_seq = 1
        self.lines = self.bytes = 0
        self.size = 0
        """Of the last segment, without what is torn."""
        self.event = ""
        """Of the last line."""
        self.open: dict[str, bytes] = {}
        """The calls without an end, each with the line that has its names."""
        self.due = 0
        """Carried calls that the segment's header promises and that have not come yet."""
        self.carried = 0
        """Calls that began before the first segment that was read, and are known by name."""
        self.unknown = 0
        """As many, of version 1: without their names, unless their end was read."""
        self.deleted = 0
        self.torn = False
        self.anchor_found = False
        self._directory = directory
        self._head = head
        self._anchor = anchor
        self._tell = note
        self._faults = 0
        self._version = 1
        self._allowance = 0
        """Starts that were dropped: as many calls may end without one."""
        self._forgiven: set[str] = set()
        self._again: set[str] = set()

    def segment(self, segment: Segment, progress: Callable[[int], None] | None = None) -> None:
        """Read one segment; the next one read must follow it. Raises `OSError`."""
        file = segment_path(self._directory, segment.number)
        name = f"{self._directory.name}/{file.name}"
        closed = False
        before = self.lines
        self.size = self.due = 0
        for line in self._whole_lines(file, name, segment, progress):
            number = self.lines - before
            where = f"{name}:{number}"
            record = self._decode(line, where)
            if number == 1:
                self._header(record, where, segment)
            elif closed:
                self._note("segment", where, "expected nothing after audit.segment_closed")
            self._link(line, record, where)
            self.size += len(line)
            if record is not None:
                closed = record.event == "audit.segment_closed"
                if number > 1:
                    self._follow(record, line, where, first=segment.first)
        if segment.may_tear:
            self.torn = self.torn or self.due > 0
        elif self.lines == before:
            self._note("segment", name, "expected a header, found an empty file")
        elif self.due:
            self._note("segment", name, f"expected {self.due} more calls that are carried over")

    def _whole_lines(
        self, file: Path, name: str, segment: Segment, progress: Callable[[int], None] | None
    ) -> Iterator[bytes]:
        """Yield the lines that end as lines do; count all of them, note the others."""
        overlong = False
        before = self.lines
        told = read = 0
        for line in lines(file):
            read += len(line)
            self.bytes += len(line)
            if progress and read - told >= _PROGRESS_BYTES:
                progress(read - told)
                told = read
            whole = line.endswith(b"\n")
            if overlong:
                overlong = not whole
                continue
            self.lines += 1
            if whole:
                yield line
                continue
            overlong = len(line) > MAX_LINE_BYTES
            where = f"{name}:{self.lines - before}"
            if overlong:
                self._note("line", where, f"expected at most {MAX_LINE_BYTES} bytes a line")
            elif segment.may_tear:
                self.torn = True
            else:
                self._note("line", where, "expected a whole line, found a torn one")
        if progress:
            progress(read - told)

    def _note(self, kind: Kind, where: str, message: str) -> None:
        self._faults += 1
        self._tell(kind, where, message)

    def _decode(self, line: bytes, where: str) -> Record | None:
        try:
            record = decode_record(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._note("line", where, f"not a record of the schema: {error}")
            return None
        self.event = record.event
        severity = severity_of(record.event, record.code)
        if record.severity != severity:
            self._note("line", where, f"expected severity {severity}")
        if record.v < self._version:
            self._note("line", where, f"expected version {self._version}, found {record.v}")
        self._version = max(self._version, record.v)
        return record

    def _header(self, record: Record | None, where: str, segment: Segment) -> None:
        """Compare a segment's first line with where the chain stands."""
        if record is None:
            return
        name = f"{self._directory.name}/{segment.number}"
        if record.event != "audit.started" or record.prev is None:
            self._note("segment", where, "expected the header of a segment")
            return
        if record.segment != name:
            self._note("segment", where, f"expected segment {name}, found {record.segment}")
        count = record.count or 0
        self._again.clear()
        self.due = count if record.v > 1 else 0
        if segment.first and segment.number > 1:
            # The segments before it are gone; whether they may be is asked at the end.
            self.seq = record.seq - 1
            self.hash = record.prev.encode()
            self.first_seq = record.seq
            self.unknown = count - self.due
        else:
            if record.prev.encode() != self.hash:
                message = "expected the hash of the line before as `prev`"
                self._note("segment", where, message)
            vague = record.v == 1 and (self._allowance or self.unknown)
            if count != len(self.open) and not (vague or self._faults):
                self._note("call", where, f"expected {len(self.open)} open calls, found {count}")
        self._compare(line_itself=False)

    def _link(self, line: bytes, record: Record | None, where: str) -> None:
        """Note one problem at most, then go on from what the line claims to be."""
        seq = self.seq + 1
        found = stated_hash(line)
        if record is not None and record.seq != seq:
            self._note("chain", where, f"expected seq {seq}, found {record.seq}")
            seq = record.seq
        elif found is None:
            self._note("chain", where, "expected a hash at the end of the line")
        elif found != (digest := expected_hash(line, self.hash)):
            self._note("chain", where, f"expected hash {digest.decode()}")
        self.seq = seq
        self.hash = found or self.hash
        self._compare(line_itself=True)

    def _compare(self, *, line_itself: bool) -> None:
        """Compare with what HEAD and the anchor know of this place."""
        head, anchor, name = self._head, self._anchor, self._directory.name
        if head is not None and self.seq == head.seq and self.hash != head.hash:
            self._note("head", name, f"line {head.seq} is not the one HEAD knows")
        if anchor is not None and self.seq == anchor.seq and line_itself:
            self.anchor_found = True
            if self.hash != anchor.hash.encode():
                message = f"line {anchor.seq} is not the one the anchor knows"
                self._note("anchor", name, message)

    def _follow(self, record: Record, line: bytes, where: str, *, first: bool) -> None:
        """See to it that each admitted call ends once, and is carried over until then."""
        call = record.request_id
        if self.due and record.event != CARRIED:
            message = f"expected {self.due} more calls that are carried over"
            self._note("segment", where, message)
            self.due = 0
        if record.event == CARRIED:
            self._carry(call, line, where, first=first)
        elif record.event == "audit.segment_deleted" and record.segment:
            writer, _, number = record.segment.rpartition("/")
            if writer == self._directory.name and number.isdecimal():
                self.deleted = max(self.deleted, int(number))
        elif record.event == "audit.recovered" and record.code == "audit.dropped":
            self._allowance += record.count or 0
        elif record.event == ADMITTED:
            if call is None or call in self.open:
                self._note("call", where, "expected a new call, found one that is open")
            else:
                self.open[call] = line
        elif record.event in TERMINAL and (call is None or self.open.pop(call, None) is None):
            self._forgive(call, where)

    def _carry(self, call: str | None, line: bytes, where: str, *, first: bool) -> None:
        known = call in self.open
        if call is None or not self.due or call in self._again or known is first:
            self._note("call", where, "expected no call, or another one, to be carried over here")
            return
        self.due -= 1
        self._again.add(call)
        self.carried += first
        self.open[call] = line

    def _forgive(self, call: str | None, where: str) -> None:
        if call and call not in self._forgiven and self.unknown:
            self.unknown -= 1
        elif call and call not in self._forgiven and self._allowance:
            self._allowance -= 1
        else:
            message = "expected an open call: it ended before, or was never admitted"
            self._note("call", where, message)
            return
        self._forgiven.add(call)
