"""Read a file that a user or an agent's author named: bounded in kind, in size and in time.

Such a file may be a link (Kubernetes mounts a ConfigMap as one) and may belong to anybody, but it
may also have become a FIFO, a device, a directory, or lie in a file system that gives no answer.
So it is judged by what its descriptor shows, not by its name; no open waits for another side; and
the reading is done by a daemon thread for which nobody waits longer than `READ_S`. One thread at
most hangs for each path: until it is back, the path cannot be read.

The files that callgate makes for itself have other rules, those of `callgate.files`: nobody else
may have prepared them.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from callgate.files import UnsafePath, find_file_fault

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

READ_S: Final = 3.0
"""A policy is at most 1 MiB: a disk that has to spin up first gives it within 3 s."""

_hanging: set[str] = set()
"""What is being read by a thread that nobody waits for any more."""
_lock = threading.Lock()


def read_user_file(path: str | os.PathLike[str], limit: int, *, pipe: bool = False) -> bytes:
    """Return a file, or its first `limit` + 1 bytes, which tells that it is larger.

    Raises `OSError` for what is no regular file and for one that gives no answer in `READ_S`, and
    `ValueError` for a path with a NUL. With `pipe` a FIFO is read too (`callgate check <(…)`).
    """
    return answer_in_time(os.fspath(path), lambda: _read(path, limit, pipe=pipe))


def answer_in_time(path: str, ask: Callable[[], T]) -> T:
    """Return what `ask` returns or raise what it raises; `TimeoutError` if it does not in time."""
    if path in _hanging:
        raise _no_answer(path)
    found: list[T | Exception] = []

    def work() -> None:
        answer: T | Exception
        try:
            answer = ask()
        except Exception as error:  # noqa: BLE001  # raised again where it is waited for
            answer = error
        with _lock:
            found.append(answer)
            _hanging.discard(path)

    thread = threading.Thread(target=work, name="callgate-read", daemon=True)
    thread.start()
    thread.join(READ_S)
    with _lock:
        if not found:
            _hanging.add(path)
            raise _no_answer(path)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _no_answer(path: str) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"no answer in {READ_S:g} s", path)


def _read(path: str | os.PathLike[str], limit: int, *, pipe: bool) -> bytes:
    # Before it is opened, because opening a device may do something.
    _check(path, Path(path).stat(), pipe=pipe)
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if not pipe:
        flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        _check(path, os.fstat(file.fileno()), pipe=pipe)
        return file.read(limit + 1)


def _check(path: str | os.PathLike[str], status: os.stat_result, *, pipe: bool) -> None:
    if pipe and stat.S_ISFIFO(status.st_mode):
        return
    fault = find_file_fault(status, 0, owned=False, writing=False)
    if fault is not None:
        raise UnsafePath(path, fault)
