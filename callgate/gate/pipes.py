"""Bytes between file descriptors and peers, without a task or a future a frame.

`Reader` hands whole reads to a function, `Writer` writes frames with as few system calls as
the other side allows and keeps whole frames while it does not drain them. Both work on pipes,
sockets and terminals; what cannot be polled (a file that was redirected) is read in a thread
and written at once. Neither buffers without a bound: `Writer.on_full` and `on_drained` tell
who should stop reading meanwhile, and a `Reader` stands still while anybody holds it.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from callgate.peers.inflight import MAX_WAITING_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_BYTES: Final = 64 * 1024
"""A read. From 256 KiB on the C library maps memory anew for each, which costs ten times as
much as to read a small message."""
LARGE_READ_BYTES: Final = 512 * 1024
"""The next read after one that was full: then there is more to gain than that costs. Half of what a
pipe holds, so that its other side can fill the other half while this one is handled."""
PIPE_BYTES: Final = 1024 * 1024
"""What an unprivileged process may make of a pipe on Linux; large frames need fewer turns."""
HIGH_WATER_BYTES: Final = 1024 * 1024
"""What may wait in a writer before its source is not read any more."""
LOW_WATER_BYTES: Final = 256 * 1024
JOINED_BYTES: Final = 16 * 1024
"""Frames up to this are joined for one write: to copy them costs less than a system call."""
FLOOD_FRAMES: Final = 16_384
"""Only answers of ours come to so many: most are small, 16 MiB or so."""

_F_SETPIPE_SZ: Final = 1031
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

MAPPED_BYTES: Final = 4 * 1024 * 1024
"""From here on a block is mapped: four reads; who sends such frames waits for more than that."""
KEPT_BYTES: Final = 16 * 1024 * 1024
"""Free memory that is not given back; only a gate that large frames pass ever has so much."""


def enlarge(fd: int) -> None:
    """Make a pipe hold more, where that can be."""
    with suppress(OSError, ImportError):
        import fcntl  # noqa: PLC0415  # not on Windows

        fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_BYTES)


def keep_blocks() -> None:
    """Have the C library use the memory of large frames again; one that is not glibc does not.

    glibc maps every block above 128 KiB anew, and gives the end of its heap back as soon as that is
    free; so each read and each copy of a large frame costs the kernel a page fault for every 4 KiB.
    With frames of 100 KB that was a third of all that a gate does.
    """
    if sys.platform != "linux":
        return
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415  # a Python may be built without it

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


class Reader:
    """Reads a descriptor until its end; `on_end` is called once, after the last data."""

    def __init__(
        self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self.fd = fd
        self.on_data = on_data
        self._on_end = on_end
        self.read_bytes: int | None = None
        """What a read may have at most; None leaves that to what there is."""
        self._next_bytes = READ_BYTES
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._holds: set[str] = set()
        self._thread: asyncio.Task[None] | None = None
        self._reading = asyncio.Event()
        self._reading.set()
        self.is_polled = _can_poll(fd)
        """Whether the loop says when there is something; else a thread reads."""
        if self.is_polled:
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._readable)
        else:
            self._thread = self._loop.create_task(self._read_in_thread())

    def pause(self, why: str) -> None:
        """Read nothing until this reason is gone, and all others."""
        if not self._holds:
            self._reading.clear()
            if self.is_polled and not self._ended:
                self._loop.remove_reader(self.fd)
        self._holds.add(why)

    def resume(self, why: str) -> None:
        """A reason is gone."""
        if why not in self._holds:
            return
        self._holds.remove(why)
        if not self._holds:
            self._reading.set()
            if self.is_polled and not self._ended:
                self._loop.add_reader(self.fd, self._readable)

    def is_paused_for(self, why: str) -> bool:
        """Return True if this is a reason why nothing is read."""
        return why in self._holds

    def close(self) -> None:
        """Stop reading; `on_end` is not called any more. The descriptor stays open."""
        if not self._ended:
            self._ended = True
            if self.is_polled and not self._holds:
                self._loop.remove_reader(self.fd)
            if self._thread is not None:
                self._thread.cancel()

    def _readable(self) -> None:
        size = self.read_bytes or self._next_bytes
        try:
            data = os.read(self.fd, size)
        except BlockingIOError:
            return
        except OSError:  # EIO: a terminal whose other side has gone
            data = b""
        if data:
            self._next_bytes = LARGE_READ_BYTES if len(data) >= READ_BYTES else READ_BYTES
            self.on_data(data)
        else:
            self.close()
            self._on_end()

    async def _read_in_thread(self) -> None:
        while True:
            await self._reading.wait()
            try:
                data = await asyncio.to_thread(os.read, self.fd, self.read_bytes or READ_BYTES)
            except OSError:  # a directory, a disk that fails
                data = b""
            await self._reading.wait()
            if not data:
                self._ended = True
                self._on_end()
                return
            self.on_data(data)


class FrameQueue:
    """Whole frames that wait to be written, in order, and what their number does to the source.

    Some of the first one may have been written: nothing goes before it, and it stays.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        """Of the waiting frames, less what has been written of the first."""
        self._begun = False
        """Whether some of the first frame has been written."""
        self.full = False
        """Whether its source should not be read for now."""
        self.on_full: Callable[[], None] = _nothing
        self.on_drained: Callable[[], None] = _nothing

    @property
    def flooded(self) -> bool:
        """Whether far more waits than anybody reads."""
        return len(self._waiting) > FLOOD_FRAMES or self._bytes > MAX_WAITING_BYTES

    def withdraw(self, head: bytes) -> bytes | None:
        """Take the frame that begins with `head` out again; None if any of it has been written."""
        for position, waiting in enumerate(self._waiting):
            if waiting.startswith(head) and not (position == 0 and self._begun):
                del self._waiting[position]
                self._bytes -= len(waiting)
                self._tell_if_drained()
                return waiting
        return None

    def _put(self, frames: Sequence[bytes], first: Sequence[bytes] = ()) -> None:
        """Add `frames` at the end, and `first` before all that has not begun."""
        position = 1 if self._begun else 0
        for frame in reversed(first):
            self._waiting.insert(position, frame)
        self._waiting.extend(frames)
        self._bytes += sum(map(len, first)) + sum(map(len, frames))
        if not self.full and self._bytes > HIGH_WATER_BYTES:
            self.full = True
            self.on_full()

    def _tell_if_drained(self) -> None:
        if self.full and self._bytes <= LOW_WATER_BYTES:
            self.full = False
            self.on_drained()


