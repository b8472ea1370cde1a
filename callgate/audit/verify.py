"""Is the audit what was written? Reads every line of every writer, in bounded memory.

A line that was edited, removed, moved, repeated or inserted breaks the chain at that place; a
cut tail disagrees with HEAD; a missing segment must be named by a deletion record. What this
cannot see is a log that was rewritten from some point on together with its HEAD, or a writer
that was removed whole: compare with an anchor, a checkpoint that was kept elsewhere.

A live writer goes on while it is read. HEAD is read before the lines, so the log may be ahead
of it, never behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from callgate.audit.chain import GENESIS, MAX_LINE_BYTES, expected_hash, stated_hash
from callgate.audit.events import ADMITTED, SEVERITY, TERMINAL, Record, decode_record
from callgate.audit.files import is_locked, lines, segment_path, segments, writers
from callgate.audit.head import read_head
from callgate.files import find_directory_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from callgate.audit.head import HeadState

Kind = Literal["line", "chain", "segment", "head", "call", "anchor", "directory", "recovery"]
"""`recovery` is the work of a crash, which the next start puts right; all others are not."""

State = Literal["live", "closed", "crashed"]

MAX_PROBLEMS: Final = 100
"""Kept for each writer; the rest are counted."""

_ATTEMPTS: Final = 5
"""A writer that starts, ends, rotates or fails while it is read is read again."""

_PROGRESS_BYTES: Final = 1 << 20


class Anchor(msgspec.Struct, frozen=True):
    """A place in a writer's chain."""

    writer: str
    seq: int
    hash: str


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, and where: `writer/segment:line`."""

    kind: Kind
    where: str
    message: str


@dataclass(slots=True)
class WriterReport:
    """What was found in one writer directory."""

    writer: str
    state: State
    segments: int = 0
    lines: int = 0
    bytes: int = 0
    seq: int = 0
    hash: str = GENESIS.decode()
    open_calls: int = 0
    deleted: int = 0
    """Segments up to this number are gone, and a record says so."""
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0


@dataclass(slots=True)
class Report:
    """The answer."""

    writers: list[WriterReport]
    problems: list[Problem]
    problem_count: int

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return self.problem_count == 0

    @property
    def tampered(self) -> bool:
        """Something is wrong that a crash does not explain."""
        return any(problem.kind != "recovery" for problem in self.problems)

    def anchors(self) -> list[Anchor]:
        """Where each writer's chain ends now."""
        return [Anchor(one.writer, one.seq, one.hash) for one in self.writers]


