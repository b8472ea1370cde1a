"""Await what blocks, in a daemon thread of its own.

A file system that hangs must neither stop the event loop, nor use up a pool that others share,
nor keep the program from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Start `work` in a new thread; return its result to come. A cancel does not end the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        method: Callable[[Any], None]
        value: Any
        try:
            method, value = future.set_result, work()
        except Exception as error:  # noqa: BLE001  # it is raised where the future is awaited
            method, value = future.set_exception, error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, method, value)

    threading.Thread(target=run, name="callgate-monitor", daemon=True).start()
    return future
