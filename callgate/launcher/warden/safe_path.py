"""Open a path part by part, so that no link and no name of a contained process decides.

What a run can write to (a *writable place*: a mount of an agent that this launcher runs) may hold
links that an earlier run planted, and may change at any time. So a path is never handed to
the kernel whole: each part is opened below the directory that was opened before it, without
following links. Links outside of writable places are read and followed here, as the kernel
would, because only the host's people can have made them. Inside of one they are refused.

The result is a descriptor, and that is what is bound or executed: it stays the same file,
whatever becomes of its name. A writable place is known by device and inode, so that another
way to the same directory is the same place.

Stdlib only: the warden loads this.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MAX_LINKS = 40
"""As many links does Linux follow in one path."""
_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
"""O_PATH needs no permission to read, and does not wait for the other end of a FIFO."""


class UnsafePath(OSError):
    """Raised for a path that a contained process may have prepared."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(errno.EPERM, fault, path)


class Opened:
    """An open path, and whether runs can write to it."""

    __slots__ = ("fd", "real", "written")

    def __init__(self, fd: int, real: str, written: str | None) -> None:
        self.fd = fd
        self.real = real
        """The path without links, as it was on the way."""
        self.written = written
        """The outermost writable place on the way, if there is one."""


def open_path(
    path: str,
    writable: Collection[tuple[int, int]] = (),
    check: Callable[[os.stat_result, str], None] | None = None,
) -> Opened:
    """Open an absolute path; `check` is called for each directory, link and file on the way.

    Raises `UnsafePath` for a link in a writable place, and `OSError` for what is not there.
    """
    root = os.open("/", _FLAGS | os.O_DIRECTORY)
    return _open(root, path, tuple(writable), check, follow=True)


def open_below(folder: int, path: str, *, make: bool = False) -> int:
    """Open what is below an open directory, following no link; `make` makes what is missing.

    What is missing is made as directories, also the last part.
    """
    if not make:
        return _open(os.dup(folder), path, (), None, follow=False).fd
    fd = os.dup(folder)
    for name in _parts(path):
        try:
            os.mkdir(name, 0o755, dir_fd=fd)
        except FileExistsError:
            pass
        try:
            inner = _open(os.dup(fd), name, (), None, follow=False).fd
        finally:
            os.close(fd)
        fd = inner
    return fd


def _open(
    start: int,
    path: str,
    writable: tuple[tuple[int, int], ...],
    check: Callable[[os.stat_result, str], None] | None,
    *,
    follow: bool,
) -> Opened:
    """Walk from `start`, which is closed in the end."""
    way = [Opened(start, "", None)]
    names = list(reversed(_parts(path)))
    links = 0
    try:
        _enter(way[0], os.fstat(start), writable, check)
        while names:
            name = names.pop()
            here = way[-1]
            if name == "..":
                if len(way) > 1:
                    os.close(way.pop().fd)
                continue
            shown = f"{here.real}/{name}"
            fd = os.open(name, _FLAGS, dir_fd=here.fd)
            status = os.fstat(fd)
            if not stat.S_ISLNK(status.st_mode):
                way.append(Opened(fd, shown, here.written))
                _enter(way[-1], status, writable, check)
                continue
            try:
                if check is not None:
                    check(status, shown)
                target = os.readlink("", dir_fd=fd)
            finally:
                os.close(fd)
            links += 1
            if not follow or here.written is not None:
                place = path if here.written is None else here.written
                raise UnsafePath(shown, f"a link, in {place}, which agents can write to")
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                for each in way[1:]:
                    os.close(each.fd)
                del way[1:]
            names += reversed(_parts(target))
        return way.pop()
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith("/"):
            error.filename = path
        raise
    finally:
        for each in way:
            os.close(each.fd)


def _enter(
    opened: Opened,
    status: os.stat_result,
    writable: tuple[tuple[int, int], ...],
    check: Callable[[os.stat_result, str], None] | None,
) -> None:
    if opened.written is None and (status.st_dev, status.st_ino) in writable:
        opened.written = opened.real or "/"
    if check is not None:
        check(status, opened.real or "/")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