def verify(
    path: Path | str,
    anchors: Mapping[str, Anchor] | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check every writer under `path`, against `anchors` too if there are any.

    `progress` is told how many bytes were read since it was last told.
    """
    root = Path(path)
    anchors = anchors or {}
    reports: list[WriterReport] = []
    problems: list[Problem] = []
    if (fault := find_directory_fault(root.stat(), root.stat().st_uid, above=True)) is not None:
        problems.append(Problem("directory", root.name, fault))
    count = len(problems)
    for directory in writers(root):
        report = _verify_writer(directory, anchors.get(directory.name), progress)
        reports.append(report)
        problems += report.problems
        count += report.problem_count
    for name in sorted(anchors.keys() - {report.writer for report in reports}):
        problems.append(Problem("anchor", name, "the anchor knows this writer; it is missing"))
        count += 1
    return Report(reports, problems, count)


def load_anchors(text: bytes) -> dict[str, Anchor]:
    """Anchors from JSON: a list of checkpoints, or one; raises `msgspec.DecodeError`."""
    found = msgspec.json.decode(text, type=list[Anchor] | Anchor)
    return {anchor.writer: anchor for anchor in (found if isinstance(found, list) else [found])}


def _verify_writer(
    directory: Path, anchor: Anchor | None, progress: Callable[[int], None] | None
) -> WriterReport:
    for attempt in range(_ATTEMPTS):
        live = is_locked(directory)
        head = read_head(directory)
        check = _Check(directory, head, anchor, live=live)
        try:
            report = check.run(progress if attempt == 0 else None)
        except FileNotFoundError:  # a segment was deleted, by its owner or not
            continue
        moved = live or is_locked(directory) or read_head(directory) != head
        if not report.problem_count or not moved:
            break
    else:
        report = check.report
        if not report.problem_count:
            check.problem("segment", directory.name, "segments vanish while they are read")
    return report


class _Check:
    """One pass over one writer."""

    def __init__(
        self, directory: Path, head: HeadState | None, anchor: Anchor | None, *, live: bool
    ) -> None:
        state: State = "live" if live else "closed" if head and head.clean else "crashed"
        self.report = WriterReport(directory.name, state)
        self._directory = directory
        self._head = head
        self._anchor = anchor
        self._seq = 0
        self._hash = GENESIS
        self._first_seq = 1
        self._torn = False
        self._open: set[str] = set()
        self._forgiven: set[str] = set()
        self._allowance = 0
        """Calls that may end here without a start: it was deleted, or dropped."""

    def problem(self, kind: Kind, where: str, message: str) -> None:
        """Note a problem."""
        self.report.problem_count += 1
        if len(self.report.problems) < MAX_PROBLEMS:
            self.report.problems.append(Problem(kind, where, message))

    def run(self, progress: Callable[[int], None] | None) -> WriterReport:
        """Read all segments, then compare with HEAD, the anchor and the deletions."""
        numbers = segments(self._directory)
        report = self.report
        status = self._directory.stat()
        if (fault := find_directory_fault(status, status.st_uid, above=False)) is not None:
            self.problem("directory", report.writer, fault)
        expected = numbers[0] if numbers else 1
        for number in numbers:
            first = number == numbers[0]
            if number != expected:
                where = f"{report.writer}/{number:08d}.jsonl:1"
                self.problem("segment", where, f"expected segment {expected} before this one")
            try:
                self._segment(number, first=first, last=number == numbers[-1], progress=progress)
            except FileNotFoundError:
                raise
            except OSError as error:
                where = f"{report.writer}/{number:08d}.jsonl"
                self.problem("segment", where, error.strerror or "cannot be read")
            expected = number + 1
        report.segments = len(numbers)
        report.seq = self._seq
        report.hash = self._hash.decode("ascii", "replace")
        report.open_calls = len(self._open)
        self._compare_deletions(numbers)
        self._compare_head()
        self._compare_anchor()
        return report

    def _segment(
        self, number: int, *, first: bool, last: bool, progress: Callable[[int], None] | None
    ) -> None:
        file = segment_path(self._directory, number)
        name = f"{self.report.writer}/{file.name}"
        closed = False
        overlong = False
        line_number = told = read = 0
        for line in lines(file):
            read += len(line)
            if progress and read - told >= _PROGRESS_BYTES:
                progress(read - told)
                told = read
            if overlong:
                overlong = not line.endswith(b"\n")
                continue
            line_number += 1
            where = f"{name}:{line_number}"
            if not line.endswith(b"\n"):
                overlong = len(line) > MAX_LINE_BYTES
                self._unfinished(where, overlong=overlong, last=last)
                continue
            record = self._decode(line, where)
            if line_number == 1:
                self._header(record, where, number, first=first)
            elif closed:
                self.problem("segment", where, "expected nothing after audit.segment_closed")
            self._link(line, record, where)
            if record is not None:
                closed = record.event == "audit.segment_closed"
                self._follow(record, where)
        if not line_number and not (last and self.report.state != "closed"):
            self.problem("segment", name, "expected a header, found an empty file")
        self.report.lines += line_number
        self.report.bytes += read
        if progress:
            progress(read - told)

    def _unfinished(self, where: str, *, overlong: bool, last: bool) -> None:
        if overlong:
            self.problem("line", where, f"expected at most {MAX_LINE_BYTES} bytes a line")
        elif last and self.report.state != "closed":
            self._torn = True
        else:
            self.problem("line", where, "expected a whole line, found a torn one")

    def _decode(self, line: bytes, where: str) -> Record | None:
        try:
            record = decode_record(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.problem("line", where, f"not a record of the schema: {error}")
            return None
        if record.severity != SEVERITY[record.event]:
            self.problem("line", where, f"expected severity {SEVERITY[record.event]}")
        return record

    def _header(self, record: Record | None, where: str, number: int, *, first: bool) -> None:
        """The first line of a segment; it says where the chain stands."""
        if record is None:
            return
        segment = f"{self.report.writer}/{number}"
        if record.event != "audit.started" or record.prev is None:
            self.problem("segment", where, "expected the header of a segment")
            return
        if record.segment != segment:
            self.problem("segment", where, f"expected segment {segment}, found {record.segment}")
        if first and number > 1:
            # The segments before it are gone; whether they may be is asked at the end.
            self._seq = record.seq - 1
            self._hash = record.prev.encode()
            self._first_seq = record.seq
            self._allowance += record.count or 0
        elif record.prev.encode() != self._hash:
            self.problem("segment", where, "expected the hash of the line before as `prev`")
        elif not (self._allowance or self.report.problem_count):
            count = record.count or 0
            if count != len(self._open):
                message = f"expected {len(self._open)} open calls, found {count}"
                self.problem("call", where, message)
        self._pass()

    def _link(self, line: bytes, record: Record | None, where: str) -> None:
        """One problem at most a line, then on from what the line claims to be."""
        seq = self._seq + 1
        found = stated_hash(line)
        if record is not None and record.seq != seq:
            self.problem("chain", where, f"expected seq {seq}, found {record.seq}")
            seq = record.seq
        elif found is None:
            self.problem("chain", where, "expected a hash at the end of the line")
        elif found != (digest := expected_hash(line, self._hash)):
            self.problem("chain", where, f"expected hash {digest.decode()}")
        self._seq = seq
        self._hash = found or self._hash
        self._pass()

    def _pass(self) -> None:
        """Compare with what HEAD and the anchor know of this place."""
        head, anchor = self._head, self._anchor
        if head is not None and self._seq == head.seq and self._hash != head.hash:
            self.problem("head", self.report.writer, f"line {head.seq} is not the one HEAD knows")
        if anchor and self._seq == anchor.seq and self._hash != anchor.hash.encode():
            self.problem(
                "anchor", self.report.writer, f"line {anchor.seq} is not the one the anchor knows"
            )

    def _follow(self, record: Record, where: str) -> None:
        """Each admitted call ends once."""
        call = record.request_id
        if record.event == "audit.segment_deleted" and record.segment:
            writer, _, number = record.segment.rpartition("/")
            if writer == self.report.writer and number.isdecimal():
                self.report.deleted = max(self.report.deleted, int(number))
        elif record.event == "audit.recovered" and record.code == "audit.dropped":
            self._allowance += record.count or 0
        elif record.event == ADMITTED:
            if call is None or call in self._open:
                self.problem("call", where, "expected a new call, found one that is open")
            else:
                self._open.add(call)
        elif record.event in TERMINAL:
            if call in self._open:
                self._open.remove(call)
            elif call and call not in self._forgiven and len(self._forgiven) < self._allowance:
                self._forgiven.add(call)
            else:
                message = "expected an open call: it ended before, or was never admitted"
                self.problem("call", where, message)

    def _compare_deletions(self, numbers: list[int]) -> None:
        missing = numbers[0] - 1 if numbers else 0
        if missing > self.report.deleted:
            message = (
                f"segments {self.report.deleted + 1} to {missing} are missing, "
                "and no record says that they were deleted"
            )
            self.problem("segment", self.report.writer, message)

    def _compare_head(self) -> None:
        report, head = self.report, self._head
        where = f"{report.writer}/HEAD"
        if head is None:
            if self._seq == 0 and report.state == "live":
                return  # it is just being made
            kind: Kind = "head" if self._seq else "recovery"
            self.problem(kind, where, "missing or damaged")
        elif self._seq < head.seq or head.seq < self._first_seq - 1:
            message = f"expected lines up to {head.seq}, the log ends at {self._seq}"
            self.problem("head", where, message)
        elif report.state == "closed":
            if self._seq != head.seq:
                message = f"expected the end at line {head.seq}, the log goes on to {self._seq}"
                self.problem("head", where, message)
            elif not head.whole:
                self.problem("head", where, "one of its two slots is damaged")
            if self._open:
                kind = "recovery" if head.open_calls else "call"
                self.problem(kind, report.writer, f"{len(self._open)} calls have no end")
        elif report.state == "crashed":
            torn = " and a torn line" if self._torn else ""
            message = f"not closed: {len(self._open)} calls without an end{torn}; start callgate"
            self.problem("recovery", report.writer, message)

    def _compare_anchor(self) -> None:
        anchor = self._anchor
        if anchor and self._seq < anchor.seq:
            message = f"the log ends at line {self._seq}, the anchor knows line {anchor.seq}"
            self.problem("anchor", self.report.writer, message)
