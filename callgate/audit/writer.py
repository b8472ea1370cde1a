"""One writer: a locked directory, its chain, its current segment and its HEAD.

`commit` writes sealed lines with one write(2) and then moves HEAD. If it raises, nothing was
written: the file is cut back and the chain rewound; if the file cannot even be cut, that is
remembered and done before anything else is written.

This is the one place that knows what has failed: `needs_repair` is set whenever `repair` has to
run before the next line is sealed (at the start, after a failure, between two segments), `gap` is
what could not be written meanwhile, `unended` the calls whose end was part of that. `repair` makes
it good: it writes how many records are missing, and ends those calls as lost.

A segment begins with a header and with all calls that are open there, again. So it can be
understood, and the segments before it deleted, without another one.

Not for several threads at once; the router's loop owns it. A forked child does not own it: there
every line fails, and the parent's chain stays whole.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from functools import cache
from os import write as os_write
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from callgate.audit.events import CARRIED, Event, EventName, repeated
from callgate.audit.files import Lock, segment_path
from callgate.audit.head import Head
from callgate.files import open_file, secure_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from callgate.audit.chain import Chain

CHUNK_LINES: Final = 256
"""Lines a write when many calls were lost: some 64 KiB."""

_APPEND: Final = os.O_WRONLY | os.O_APPEND


class Writer:
    """Appends to the segments of one writer directory."""

    __slots__ = (
        "__weakref__",
        "_checked",
        "_clock",
        "_cut",
        "_disowned",
        "_fd",
        "_good_hash",
        "_good_seq",
        "_head",
        "_lock",
        "_policy",
        "_resume",
        "carried_bytes",
        "chain",
        "directory",
        "gap",
        "needs_repair",
        "number",
        "offset_ns",
        "open",
        "size",
        "unended",
    )

    def __init__(
        self,
        directory: Path,
        lock: Lock,
        chain: Chain,
        *,
        policy: str,
        clock: Callable[[], int],
        number: int = 0,
        size: int | None = None,
        opened: dict[str, str] | None = None,
    ) -> None:
        """Go on after `chain`: in segment `number` at `size`, or in the next one if None."""
        self.directory = directory
        self.chain = chain
        self.number = number
        self.size = size or 0
        self.open = opened or {}
        """The calls that are open on disk, each with the body that has its names."""
        self.carried_bytes = 0
        """What the calls that were carried over take at the head of the segment."""
        self.gap: tuple[str, int] | None = None
        """Code and number of the records that failed, to be written when it works again."""
        self.offset_ns = clock() - time.monotonic_ns()
        """Between the wall's clock and the monotonic one; the former may be set."""
        self.unended: set[str] = set()
        """Those of `open` whose end failed."""
        self.needs_repair = True
        self._lock = lock
        self._policy = policy
        self._clock = clock
        self._fd = -1
        self._resume = self._cut = size is not None
        self._good_seq = chain.seq
        self._good_hash = chain.hash
        self._checked = -1
        self._disowned = False
        _disown_after_fork().add(self)
        self._head = Head.attach(directory)
        # Before the first line, so that "clean" and a longer log never go together.
        self._head.store(chain.seq, chain.hash, len(self.open))

    @property
    def name(self) -> str:
        """The writer's id."""
        return self.directory.name

    def commit(self, data: bytes, opens: int = 0) -> None:
        """Write the lines that were sealed since the last commit; raise and forget them if not.

        `opens` is by how much they change the number of calls that are `open` so far.
        """
        size = len(data)
        try:
            if os_write(self._fd, data) != size:
                raise OSError(errno.ENOSPC, "short write")  # noqa: TRY301 - it is one
        except OSError as error:
            self._roll_back(error)
            raise
        chain = self.chain
        self.size += size
        self._good_seq = seq = chain.seq
        self._good_hash = digest = chain.hash
        self._head.store(seq, digest, len(self.open) + opens)
        if chain.second != self._checked:
            self._checked = chain.second
            self.offset_ns = self._clock() - time.monotonic_ns()
            self._look_for_removal()

    def repair(self) -> None:
        """Make the writer ready for the next line, or raise."""
        if self._disowned:
            raise OSError(errno.EBADF, "this log belongs to the parent process")
        if self._fd < 0:
            self._open()
        if self._cut:
            os.ftruncate(self._fd, self.size)
            self._cut = False
        if self.gap is not None:
            code, count = self.gap
            self.append(Event(event="audit.recovered", code=code, count=count))
            self.gap = None
        if self.unended:
            self.lose(self.unended)
        self.needs_repair = False

    def append(self, event: Event) -> None:
        """Seal and commit one event of a cold path."""
        self.commit(self.chain.seal(event.body(), self._clock()))

    def lose(self, calls: Iterable[str]) -> None:
        """End open calls whose end nobody saw, or that could not be written when it came."""
        lost = list(calls)
        for start in range(0, len(lost), CHUNK_LINES):
            chunk = lost[start : start + CHUNK_LINES]
            bodies = [repeated("tool.call.lost", self.open[call]) for call in chunk]
            sealed = self.chain.seal_all(bodies, self._clock())
            self.commit("".join(sealed).encode(), -len(chunk))
            for call in chunk:
                del self.open[call]
            self.unended.difference_update(chunk)  # the next chunk may fail

    def mark(self, event: EventName, number: int | None = None, code: str | None = None) -> None:
        """Append an `audit.*` event about a segment, by default the current one."""
        segment = f"{self.name}/{number or self.number}"
        self.append(Event(event=event, policy=self._policy, segment=segment, code=code))

    def rotate(self) -> bool:
        """End the current segment and begin the next; return False if that has to wait."""
        try:
            if self.needs_repair:
                self.repair()
            self.mark("audit.segment_closed")
        except OSError:
            return False
        self._detach(resume=False)
        with suppress(OSError):  # the segment is closed; the next record begins the new one
            self.repair()
        return True

    def delete_segment(self, number: int, code: str | None = None) -> int:
        """Delete a closed segment: first the record, then the file; return its size."""
        if self.needs_repair:
            self.repair()
        file = segment_path(self.directory, number)
        size = file.stat().st_size
        self.mark("audit.segment_deleted", number, code)
        file.unlink()
        with suppress(OSError):  # without its segment it says nothing
            file.with_suffix(".index").unlink()
        return size

    def close(self, *, clean: bool = True) -> None:
        """Give the writer up; `clean` saves the next start a scan."""
        clean = clean and not self._disowned
        if clean and self._cut:
            try:
                self.repair()
            except OSError:
                clean = False
        if clean and not self._head.is_removed():
            self._head.seal(self._good_seq, self._good_hash, len(self.open))
        self._detach(resume=False)
        self._head.close()
        self._lock.release()

    def disown(self) -> None:
        """In a forked child: the file, the lock and HEAD are the parent's."""
        self._detach(resume=False)
        self._disowned = True

    def _roll_back(self, error: OSError) -> None:
        self.chain.rewind(self._good_seq, self._good_hash)
        self.needs_repair = self._cut = True
        if error.errno == errno.EBADF:
            self._fd = -1
            self._resume = True
            return
        with suppress(OSError):  # then `repair` does it
            os.ftruncate(self._fd, self.size)
            self._cut = False

    def _open(self) -> None:
        if self._resume:
            try:
                self._fd = open_file(segment_path(self.directory, self.number), _APPEND)
            except FileNotFoundError:
                self._resume = self._cut = False
            else:
                if os.fstat(self._fd).st_size < self.size:
                    # Somebody cut our lines: leave the evidence, go on behind it.
                    self._detach(resume=False)
        if self._fd < 0:
            self._begin_segment()

    def _begin_segment(self) -> None:
        file = segment_path(self.directory, self.number + 1)
        try:
            secure_directory(self.directory)
        except FileNotFoundError:
            self._restore_directory()
        fd = open_file(file, _APPEND, make=True)
        previous = self.number, self.size
        self._fd, self.number, self.size = fd, self.number + 1, 0
        try:
            os.ftruncate(fd, 0)  # left by a process that died before its first line
            self._cut = False
            self._write_head()
        except OSError:
            self._detach(resume=False)
            self.number, self.size = previous
            with suppress(OSError):
                file.unlink()
            raise

    def _write_head(self) -> None:
        header = Event(
            event="audit.started",
            policy=self._policy,
            segment=f"{self.name}/{self.number}",
            count=len(self.open),
            prev=self._good_hash.decode(),
        )
        carried = [repeated(CARRIED, body) for body in self.open.values()]
        first = self.chain.seal(header.body(), self._clock())
        rest = "".join(self.chain.seal_all(carried, self._clock())).encode()
        self.commit(first + rest)  # at once: a header without its calls is no head
        self.carried_bytes = len(rest)

    def _detach(self, *, resume: bool) -> None:
        fd, self._fd = self._fd, -1
        self._resume = resume
        self._cut = False
        self.needs_repair = True
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _look_for_removal(self) -> None:
        """Once a second: writing to a deleted file would succeed and keep nothing."""
        with suppress(OSError):
            if os.fstat(self._fd).st_nlink == 0:
                self._detach(resume=False)
            if self._head.is_removed():
                self._restore_directory()
                self._head.store(self._good_seq, self._good_hash, len(self.open))

    def _restore_directory(self) -> None:
        secure_directory(self.directory, make=True)
        lock = Lock.take(self.directory)
        if lock is not None:
            self._lock.release()
            self._lock = lock
        if self._head.is_removed():
            head = Head.attach(self.directory)
            self._head.close()
            self._head = head


@cache
def _disown_after_fork() -> WeakSet[Writer]:
    """The writers of this process, which its forks must not use."""
    writers: WeakSet[Writer] = WeakSet()

    def disown_all() -> None:
        for writer in tuple(writers):
            writer.disown()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=disown_all)
    return writers
