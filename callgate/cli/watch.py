"""Tell when a policy file or one of its manifests has changed. IO.

Polls `stat` and compares contents, which works where notifications do not: network file
systems, container mounts, and editors that replace a file by renaming another over it.
Reading happens in a thread, so that a slow disk does not stop the calls.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from callgate.policy.policy import Policy, read_at_most
from callgate.policy.problems import PolicyError
from callgate.policy.purpose import ROUTER
from callgate.policy.source import MAX_SOURCE_BYTES

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator

_Stamp = tuple[int, int, int] | None


async def watch(
    path: str | os.PathLike[str], interval: float = 1.0, *, since: Policy | None = None
) -> AsyncIterator[Policy | PolicyError]:
    """Yield the new policy, or why there is none, each time the contents have changed.

    That is since the caller loaded `since`; without it, since watching starts. A file that is
    missing is one error, not one for every look.
    """
    watcher = Watcher(Path(path), since)
    found = await asyncio.to_thread(watcher.look)
    if since is not None and found is not None:
        yield found
    while True:
        await asyncio.sleep(interval)
        found = await asyncio.to_thread(watcher.look)
        if found is not None:
            yield found


class Watcher:
    """One look at a time; blocking, so that it can be tested without waiting."""

    def __init__(self, path: Path, since: Policy | None = None) -> None:
        self._path = path
        self._files: tuple[Path, ...] = (path,) if since is None else since.files
        self._stamps: tuple[_Stamp, ...] | None = None
        self._digest: bytes | None = None
        self._purpose = ROUTER if since is None else since.purpose
        self._revision = None if since is None else since.revision

    def look(self) -> Policy | PolicyError | None:
        """Return what the files now say, if that differs from the last look."""
        # Stamps and contents from before reading: a change while reading is seen next time.
        stamps = tuple(_stamp(file) for file in self._files)
        if stamps == self._stamps:
            return None
        digest = self._contents()
        changed = digest != self._digest
        self._stamps, self._digest = stamps, digest
        return self._load() if changed else None

    def _load(self) -> Policy | PolicyError | None:
        try:
            policy = Policy.load(self._path, purpose=self._purpose)
        except PolicyError as error:
            # An invalid file names no manifests; those of the last valid one stay watched.
            self._revision = None
            return error
        if policy.files != self._files:
            # What the new ones held before this reading is not known: read once more.
            self._files = policy.files
            self._stamps = self._digest = None
        if policy.revision == self._revision:
            return None
        self._revision = policy.revision
        return policy

    def _contents(self) -> bytes:
        digest = hashlib.sha256()
        for file in self._files:
            try:
                data = read_at_most(file, MAX_SOURCE_BYTES)
                digest.update(b"\1" + hashlib.sha256(data).digest())
            except (OSError, ValueError):
                digest.update(b"\0")
        return digest.digest()


def _stamp(file: Path) -> _Stamp:
    """Return what changes with the contents, and with a rename over the file."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)
