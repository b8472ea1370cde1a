"""Tell when a policy file or one of its manifests has changed. IO.

Polls `stat` and compares contents, which works where notifications do not: network file
systems, container mounts, and editors that replace a file by renaming another over it.

A file is believed when two looks agree: its stat and its contents were the same, with a pause
between. A file that is truncated and then written in steps, or is missing between a delete and
a create, is seen in the middle by one look, and by the next in another state. No look reads on
the event loop. One that hangs delays nothing but the next look: a daemon thread makes it, and
nobody waits for that thread at the end.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from callgate.policy import Policy, PolicyError
from callgate.user_files import answer_in_time

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")

HURRY_S: Final = 0.1
"""Between two looks that somebody asked for: who sends SIGHUP has finished writing."""

_Stamp = tuple[int, int, int, int, int] | None


async def watch(
    path: str | os.PathLike[str],
    interval: float = 1.0,
    *,
    since: Policy | None = None,
    asked: asyncio.Event | None = None,
) -> AsyncIterator[Policy | PolicyError]:
    """Yield the new policy, or why there is none, each time the contents have changed.

    That is since the caller loaded `since`; without it, since watching starts. A file that is
    missing is one error, not one for every look. `asked` makes it look at once, and yield what
    it finds also if that is no news.
    """
    watcher = Watcher(Path(path), since)
    asked = asyncio.Event() if asked is None else asked
    first = since is None
    while True:
        found = await in_daemon_thread(watcher.look)
        if found is not None and not first:
            yield found
        first = first and found is None
        if watcher.is_hurried:
            await asyncio.sleep(min(HURRY_S, interval))
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await asked.wait()
        if asked.is_set():
            asked.clear()
            watcher.ask()


class Watcher:
    """One look at a time; blocking, so that it can be tested without waiting."""

    def __init__(self, path: Path, since: Policy | None = None) -> None:
        self._path = path
        self._former = since
        self._files: tuple[Path, ...] = (path,) if since is None else since.files
        self._stamps: tuple[_Stamp, ...] | None = None
        """Of the last two looks that agreed; None if a file system gave no answer."""
        self._seen: object = None
        """What the last look saw, while the next has not seen it, too."""
        self._told: object = None if since is None else _gist(since)
        self.is_hurried = False
        """Whether somebody waits for the next look."""

    def ask(self) -> None:
        """Make the next two looks that agree return what they saw, also if it is no news."""
        self._stamps = self._seen = self._told = None
        self.is_hurried = True

    def look(self) -> Policy | PolicyError | None:
        """Return what the files now say, if the last look saw it too and it is news."""
        # Before the contents are read: a change while reading is seen by the next look.
        stamps = _stamps(self._files)
        if stamps is not None and stamps == self._stamps and self._seen is None:
            return None
        found = self._load()
        if isinstance(found, Policy) and found.files != self._files:
            # The stamps of the new ones are not known yet, so that this look counts for nothing.
            self._files, self._seen = found.files, None
            self._stamps = None
            return None
        gist = _gist(found)
        if self._seen != (stamps, gist):
            self._seen = (stamps, gist)
            return None
        self._stamps, self._seen, self.is_hurried = stamps, None, False
        if gist == self._told:
            return None
        self._told = gist
        if isinstance(found, Policy):
            self._former = found
        return found

    def _load(self) -> Policy | PolicyError:
        try:
            return Policy.load(self._path, former=self._former)
        except PolicyError as error:
            # An invalid file names no manifests; those of the last valid one stay watched.
            return error


def _gist(found: Policy | PolicyError) -> object:
    """Return what tells whether two looks saw the same."""
    if isinstance(found, Policy):
        return found.revision, found.kept
    return found.problems, found.more


def _stamps(files: tuple[Path, ...]) -> tuple[_Stamp, ...] | None:
    try:
        return answer_in_time(f"stat {files[0]}", lambda: tuple(map(_stamp, files)))
    except TimeoutError:
        return None


def _stamp(file: Path) -> _Stamp:
    """Return what changes with the contents, and with a rename over the file."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns. Unlike a thread of an executor nobody joins this one at exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # T, where there is no error

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001  # raised again on the loop
            error = raised
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="callgate-watch", daemon=True).start()
    return await done
