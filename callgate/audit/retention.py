"""How much of the audit is kept: whole closed segments go, oldest first.

A segment goes when its last record is older than `keep_ns`, or while all segments together
are over `max_bytes`. A writer's last segment stays. Every deletion is recorded first, in the
chain that loses the segment, so that each chain can be checked by itself; writers of other
live processes are theirs to trim.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from callgate.audit.chain import wall_ns
from callgate.audit.events import FLUSHED, decode_record
from callgate.audit.files import Lock, last_line, segment_path, segments, writers
from callgate.audit.recovery import BrokenChain, attach, find_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from callgate.audit.writer import Writer
    from callgate.model import AuditSpec


@dataclass(slots=True)
class _Trimmed:
    """A writer that may lose segments, and the age of the first that it would lose."""

    directory: Path
    closed: list[int]
    ended_ns: int
    writer: Writer | None


def delete_old_segments(
    root: Path,
    own: Writer,
    spec: AuditSpec,
    *,
    policy: str,
    clock: Callable[[], int],
    on_flushed: Callable[[str], None],
) -> int:
    """Delete what is too old or too much; return the number of segments deleted.

    `on_flushed` is called with the name of each segment that goes before its time is over.
    """
    total = 0
    candidates: list[_Trimmed] = []
    for directory in writers(root):
        numbers = segments(directory)
        total += sum(_size(directory, number) for number in numbers)
        candidate = _Trimmed(
            directory, numbers[:-1], 0, own if directory == own.directory else None
        )
        if _look(candidate):
            candidates.append(candidate)
    deleted = 0
    borrowed: list[Writer] = []
    try:
        while candidates:
            oldest = min(candidates, key=lambda candidate: candidate.ended_ns)
            over = spec.max_bytes is not None and total > spec.max_bytes
            old = spec.keep_ns is not None and clock() - oldest.ended_ns > spec.keep_ns
            if not over and not old:
                break
            if oldest.writer is None:
                oldest.writer = _borrow(oldest.directory, policy, clock)
                if oldest.writer is None:
                    candidates.remove(oldest)
                    continue
                borrowed.append(oldest.writer)
            number = oldest.closed.pop(0)
            total -= oldest.writer.delete_segment(number, None if old else FLUSHED)
            deleted += 1
            if not old:
                on_flushed(f"{oldest.writer.name}/{number}")
            if not _look(oldest):
                candidates.remove(oldest)
    finally:
        for writer in borrowed:
            writer.close()
    return deleted


def _size(directory: Path, number: int) -> int:
    with suppress(FileNotFoundError):
        return segment_path(directory, number).stat().st_size
    return 0


def _look(candidate: _Trimmed) -> bool:
    """Learn when the first closed segment ended; False if there is none to delete."""
    if not candidate.closed:
        return False
    with suppress(OSError, msgspec.DecodeError):
        line = last_line(segment_path(candidate.directory, candidate.closed[0]))
        candidate.ended_ns = wall_ns(decode_record(line).ts)
        return True
    return False  # evidence of something; verify will say of what


def _borrow(directory: Path, policy: str, clock: Callable[[], int]) -> Writer | None:
    """A writer that nobody holds, to record a deletion in; None if it is held or not clean."""
    with suppress(OSError, BrokenChain, msgspec.DecodeError):
        lock = Lock.take(directory)
        if lock is None:
            return None
        try:
            end = find_end(directory)
            if end.clean:
                return attach(directory, lock, end, policy=policy, clock=clock)
        except BaseException:
            lock.release()
            raise
        lock.release()
    return None
