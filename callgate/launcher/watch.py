"""One look at a run: measure in a thread, judge, tell.

The thread is a daemon of its own for each look: a file system that hangs must neither stop
the event loop, nor use up a pool that others share, nor keep the program from exiting. There
is at most one for each run; while it hangs there is no other look.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.launcher.monitor import Bounds, End, Look, judge
from callgate.model import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.errors import LimitInfo

HANG_NS = 10_000_000_000
"""A look takes milliseconds, and a slow count of files gives up by itself long before this."""


class Watch:
    """Looks at one run, and remembers what it has warned of."""

    def __init__(
        self,
        look: Callable[[], Look],
        bounds: Bounds,
        *,
        on_warning: Callable[[LimitInfo], object] | None = None,
        hang_ns: int = HANG_NS,
    ) -> None:
        self._look = look
        self._bounds = bounds
        self._hang_s = hang_ns / 1e9
        self._on_warning = on_warning
        self._near: frozenset[str] = frozenset()
        self.usage = Usage()
        """The last look, with the highest memory of all of them."""

    async def look_once(self) -> End | None:
        """One look; whether the run must end."""
        looking = _in_thread(self._look)
        try:
            async with asyncio.timeout(self._hang_s):
                look = await asyncio.shield(looking)
        except TimeoutError:
            # Only the workspace can hang like this, and what cannot be counted is exceeded.
            look = Look(self.usage, frozenset({"disk", "files"}))
            if judge(self._near, look, self._bounds).end is None:
                look = await looking
        peak = max(look.usage.memory_peak_bytes or 0, look.usage.memory_bytes or 0)
        peak = max(peak, self.usage.memory_peak_bytes or 0)
        self.usage = msgspec.structs.replace(
            look.usage, memory_peak_bytes=peak or None, cpu_ns=_most(self.usage, look.usage)
        )
        judgement = judge(self._near, look, self._bounds)
        self._near = judgement.near
        if self._on_warning is not None:
            for warning in judgement.warnings:
                self._on_warning(warning.limit)
        return judgement.end


def _most(before: Usage, now: Usage) -> int | None:
    """Processor time: a sum over living processes loses what those had that have ended."""
    known = [cpu_ns for cpu_ns in (before.cpu_ns, now.cpu_ns) if cpu_ns is not None]
    return max(known, default=None)


def _in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        try:
            method, value = future.set_result, work()
        except Exception as error:  # noqa: BLE001  # it is raised where the future is awaited
            method, value = future.set_exception, error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, method, value)

    threading.Thread(target=run, name="callgate-monitor", daemon=True).start()
    return future
