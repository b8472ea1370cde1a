"""Copy what a contained command prints to our own stdout or stderr, as it comes.

A thread for each stream does it: our stdout is shared with whoever started us, must not be made
non-blocking, and may stand still for as long as its reader likes (a pager). A command whose reader
stands still waits, too, as it would without us; its time runs on. When the reader is gone the
command's pipe is closed, so that the command itself gets SIGPIPE or EPIPE. What the command wrote
before its end is still copied after its end; a process that left its tree and holds the pipe open
is not waited for.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from callgate.launcher.capture import Masker

if TYPE_CHECKING:
    from collections.abc import Iterable

READ_BYTES: Final = 64 * 1024
MAX_LEFT_BYTES: Final = 1024 * 1024
"""Read after the end: as large as a pipe can be made without privileges."""


class PassThrough:
    """One stream of the command, copied from `source` to `target` with the secrets masked.

    `source` is non-blocking and belongs to this object, which closes it. What is over `max_bytes`
    is read and dropped, so that the command goes on.
    """

    def __init__(
        self, source: int, target: int, *, secrets: Iterable[bytes], max_bytes: int | None
    ) -> None:
        self._source = source
        self._target = target
        self._masker = Masker(secrets)
        self._room = max_bytes
        self._loop = asyncio.get_running_loop()
        self._copied = asyncio.Event()
        self._wake_read, self._wake_write = os.pipe()
        self.truncated = False
        """Whether something was dropped."""
        # A daemon: a reader that stands still for ever does not hold us after a signal.
        threading.Thread(target=self._run, name="callgate-output", daemon=True).start()

    async def finish(self) -> None:
        """Wait until all is copied that the command, which has ended, has printed."""
        os.close(self._wake_write)
        await self._copied.wait()

    def _run(self) -> None:
        try:
            with suppress(OSError):  # our reader is gone, and the command will notice
                self._copy()
        finally:
            os.close(self._source)
            os.close(self._wake_read)
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._copied.set)

    def _copy(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        left: int | None = None
        while left is None or left > 0:
            ready = [fd for fd, _ in poll.poll()] if left is None else []
            if self._wake_read in ready:
                left = MAX_LEFT_BYTES
            try:
                data = os.read(self._source, READ_BYTES)
            except BlockingIOError:
                if left is not None:
                    break
                continue
            if not data:
                break
            self._show(self._masker.feed(data))
            left = None if left is None else left - len(data)
        self._show(self._masker.flush())

    def _show(self, data: bytes) -> None:
        if self._room is not None:
            shown = data[: self._room]
            self.truncated |= len(shown) < len(data)
            self._room -= len(shown)
            data = shown
        while data:
            data = data[os.write(self._target, data) :]
