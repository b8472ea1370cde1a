"""Read and replace a client's configuration: the old file or the new one, and nobody's work lost.

- Only a file that its user alone may change is touched: one that somebody else may write decides
  which programs start. Links of the user or of root are followed; the file behind them is replaced.
- The new file is written beside the old one and then exchanged with it in one step of the kernel
  (`renameat2`, `renamex_np`). What comes out is compared with what was read: if another program
  wrote in between, the two are exchanged back. Where the kernel cannot exchange, the file is
  compared right before it is replaced.
- A file that a `kill -9` left beside it is removed at the next change.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from callgate.files import UnsafePath, draft_of, open_file, read_file, secure_directory
from callgate.setup.formats.nodes import Refused

MAX_BYTES: Final = 64 << 20
"""Claude Code keeps its history in the file with its servers; some have tens of MiB."""
MAX_LINKS: Final = 8

_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2  # RENAME_EXCHANGE and RENAME_SWAP


@dataclass(frozen=True, slots=True)
class Found:
    """A file as it was read."""

    path: Path
    """Behind all links."""
    data: bytes
    mode: int
    group: int


def read(path: Path) -> Found:
    """Return a file that only its user may change; raises `Refused`, or `FileNotFoundError`."""
    try:
        real = _behind_links(path)
        fd = open_file(real)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid():
                raise Refused(f"{real}: it belongs to another user ({status.st_uid})")
            if status.st_nlink > 1:
                raise Refused(f"{real}: it has another name, too: a hard link")
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except UnsafePath as error:
        raise Refused(f"{error.filename}: {error.strerror}") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise Refused(f"{real}: larger than {MAX_BYTES >> 20} MiB")
    return Found(real, data, stat.S_IMODE(status.st_mode), status.st_gid)


def _behind_links(path: Path) -> Path:
    for _ in range(MAX_LINKS):
        secure_directory(path.parent)
        status = os.lstat(path)
        if not stat.S_ISLNK(status.st_mode):
            return Path(os.path.realpath(path.parent)) / path.name
        if status.st_uid not in {0, os.geteuid()}:
            raise UnsafePath(path, f"a link of another user ({status.st_uid})")
        path = path.parent / path.readlink()
    raise UnsafePath(path, "too many links")


def replace(found: Found, data: bytes) -> None:
    """Put `data` in the place of what was found; raises `Refused` if that has changed since."""
    path = found.path
    try:
        _sweep(path)
        with draft_of(path, data) as draft:
            with suppress(PermissionError):  # not every group can be given away
                os.chown(draft, -1, found.group)
            draft.chmod(found.mode)
            _compare(path, found.data)
            if not _exchange(draft, path):
                draft.replace(path)
            else:
                _keep_what_came_out(draft, path, found.data, data)
        _sync(path.parent)
    except UnsafePath as error:
        raise Refused(f"{error.filename}: {error.strerror}") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None


def _keep_what_came_out(draft: Path, path: Path, before: bytes, ours: bytes) -> None:
    """Exchange the files back if what came out is not what was read."""
    if read_file(draft, MAX_BYTES, owned=False) == before:
        return
    _exchange(draft, path)
    if read_file(draft, MAX_BYTES, owned=False) != ours:  # written again, in that very moment
        saved = path.with_name(f"{path.name}.saved-by-callgate-{draft.name[-16:]}")
        os.link(draft, saved)
        raise Refused(f"{path}: another program keeps writing to it; one version is in {saved}")
    raise Refused(f"{path}: another program has changed it in the meantime; run this again")


def _compare(path: Path, before: bytes) -> None:
    if read_file(path, MAX_BYTES) != before:
        raise Refused(f"{path}: another program has changed it since it was read; run this again")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two files in one step; return False where that cannot be done."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        return bool(libc.renamex_np(*names, _EXCHANGE) == 0)
    rename = getattr(libc, "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) == 0)


def _sync(folder: Path) -> None:
    """Make a rename last beyond a power cut, where the file system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _sweep(path: Path) -> None:
    """Remove what an earlier process that was killed left beside a file."""
    ours = re.compile(re.escape(f".{path.name}-") + r"[0-9a-f]{16}")
    for name in os.listdir(path.parent):  # noqa: PTH208  # names are all that is needed
        if ours.fullmatch(name):
            (path.parent / name).unlink(missing_ok=True)
