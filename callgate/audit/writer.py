"""One writer: a locked directory, its chain, its current segment and its HEAD.

`commit` writes sealed lines with one write(2) and then moves HEAD. If it raises, nothing was
written: the file is cut back and the chain rewound; if the file cannot even be cut, that is
remembered and done before anything else is written. `trouble` is set whenever `mend` has to
run before the next line is sealed: at the start, after a failure, between two segments.

Not for several threads at once; the router's loop owns it. A forked child does not own it: there
every line fails, and the parent's chain stays whole.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import cache
from os import write as os_write
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from callgate.audit.events import Event, EventName
from callgate.audit.files import Lock, segment_path
from callgate.audit.head import Head
from callgate.files import open_file, secure_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from callgate.audit.chain import Chain

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
        "chain",
        "directory",
        "gap",
        "number",
        "open_calls",
        "size",
        "trouble",
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
        open_calls: int = 0,
    ) -> None:
        """Go on after `chain`: in segment `number` at `size`, or in the next one if None."""
        self.directory = directory
        self.chain = chain
        self.number = number
        self.size = size or 0
        self.open_calls = open_calls
        self.gap: tuple[str, int] | None = None
        """Code and number of the records that failed, to be written when it works again."""
        self.trouble = True
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
        self._head.store(chain.seq, chain.hash, open_calls)

    @property
    def name(self) -> str:
        """The writer's id."""
        return self.directory.name

    def commit(self, data: bytes, open_calls: int) -> None:
        """Write the lines that were sealed since the last commit; raise and forget them if not."""
        size = len(data)
        try:
            if os_write(self._fd, data) != size:
                raise OSError(errno.ENOSPC, "short write")  # noqa: TRY301 - it is one
        except OSError as error:
            self._roll_back(error)
            raise
        chain = self.chain
        self.size += size
        self.open_calls = open_calls
        self._good_seq = seq = chain.seq
        self._good_hash = digest = chain.hash
        self._head.store(seq, digest, open_calls)
        if chain.second != self._checked:
            self._checked = chain.second
            self._look_for_removal()

    def mend(self) -> None:
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
            self.append(Event(event="audit.recovered", code=code, count=count), 0)
            self.gap = None
        self.trouble = False

    def append(self, event: Event, opens: int) -> None:
        """Seal and commit one event of a cold path."""
        self.commit(self.seal(event), self.open_calls + opens)

    def seal(self, event: Event) -> bytes:
        """The next line, to be committed."""
        return self.chain.seal(event.body(), self._clock())

    def mark(self, event: EventName, number: int | None = None) -> None:
        """Append an `audit.*` event about a segment, by default the current one."""
        segment = f"{self.name}/{number or self.number}"
        self.append(Event(event=event, policy=self._policy, segment=segment), 0)

    def rotate(self) -> bool:
        """End the current segment and begin the next; False if that has to wait."""
        try:
            if self.trouble:
                self.mend()
            self.mark("audit.segment_closed")
        except OSError:
            return False
        self._detach(resume=False)
        with suppress(OSError):  # the segment is closed; the next record begins the new one
            self.mend()
        return True

    def forget(self, number: int) -> int:
        """Delete a closed segment: first the record, then the file; returns its size."""
        if self.trouble:
            self.mend()
        file = segment_path(self.directory, number)
        size = file.stat().st_size
        self.mark("audit.segment_deleted", number)
        file.unlink()
        return size

    def close(self, *, clean: bool = True) -> None:
        """Give the writer up; `clean` saves the next start a scan."""
        clean = clean and not self._disowned
        if clean and self._cut:
            try:
                self.mend()
            except OSError:
                clean = False
        if clean and not self._head.is_removed():
            self._head.seal(self._good_seq, self._good_hash, self.open_calls)
        self._detach(resume=False)
        self._head.close()
        self._lock.release()

    def disown(self) -> None:
        """In a forked child: the file, the lock and HEAD are the parent's."""
        self._detach(resume=False)
        self._disowned = True

    def _roll_back(self, error: OSError) -> None:
        self.chain.rewind(self._good_seq, self._good_hash)
        self.trouble = self._cut = True
        if error.errno == errno.EBADF:
            self._fd = -1
            self._resume = True
            return
        with suppress(OSError):  # then `mend` does it
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
            header = Event(
                event="audit.started",
                policy=self._policy,
                segment=f"{self.name}/{self.number}",
                count=self.open_calls,
                prev=self._good_hash.decode(),
            )
            self.append(header, 0)
        except OSError:
            self._detach(resume=False)
            self.number, self.size = previous
            with suppress(OSError):
                file.unlink()
            raise

    def _detach(self, *, resume: bool) -> None:
        fd, self._fd = self._fd, -1
        self._resume = resume
        self._cut = False
        self.trouble = True
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
                self._head.store(self._good_seq, self._good_hash, self.open_calls)

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
