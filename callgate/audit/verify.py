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

from callgate.audit.chain import GENESIS
from callgate.audit.files import is_locked, segments, writers
from callgate.audit.head import read_head
from callgate.audit.reader import Anchor, Kind, Segment, Walk
from callgate.files import find_directory_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from callgate.audit.head import HeadState

State = Literal["live", "closed", "crashed"]

MAX_PROBLEMS: Final = 100
"""Kept for each writer; the rest are counted."""

_ATTEMPTS: Final = 5
"""A writer that starts, ends, rotates or fails while it is read is read again."""


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
    carried: int = 0
    """Calls that began before the oldest segment and were still open when it began."""
    unknown: int = 0
    """As many, of version 1, that have no end: the lines with their names were deleted."""
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
    """Return anchors from JSON, a list of checkpoints or one; raises `msgspec.DecodeError`."""
    found = msgspec.json.decode(text, type=list[Anchor] | Anchor)
    listed = found if isinstance(found, list) else [found]
    anchors = {anchor.writer: anchor for anchor in listed}
    if not listed or len(anchors) < len(listed):
        # Of two anchors of a writer only one would be looked for, of none none.
        raise msgspec.ValidationError("expected one anchor or more, one a writer")
    return anchors


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
        self._walk = Walk(directory, head, self.problem, anchor)

    def problem(self, kind: Kind, where: str, message: str) -> None:
        """Note a problem."""
        self.report.problem_count += 1
        if len(self.report.problems) < MAX_PROBLEMS:
            self.report.problems.append(Problem(kind, where, message))

    def run(self, progress: Callable[[int], None] | None) -> WriterReport:
        """Read all segments, then compare with HEAD, the anchor and the deletions."""
        numbers = segments(self._directory)
        report, walk = self.report, self._walk
        status = self._directory.stat()
        if (fault := find_directory_fault(status, status.st_uid, above=False)) is not None:
            self.problem("directory", report.writer, fault)
        expected = numbers[0] if numbers else 1
        for number in numbers:
            where = f"{report.writer}/{number:08d}.jsonl"
            if number != expected:
                message = f"expected segment {expected} before this one"
                self.problem("segment", f"{where}:1", message)
            may_tear = number == numbers[-1] and report.state != "closed"
            try:
                walk.segment(Segment(number, number == numbers[0], may_tear), progress)
            except FileNotFoundError:
                raise
            except OSError as error:
                self.problem("segment", where, error.strerror or "cannot be read")
            expected = number + 1
        report.segments = len(numbers)
        report.lines = walk.lines
        report.bytes = walk.bytes
        report.seq = walk.seq
        report.hash = walk.hash.decode("ascii", "replace")
        report.open_calls = len(walk.open)
        report.carried = walk.carried
        report.unknown = walk.unknown
        report.deleted = walk.deleted
        self._compare_deletions(numbers)
        self._compare_head()
        self._compare_anchor()
        return report

    def _compare_deletions(self, numbers: list[int]) -> None:
        missing = numbers[0] - 1 if numbers else 0
        if missing > self.report.deleted:
            message = (
                f"segments {self.report.deleted + 1} to {missing} are missing, "
                "and no record says that they were deleted"
            )
            self.problem("segment", self.report.writer, message)

    def _compare_head(self) -> None:
        report, head, walk = self.report, self._head, self._walk
        where = f"{report.writer}/HEAD"
        if head is None:
            if walk.seq == 0 and report.state == "live":
                return  # it is just being made
            kind: Kind = "head" if walk.seq else "recovery"
            self.problem(kind, where, "missing or damaged")
        elif walk.seq < head.seq or head.seq < walk.first_seq - 1:
            message = f"expected lines up to {head.seq}, the log ends at {walk.seq}"
            self.problem("head", where, message)
        elif report.state == "closed":
            if walk.seq != head.seq:
                message = f"expected the end at line {head.seq}, the log goes on to {walk.seq}"
                self.problem("head", where, message)
            elif not head.whole:
                self.problem("head", where, "one of its two slots is damaged")
            if walk.open:
                kind = "recovery" if head.open_calls else "call"
                self.problem(kind, report.writer, f"{len(walk.open)} calls have no end")
        elif report.state == "crashed":
            torn = " and a torn line" if walk.torn else ""
            message = f"not closed: {len(walk.open)} calls without an end{torn}; start callgate"
            self.problem("recovery", report.writer, message)

    def _compare_anchor(self) -> None:
        """The anchored line itself must be there: what follows it proves nothing by itself."""
        anchor, walk = self._anchor, self._walk
        if anchor is None or not anchor.seq or walk.anchor_found:
            return
        if walk.seq < anchor.seq:
            message = f"the log ends at line {walk.seq}, the anchor knows line {anchor.seq}"
        else:
            message = (
                f"line {anchor.seq}, which the anchor knows, is not here: the log begins at line "
                f"{walk.first_seq}; if its segment was deleted in time, keep a newer anchor"
            )
        self.problem("anchor", self.report.writer, message)
