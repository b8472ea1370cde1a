"""Count what a run's workspace holds, in a directory or in a file system of its own.

IO, blocking: call it from a thread. A directory is counted file by file, and what its processes
hold open or mapped after it was deleted counts as well: it takes room until they let go. Files
that are under way in a socket belong to no process, so nothing can count them; memfd and
`/dev/shm` are memory, which has a limit of its own.

Nothing but the standard library: the look at the end of a run must not wait for psutil.
"""

# A walk of many descriptors does not need pathlib.
# ruff: noqa: PTH116, PTH123

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

WALK_TIMEOUT_NS: Final = 2_000_000_000
"""A workspace whose files cannot be counted in this time has too many of them."""
WALK_SHARE: Final = 10
"""Between two counts of a workspace passes so many times what the last one took."""
_BLOCK_BYTES: Final = 512
"""The unit of `st_blocks`, whatever the file system's own is."""
_DELETED_MAPPING: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) .* \(deleted\)$",
    re.MULTILINE,
)
"""A line of /proc/PID/maps: from, to, rights, offset, device, inode, path."""


class Uncountable(Exception):
    """The files of a workspace cannot be counted, or not in time."""


def count_workspace(root: Path, deadline_ns: int) -> tuple[int, int]:
    """Return bytes on disk and files (directories too) below `root`.

    Links are counted and not followed; a file with several names is counted once for its
    bytes. Holes take no room. A directory that nobody can read would be a place to hide.
    """
    size = files = 0
    seen: set[tuple[int, int]] = set()
    waiting = [os.fspath(root)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if time.monotonic_ns() > deadline_ns:
                        raise Uncountable
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    files += 1
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
                    elif status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in seen:
                            continue
                        seen.add((status.st_dev, status.st_ino))
                    size += status.st_blocks * _BLOCK_BYTES
        except (FileNotFoundError, NotADirectoryError):
            continue  # it was removed meanwhile; the next count sees what came in its place
        except OSError as error:
            raise Uncountable from error
    return size, files


def filesystem_use(root: Path | int) -> tuple[int, int]:
    """Return bytes and files of a workspace that is a file system of its own, by path or open."""
    status = os.statvfs(root)
    # The root directory is a file that nobody made.
    files = max(0, status.f_files - status.f_ffree - 1)
    return (status.f_blocks - status.f_bfree) * status.f_frsize, files


def count_deleted(pids: Iterable[int], device: int, deadline_ns: int) -> int:
    """Return bytes of deleted files on a device that these processes hold open or mapped.

    Each thread may have descriptors of its own, and the first thread may have ended before the
    others. Of a process that may not be looked into (never one in a sandbox), nothing counts.
    """
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        maps = b""
        for thread in _listed(f"/proc/{pid}/task"):
            place = f"/proc/{pid}/task/{thread}"
            for name in _listed(f"{place}/fd"):
                if time.monotonic_ns() > deadline_ns:
                    raise Uncountable
                with suppress(OSError):
                    _add_deleted(found, os.stat(f"{place}/fd/{name}"), device)
            # Threads share their memory, but one that has ended shows none.
            maps = maps or _content(f"{place}/maps")
        for key, size in _mapped(pid, maps, device):
            found[key] = max(size, found.get(key, 0))
    return sum(found.values())


def _listed(folder: str) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries]
    return []


def _add_deleted(found: dict[tuple[int, int], int], status: os.stat_result, device: int) -> None:
    if status.st_nlink == 0 and status.st_dev == device and stat.S_ISREG(status.st_mode):
        found[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES


def _content(path: str) -> bytes:
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def _mapped(pid: int, maps: bytes, device: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield deleted files that are mapped; only root learns how large they are.

    Others see which part is mapped: a file reaches at least as far as that does.
    """
    for line in _DELETED_MAPPING.finditer(maps):
        start, end, offset, major, minor = (int(word, 16) for word in line.groups()[:5])
        try:
            status = os.stat(f"/proc/{pid}/map_files/{start:x}-{end:x}")
        except PermissionError:
            if os.makedev(major, minor) == device:
                yield (device, int(line[6])), offset + end - start
        except OSError:
            continue
        else:
            one: dict[tuple[int, int], int] = {}
            _add_deleted(one, status, device)
            yield from one.items()


class Workspace:
    """The workspace of a run, counted file by file, but not too often.

    `pids` lists the run's processes, which may hold files that were deleted.
    """

    def __init__(
        self,
        root: Path,
        pids: Callable[[], Iterable[int]] = tuple,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._root = root
        self._pids = pids
        self._clock = clock
        self._next_ns = 0
        self._last: tuple[int, int] | None = None

    def read(self) -> tuple[int, int] | None:
        """Return bytes and files, perhaps of a little while ago; None if they cannot be counted."""
        start = self._clock()
        if start >= self._next_ns:
            self._last = None
            with suppress(Uncountable, OSError):
                self._last = self._count(time.monotonic_ns() + WALK_TIMEOUT_NS)
            end = self._clock()
            self._next_ns = end + (end - start) * WALK_SHARE
        return self._last

    def _count(self, deadline_ns: int) -> tuple[int, int]:
        size, files = count_workspace(self._root, deadline_ns)
        deleted = count_deleted(self._pids(), self._root.stat().st_dev, deadline_ns)
        return size + deleted, files
