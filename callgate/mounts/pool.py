"""Threads for sync tools: kept for the next one, let go when there is none for a while.

Daemons, unlike those of `concurrent.futures`: a tool that never ends was answered for at its
deadline, and may not keep the program from ending.
"""

from __future__ import annotations

from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_S = 10.0
"""How long a thread waits for its next work."""

_Work = tuple["Future[Any]", "Callable[[], Any]"]


class Pool:
    """At most so many threads. What is submitted beyond that waits: its calls hold slots."""

    __slots__ = ("_idle", "_lock", "_most", "_threads", "_waiting")

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: SimpleQueue[_Work] = SimpleQueue()
        self._lock = Lock()
        """Of the two counters below."""
        self._threads = 0
        self._idle = 0
        """Threads that wait, less the work that waits for one of them."""

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Run work in a thread; `cancel` takes back what has not begun."""
        with self._lock:
            if self._idle > 0 or self._threads >= self._most:
                self._idle -= 1
            else:
                # Raises if the system has no more; then nothing waits for it.
                Thread(target=self._run, name="callgate tool", daemon=True).start()
                self._threads += 1
        future: Future[Any] = Future()
        self._waiting.put((future, work))
        return future

    def _run(self) -> None:
        while True:
            try:
                future, work = self._waiting.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if self._idle > 0:  # else there is work that counts on this thread
                        self._idle -= 1
                        self._threads -= 1
                        return
                continue
            _do(future, work)
            del future, work  # or their results would stay until there is more to do
            with self._lock:
                self._idle += 1


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001  # it is raised where somebody waits
        future.set_exception(error)
    else:
        future.set_result(result)
