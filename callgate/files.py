"""Open the files and directories that callgate trusts: nobody else prepared them, none blocks.

Three rules, applied to a descriptor and not to a name, so that what was checked is what is used:

- A directory of ours, and each directory above it, belongs to root or to us, and nobody else may
  write to it. A sticky directory such as /tmp may stand above it: there others cannot replace what
  is ours. A link on the way counts if root or we made it. So no name below can be changed by
  anybody else between its check and its use.
- A file is a regular one. A link, a FIFO, a socket or a device in its place is refused, and never
  waited for.
- What callgate makes is for its user alone, 0700 and 0600, whatever the umask. Only the root of
  runs is 0711 where callgate is root, because the agents pass through it as other users.

On Windows there are no such owners and modes; only the last component is looked at there.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
MAX_LINKS: Final = 40
"""As many links does Linux follow in one path."""

DATABASE_PARTS: Final = ("", "-journal", "-wal", "-shm")
"""What SQLite keeps beside a file, and would read or write there whoever made it."""

_MAKING_DATABASE: Final = threading.Lock()
"""To close a file lets go of all locks that this process has on it, so a new database is closed
before any other thread can open it."""

_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)  # Windows would rewrite line ends
_GUARDED: Final[int] = _NOFOLLOW | _BINARY | getattr(os, "O_NONBLOCK", 0)
_STEP: Final[int] = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW
"""O_PATH, because a directory that may be passed through need not be readable."""

_WINDOWS: Final = os.name == "nt"


class UnsafePath(OSError):
    """Raised when somebody else may have prepared a path or may change it."""

    def __init__(self, path: str | os.PathLike[str], fault: str) -> None:
        super().__init__(errno.EPERM, fault, os.fspath(path))


def find_file_fault(status: os.stat_result, us: int, *, owned: bool, writing: bool) -> str | None:
    """Return why a file cannot be used, or None. `owned`: only root and we may change it."""
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file: move it away" if owned else "not a regular file"
    if writing and status.st_nlink > 1:
        return "the file has another name, too, a hard link: put a copy in its place"
    return _find_owner_fault(status, us) if owned else None


def find_directory_fault(status: os.stat_result, us: int, *, above: bool) -> str | None:
    """Return why a directory cannot be used, or None. `above`: it only leads to ours."""
    if not stat.S_ISDIR(status.st_mode):
        return "not a directory"
    if above and status.st_mode & stat.S_ISVTX and status.st_uid in {0, us}:
        return None
    return _find_owner_fault(status, us)


def _find_owner_fault(status: os.stat_result, us: int) -> str | None:
    if _WINDOWS:
        return None
    if status.st_uid not in {0, us}:
        return f"it belongs to another user ({status.st_uid}): chown it, or use another directory"
    others = stat.S_IWOTH
    # Where each user has a group of his own, of the same number, `umask 002` is usual: such a
    # group is nobody else (Debian's OpenSSH reasons the same way).
    if status.st_gid != status.st_uid:
        others |= stat.S_IWGRP
    if status.st_mode & others:
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o}): chmod go-w"
    return None


def secure_directory(
    path: str | os.PathLike[str], *, make: bool = False, mode: int = DIRECTORY_MODE
) -> None:
    """Check a directory of ours and all above it; `make` creates what is missing, with `mode`.

    Raises `UnsafePath` if anybody but root and us could change what stands there.
    """
    if _WINDOWS:
        if make:
            Path(path).mkdir(parents=True, exist_ok=True)
        return
    here = os.open("/", _STEP)
    try:
        for fd in _walk(Path(path), here, mode if make else None):
            os.close(here)
            here = fd
    finally:
        os.close(here)


def _walk(path: Path, root: int, mode: int | None) -> Iterator[int]:
    """Yield a checked descriptor for each directory on the way; the receiver closes it."""
    us = os.geteuid()
    shown = Path("/")
    left = list(reversed(path.absolute().parts[1:]))
    here = root
    links = 0
    _raise_if(shown, find_directory_fault(os.fstat(here), us, above=bool(left)))
    while left:
        name = left.pop()
        try:
            fd = _step(name, here, mode)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
                raise OSError(error.errno, error.strerror, str(shown / name)) from None
            target = _follow(name, here, us, shown / name)
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
            left += reversed(target.parts)
            if not target.is_absolute():
                continue
            left.pop()
            shown, fd = Path("/"), os.open("/", _STEP)
        else:
            shown /= name
        try:
            _raise_if(shown, find_directory_fault(os.fstat(fd), us, above=bool(left)))
        except UnsafePath:
            os.close(fd)
            raise
        here = fd
        yield fd


def _step(name: str, here: int, mode: int | None) -> int:
    with suppress(FileNotFoundError):
        return os.open(name, _STEP, dir_fd=here)
    if mode is not None:
        with suppress(FileExistsError):  # another process of ours was first
            make_directory(name, mode, here)
    return os.open(name, _STEP, dir_fd=here)


def make_directory(
    path: str | os.PathLike[str], mode: int = DIRECTORY_MODE, above: int | None = None
) -> None:
    """Make a directory whose mode no umask changes; raises `FileExistsError`."""
    os.mkdir(path, mode, dir_fd=above)
    os.chmod(path, mode, dir_fd=above)


def _follow(name: str, here: int, us: int, shown: Path) -> Path:
    status = os.stat(name, dir_fd=here, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(shown))
    if status.st_uid not in {0, us}:
        raise UnsafePath(shown, f"a link of another user ({status.st_uid})")
    return Path(os.readlink(name, dir_fd=here))


def open_file(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    make: bool = False,
    owned: bool = True,
) -> int:
    """Return a descriptor of a regular file; `make` creates a missing one as 0600.

    Raises `UnsafePath` for anything but a regular file, and, unless `owned` is false, for one that
    anybody but root and us may change.
    """
    us = 0 if _WINDOWS else os.geteuid()
    writing = flags & (os.O_WRONLY | os.O_RDWR) != 0
    if make:
        with suppress(FileExistsError):
            return create_file(path, flags)
    # Before it is opened, because opening a device may do something.
    _raise_if(path, find_file_fault(os.lstat(path), us, owned=owned, writing=writing))
    fd = os.open(path, flags | _GUARDED)
    try:
        _raise_if(path, find_file_fault(os.fstat(fd), us, owned=owned, writing=writing))
    except UnsafePath:
        os.close(fd)
        raise
    return fd


def create_file(path: str | os.PathLike[str], flags: int = os.O_WRONLY) -> int:
    """Return a descriptor of a new file that only we may read; raises `FileExistsError`."""
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | _GUARDED, FILE_MODE)
    if not _WINDOWS:
        os.fchmod(fd, FILE_MODE)  # a umask may have taken bits of ours
    return fd


def read_file(path: str | os.PathLike[str], limit: int, *, owned: bool = True) -> bytes:
    """Return a regular file's bytes; raises `OSError` (EFBIG) for more than `limit` of them."""
    with os.fdopen(open_file(path, owned=owned), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", os.fspath(path))
    return data


def secure_database(path: Path) -> None:
    """Check an SQLite file, its directory and what SQLite keeps beside it; make it if missing.

    A file that is there is looked at by name only: nobody else can change a name in a directory
    of ours, and to open and close it here would end the locks of this process's connections.
    """
    secure_directory(path.parent, make=True)
    with _MAKING_DATABASE, suppress(FileExistsError):
        os.close(create_file(path, os.O_RDWR))
    us = 0 if _WINDOWS else os.geteuid()
    for part in DATABASE_PARTS:
        file = path.with_name(path.name + part)
        with suppress(FileNotFoundError):
            _raise_if(file, find_file_fault(os.lstat(file), us, owned=True, writing=True))
            file.chmod(FILE_MODE)


@contextmanager
def draft_of(path: Path, data: bytes) -> Iterator[Path]:
    """Write a private file beside `path`, to be linked or renamed to it; then remove the rest."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    with os.fdopen(create_file(draft), "wb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            yield draft
        finally:
            draft.unlink(missing_ok=True)


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Put `data` in the place of a file, all of it or nothing; the new file is 0600."""
    with draft_of(Path(path), data) as draft:
        draft.replace(path)


def _raise_if(path: str | os.PathLike[str], fault: str | None) -> None:
    if fault is not None:
        raise UnsafePath(path, fault)
