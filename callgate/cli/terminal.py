"""A person's terminal joined to an agent's, so that the agent can be used as if it ran here.

The agent has a PTY of its own inside its containment; this side holds the master. The
person's terminal is made raw, so that keys reach the agent's line discipline unseen: Ctrl-C
becomes a signal there, to the agent's foreground group, and not here. A change of the
window's size is handed on, and the kernel tells the agent.

The copying is done by a thread: the person's terminal is shared with the shell that started
us, so it must not be made non-blocking, and a terminal that was stopped (Ctrl-S) would
block an event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import struct
import termios
import threading
import tty
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from types import TracebackType

READ_BYTES: Final = 64 * 1024
MAX_TYPED_BYTES: Final = 64 * 1024
"""Typed or piped ahead of the agent; more stays in the person's terminal or pipe."""
FLUSH_S: Final = 2.0
"""For the last words to reach a slow terminal; a stuck one does not hold us for ever."""
END_OF_FILE: Final = b"\x04"
"""Ctrl-D, for an input that ends without being a terminal."""

_WINSIZE: Final = struct.Struct("HHHH")


class Size(NamedTuple):
    """Of a window, in characters."""

    rows: int
    columns: int


def window_size(fd: int) -> Size | None:
    """The window that a terminal is shown in; None if it is not a terminal."""
    try:
        data = fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(_WINSIZE.size))
    except OSError:
        return None
    rows, columns, _, _ = _WINSIZE.unpack(data)
    return Size(rows, columns)


def set_window_size(fd: int, size: Size) -> None:
    """Tell a PTY its window; its foreground processes get SIGWINCH if that is news."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, _WINSIZE.pack(size.rows, size.columns, 0, 0))


class Joined:
    """A context: inside, `stdin` and `stdout` are the terminal of the agent behind `master`.

    The master belongs to us and is closed at the end.
    """

    def __init__(self, master: int, stdin: int = 0, stdout: int = 1) -> None:
        self._master = master
        self._stdin = stdin
        self._stdout = stdout
        self._before: list[int | list[bytes | int]] | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="callgate-terminal", daemon=True)

    async def __aenter__(self) -> Self:
        self._forward_size()
        self._loop.add_signal_handler(signal.SIGWINCH, self._forward_size)
        if os.isatty(self._stdin):
            self._before = termios.tcgetattr(self._stdin)
            tty.setraw(self._stdin)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.remove_signal_handler(signal.SIGWINCH)
        os.close(self._wake_write)
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._ended.wait()
        if self._before is not None:
            with suppress(termios.error):  # the window was closed
                termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)
        os.close(self._wake_read)
        os.close(self._master)

    async def agent_gone(self) -> None:
        """Wait until nobody holds the agent's end any more."""
        await self._ended.wait()

    def _forward_size(self) -> None:
        size = window_size(self._stdin)
        if size is not None:
            with suppress(OSError):
                set_window_size(self._master, size)

    def _run(self) -> None:
        try:
            with suppress(OSError):  # a terminal or pipe was closed: there is nobody to copy for
                self._copy()
        finally:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._ended.set)

    def _copy(self) -> None:
        """Both ways until the agent's end is closed, or we are told to stop."""
        typed, last, open_input = b"", b"\n", True
        while True:
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            poll.register(self._master, select.POLLIN | (select.POLLOUT if typed else 0))
            if open_input and len(typed) < MAX_TYPED_BYTES:
                poll.register(self._stdin, select.POLLIN)
            ready = dict(poll.poll())
            if ready.get(self._master, 0) & ~select.POLLOUT:
                shown = self._printed()
                if shown is None:
                    return
                _write_all(self._stdout, shown)
            elif self._wake_read in ready:
                return
            if self._stdin in ready:
                data = os.read(self._stdin, READ_BYTES)
                open_input = bool(data)
                # In the middle of a line the first one only sends what there is of it.
                typed += data or (END_OF_FILE if last == b"\n" else END_OF_FILE * 2)
                last = data[-1:]
            if typed and ready.get(self._master, 0) & select.POLLOUT:
                with suppress(BlockingIOError):
                    typed = typed[os.write(self._master, typed) :]

    def _printed(self) -> bytes | None:
        """What the agent printed; None at its end, which a PTY says with EIO."""
        try:
            return os.read(self._master, READ_BYTES) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
