"""`bandwidth`: an agent's frames are paced, in chunks, both ways.

The one place where waiting is the point, so the one place with a task: aiolimiter's leaky
bucket lets a chunk through when its bytes have dripped out. A chunk is written when the former
one is gone, so that what waits, waits here: a cancel still goes before whole frames, never into
one that has begun, and a frame that has not begun can be taken back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from aiolimiter import AsyncLimiter

from callgate.gate.pipes import FLOOD_FRAMES, HIGH_WATER_BYTES, LOW_WATER_BYTES

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


class PacedWriter:
    """A `Pipe` that writes no faster than its pace."""

    def __init__(self, writer: Writer, pace: Pace) -> None:
        self._writer = writer
        self._pace = pace
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._begun = False
        """Whether some of the first frame has been written."""
        self._closed = False
        self.full = False
        self._task: asyncio.Task[None] | None = None
        self.on_full: Callable[[], None] = _nothing
        self.on_drained: Callable[[], None] = _nothing

    @property
    def flooded(self) -> bool:
        """Whether far more waits than anybody reads."""
        return len(self._waiting) > FLOOD_FRAMES

    def write(self, frames: list[bytes], first: Sequence[bytes] = ()) -> None:
        if self._closed:
            return
        position = 1 if self._begun else 0
        for frame in reversed(first):
            self._waiting.insert(position, frame)
        self._waiting.extend(frames)
        self._bytes += sum(map(len, first)) + sum(map(len, frames))
        if not self.full and self._bytes > HIGH_WATER_BYTES:
            self.full = True
            self.on_full()
        if self._task is None and self._waiting and not self._writer.broken:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    def withdraw(self, frame: bytes) -> bool:
        for position, waiting in enumerate(self._waiting):
            if waiting is frame and not (position == 0 and self._begun):
                del self._waiting[position]
                self._bytes -= len(frame)
                self._look_at_level()
                return True
        return False

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
                self._look_at_level()
        finally:
            self._task = None

    def _look_at_level(self) -> None:
        if self.full and self._bytes <= LOW_WATER_BYTES:
            self.full = False
            self.on_drained()

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
        reader.release("pace")

    def paced(data: bytes) -> None:
        received(data)
        reader.hold("pace")
        task = asyncio.get_running_loop().create_task(pay(len(data)))
        waiting.add(task)
        task.add_done_callback(waiting.discard)

    reader.on_data = paced
    reader.read_bytes = pace.chunk_bytes


def _nothing() -> None:
    pass
