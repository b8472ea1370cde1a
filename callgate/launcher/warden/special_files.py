"""Find what is neither a file, a directory nor a link below a mount, and so leads out of it.

A socket, a FIFO and a device reach a process or a driver of the host, also through a mount that
is read-only: it says nothing about them. The search is bounded in entries, depth and time,
and refuses where it cannot look, because what it did not see would be a way out.

What a process of the host makes after the search is not found. From version 9 on landlock
refuses to connect to it (Linux 7.1); before that nothing does.

Stdlib only: the warden loads this.
"""

from __future__ import annotations

import os
import stat
import time

from callgate.launcher.warden.safe_path import UnsafePath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MAX_ENTRIES = 1_000_000
"""About a second. A large repository with all its packages has some hundred thousand."""
MAX_SECONDS = 10.0
"""A third of what a launch may take."""
MAX_DEPTH = 200
"""Each level holds two descriptors of the 1,024 that a process usually may open."""
MAX_SPECIAL = 256
"""Each that is found is one more mount of the sandbox."""
_ADVICE = "mount less of it, or write `sockets: true` on the mount"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def find_special_files(root: int, path: str, skip: Collection[tuple[int, int]]) -> Iterator[int]:
    """Yield each as a descriptor, which is closed afterwards; `skip` names directories."""
    if not stat.S_ISDIR(os.fstat(root).st_mode):
        if _is_special(root):
            raise UnsafePath(path, "a socket, FIFO or device: write `sockets: true` on the mount")
        return
    for count, (folder, name) in enumerate(_search(root, path, skip)):
        if count >= MAX_SPECIAL:
            raise UnsafePath(path, f"more than {MAX_SPECIAL} sockets: {_ADVICE}")
        yield from _open_special(folder, name)


def _search(root: int, path: str, skip: Collection[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """Yield what looks special: its directory, open, and its name."""
    until = time.monotonic() + MAX_SECONDS
    entries = 0
    first = os.open(".", _OPEN, dir_fd=root)
    way = [(first, os.scandir(first))]
    try:
        while way:
            folder, inner = way[-1]
            entry = next(inner, None)
            if entry is None:
                inner.close()
                os.close(way.pop()[0])
                continue
            entries += 1
            if entries > MAX_ENTRIES or len(way) > MAX_DEPTH or time.monotonic() > until:
                raise UnsafePath(path, f"too large to search for sockets: {_ADVICE}")
            if entry.is_dir(follow_symlinks=False):
                opened = _open_folder(folder, entry.name, path, skip)
                if opened is not None:
                    way.append((opened, os.scandir(opened)))
            elif not (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
                yield folder, entry.name
    finally:
        for folder, inner in way:
            inner.close()
            os.close(folder)


def _open_special(folder: int, name: str) -> Iterator[int]:
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return
    try:
        if _is_special(fd):
            yield fd
    finally:
        os.close(fd)


def _open_folder(
    folder: int, name: str, path: str, skip: Collection[tuple[int, int]]
) -> int | None:
    """Open a directory to search; None for one to skip, or that an agent cannot enter either."""
    try:
        fd = os.open(name, _OPEN, dir_fd=folder)
    except PermissionError:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if status.st_uid != os.geteuid() and not os.access(name, os.X_OK, dir_fd=folder):
            return None
        raise UnsafePath(
            path, f"{name} below it cannot be searched for sockets: {_ADVICE}"
        ) from None
    except OSError:  # gone, or something else by now
        return None
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) in skip:
        os.close(fd)
        return None
    return fd


def _is_special(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
