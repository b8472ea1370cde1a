"""`bandwidth`: an agent's frames are paced, in chunks, both ways.

The one place where waiting is the point, so the one place with a task: aiolimiter's leaky
bucket lets a chunk through when its bytes have dripped out. A chunk is written when the former
one is gone, so that what waits, waits here: a cancel still goes before whole frames, never into
one that has begun, and a frame that has not begun can be taken back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiolimiter import AsyncLimiter

from callgate.gate.pipes import FrameQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from callgate.gate.pipes import Reader, Writer

CHUNK_BYTES: Final = 16 * 1024
"""Small enough that a frame does not come in bursts, large enough to cost few turns."""
PERIOD_S: Final = 0.25
"""What may pass at once is a quarter of a second's worth."""


class Pace:
    """So many bits a second."""

    def __init__(self, bits_per_second: int) -> None:
        burst_bytes = max(1.0, bits_per_second / 8 * PERIOD_S)
        self._limiter = AsyncLimiter(burst_bytes, PERIOD_S)
        self.chunk_bytes = max(1, min(CHUNK_BYTES, int(burst_bytes)))

    async def pass_on(self, size: int) -> None:
        """Wait until `size` bytes may pass."""
        while size > 0:
            step = min(size, self.chunk_bytes)
            await self._limiter.acquire(step)
            size -= step


class PacedWriter(FrameQueue):
    """A `Pipe` that writes no faster than its pace."""

    def __init__(self, writer: Writer, pace: Pace) -> None:
        super().__init__()
        self._writer = writer
        self._pace = pace
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    def write(self, frames: list[bytes], first: Sequence[bytes] = ()) -> None:
        if self._closed:
            return
        self._put(frames, first)
        if self._task is None and self._waiting and not self._writer.broken:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    def close(self) -> None:
        """Write no more."""
        self._closed = True
        self._waiting.clear()
        self._bytes = 0
        if self._task is not None:
            self._task.cancel()
        self._writer.close()

    async def _drain(self) -> None:
        try:
            while self._waiting and not self._writer.broken:
                await self._pass_on(self._waiting[0])
                self._tell_if_drained()
        finally:
            self._task = None

    async def _pass_on(self, frame: bytes) -> None:
        """Write the first frame; if another went before it meanwhile, or it was taken, nothing."""
        chunk_bytes = self._pace.chunk_bytes
        for start in range(0, len(frame), chunk_bytes):
            chunk = frame[start : start + chunk_bytes]
            await self._pace.pass_on(len(chunk))
            await self._writer.drain()
            if self._writer.broken:
                return
            if not start and (not self._waiting or self._waiting[0] is not frame):
                return
            self._begun = True
            self._writer.write([chunk])
        self._begun = False
        self._waiting.popleft()
        self._bytes -= len(frame)


def pace_reading(reader: Reader, pace: Pace, received: Callable[[bytes], None]) -> None:
    """Read no faster than the pace: after each read, wait until its bytes may pass."""
    waiting: set[asyncio.Task[None]] = set()

    async def pay(size: int) -> None:
        await pace.pass_on(size)
        reader.resume("pace")

    def paced(data: bytes) -> None:
        received(data)
        reader.pause("pace")
        task = asyncio.get_running_loop().create_task(pay(len(data)))
        waiting.add(task)
        task.add_done_callback(waiting.discard)

    reader.on_data = paced
    reader.read_bytes = pace.chunk_bytes