class Writer(FrameQueue):
    """Writes frames to a descriptor, in order; a `Pipe` for outboxes.

    When the other side has gone it keeps what it could not write: it may be withdrawn.
    """

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        super().__init__()
        self._fd = fd
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._offset = 0
        """How many bytes of the first frame are gone."""
        self._polling = False
        self._watching = False
        self.broken = False
        """Whether the other side has gone."""
        self._closed = False
        self._empty: asyncio.Event | None = None
        self._polled = _can_poll(fd)
        if self._polled:
            os.set_blocking(fd, False)

    def write(self, frames: list[bytes], first: Sequence[bytes] = ()) -> None:
        if self._closed:
            return
        if self._waiting or self.broken:
            self._wait(frames, first)
            return
        if first:
            frames = [*first, *frames]
        if len(frames[0]) > JOINED_BYTES:
            self._waiting.extend(frames)
            self._bytes += sum(map(len, frames))
            self._writable()
            if self._waiting:
                self._wait([])
            return
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        written = self._try(data)
        if written == len(data):
            return
        for position, frame in enumerate(frames):
            if written < len(frame):
                self._offset, self._begun = written, written > 0
                self._bytes -= written
                self._wait(frames[position:])
                return
            written -= len(frame)

    def watch_other_side(self) -> None:
        """Learn of its end without a write: a client that has died may leave us nothing to say."""
        if self._polled and not self._closed:
            with suppress(OSError):
                self._loop.add_reader(self._fd, self._look_at_other_side)
                self._watching = True

    def close(self) -> None:
        """Write no more. The descriptor stays open."""
        self._closed = True
        self._waiting.clear()
        self._bytes = self._offset = 0
        self._begun = False
        self._poll(wanted=False)
        self._stop_watching()
        if self._empty is not None:
            self._empty.set()

    async def drain(self) -> None:
        """Wait until all is written, or nobody will read it."""
        if self._waiting and not self.broken and not self._closed:
            self._empty = asyncio.Event()
            await self._empty.wait()

    def _wait(self, frames: Sequence[bytes], first: Sequence[bytes] = ()) -> None:
        self._put(frames, first)
        self._poll(wanted=not self.broken)

    def _try(self, data: bytes | memoryview) -> int:
        """Write what can be written; a file takes everything."""
        try:
            written = os.write(self._fd, data)
            while not self._polled and written < len(data):
                written += os.write(self._fd, data[written:])
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            return 0
        return written

    def _break(self) -> None:
        self.broken = True
        self._poll(wanted=False)
        self._stop_watching()
        if self._empty is not None:
            self._empty.set()
        self._loop.call_soon(self._on_broken)

    def _writable(self) -> None:
        while self._waiting:
            frame = self._waiting[0]
            part = memoryview(frame)[self._offset :] if self._offset else frame
            written = self._try(part)
            if self.broken:
                return
            self._bytes -= written
            if written < len(part):
                self._offset += written
                self._begun = self._offset > 0
                break
            self._offset, self._begun = 0, False
            self._waiting.popleft()
        if not self._waiting:
            self._poll(wanted=False)
            if self._empty is not None:
                self._empty.set()
        self._tell_if_drained()

    def _poll(self, *, wanted: bool) -> None:
        if wanted and not self._polling:
            self._loop.add_writer(self._fd, self._writable)
        elif self._polling and not wanted:
            self._loop.remove_writer(self._fd)
        self._polling = wanted

    def _look_at_other_side(self) -> None:
        if _has_hung_up(self._fd):
            self._break()
        else:
            self._stop_watching()  # somebody writes to our stdout: that is no news of an end

    def _stop_watching(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_reader(self._fd)


def _has_hung_up(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


def _can_poll(fd: int) -> bool:
    """Whether the loop can wait for it: not for a regular file, nor for /dev/null."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return True
    return stat.S_ISCHR(mode) and os.isatty(fd)


def _nothing() -> None:
    pass
