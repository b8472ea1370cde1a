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

from callgate.launcher.warden.warden_stdlib import ignore_os_error

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
    return _Walk(path, tuple(writable), check, follow=True).open(root)


def open_below(folder: int, path: str, *, make: bool = False) -> int:
    """Open what is below an open directory, following no link.

    With `make` a part that is missing is made, as a directory, also the last one.
    """
    return _Walk(path, (), None, follow=False, make=make).open(os.dup(folder)).fd


class _Walk:
    """One path on its way from a directory to what it names."""

    def __init__(
        self,
        path: str,
        writable: tuple[tuple[int, int], ...],
        check: Callable[[os.stat_result, str], None] | None,
        *,
        follow: bool,
        make: bool = False,
    ) -> None:
        self._path = path
        self._writable = writable
        self._check = check
        self._follow = follow
        self._make = make
        self._names = list(reversed(_parts(path)))
        self._links = 0
        self._way: list[Opened] = []

    def open(self, start: int) -> Opened:
        """Return the end of the path; `start` is closed, unless it is the end."""
        try:
            self._enter(start, "")
            while self._names:
                self._step(self._names.pop())
            return self._way.pop()
        except OSError as error:
            if not str(error.filename).startswith("/"):
                error.filename = self._path
            raise
        finally:
            self._leave(0)

    def _step(self, name: str) -> None:
        if name == "..":
            self._leave(max(1, len(self._way) - 1))
            return
        here = self._way[-1]
        if self._make:
            _make(name, here.fd)
        fd = os.open(name, _FLAGS, dir_fd=here.fd)
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            self._enter(fd, f"{here.real}/{name}")
            return
        try:
            target = self._read_link(fd, f"{here.real}/{name}")
        finally:
            os.close(fd)
        if target.startswith("/"):
            self._leave(1)
        self._names += reversed(_parts(target))

    def _read_link(self, fd: int, shown: str) -> str:
        if self._check is not None:
            self._check(os.fstat(fd), shown)
        place = self._way[-1].written
        if place is not None:
            raise UnsafePath(shown, f"a link in {place}, which agents can write to")
        if not self._follow:
            raise UnsafePath(shown, "a link where something is to be mounted")
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        return os.readlink("", dir_fd=fd)

    def _enter(self, fd: int, real: str) -> None:
        written = self._way[-1].written if self._way else None
        self._way.append(Opened(fd, real, written))  # first, so that it is closed in any case
        status = os.fstat(fd)
        if written is None and (status.st_dev, status.st_ino) in self._writable:
            self._way[-1].written = real or "/"
        if self._check is not None:
            self._check(status, real or "/")

    def _leave(self, depth: int) -> None:
        while len(self._way) > depth:
            os.close(self._way.pop().fd)


def _make(name: str, folder: int) -> None:
    with ignore_os_error:  # it is there already; what went wrong else, the open after it says
        os.mkdir(name, 0o755, dir_fd=folder)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
