"""Where the audit lives on disk: the install's key, writer directories, locks, segments.

<path>/key                       32 random bytes, for pseudonyms
<path>/<writer-id>/LOCK          held by the process that writes there
<path>/<writer-id>/HEAD          see `head`
<path>/<writer-id>/00000001.jsonl  segments
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from callgate.audit.chain import MAX_LINE_BYTES
from callgate.files import draft_of, open_file, read_file, secure_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

KEY_BYTES: Final = 32

if sys.platform == "win32":
    import msvcrt

    def _take(fd: int, *, shared: bool) -> None:
        del shared  # there is no such lock
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _take(fd: int, *, shared: bool) -> None:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def check_writable(path: str) -> OSError | None:
    """Return why a log cannot be written to `path`, before anything is launched; None if it can."""
    try:
        secure_directory(path, make=True)
        with tempfile.TemporaryFile(dir=path):
            return None
    except OSError as error:
        return error


def load_key(path: Path) -> bytes:
    """Return the key of this install from `<path>/key`, made if there is none.

    Written under another name and then linked, so that of many processes that start at once
    all read the same whole key.
    """
    secure_directory(path, make=True)
    file = path / "key"
    with suppress(FileNotFoundError):
        return _checked_key(file)
    with draft_of(file, secrets.token_bytes(KEY_BYTES)) as draft, suppress(FileExistsError):
        file.hardlink_to(draft)
    return _checked_key(file)


def _checked_key(file: Path) -> bytes:
    key = read_file(file, KEY_BYTES)
    if len(key) != KEY_BYTES:
        raise OSError(f"{file} is not a key of {KEY_BYTES} bytes; remove it to make a new one")
    return key


def new_writer(root: Path, wall_ns: int) -> Path:
    """Make a directory for a new writer and return it; names sort by time."""
    directory = root / f"{wall_ns // 1_000_000:012x}-{secrets.token_hex(4)}"
    secure_directory(directory, make=True)
    return directory


def writers(root: Path) -> list[Path]:
    """Return the writer directories under `root`, oldest first."""
    return sorted(
        entry
        for entry in root.iterdir()
        if entry.is_dir()
        and not entry.is_symlink()
        and (any(os.path.lexists(entry / name) for name in ("LOCK", "HEAD")) or segments(entry))
    )


def segments(directory: Path) -> list[int]:
    """The numbers of a writer's segments, oldest first."""
    return sorted(
        int(file.stem)
        for file in directory.glob("*.jsonl")
        if file.stem.isascii() and file.stem.isdigit()
    )


def segment_path(directory: Path, number: int) -> Path:
    """The file of a segment."""
    return directory / f"{number:08d}.jsonl"


class Lock:
    """A writer directory taken for this process; the kernel frees it if the process dies."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, directory: Path) -> Lock | None:
        """Return the lock, or None if another process (or this one) holds it.

        Raises `UnsafePath` for a directory that anybody but root and us may change.
        """
        secure_directory(directory)
        fd = open_file(directory / "LOCK", os.O_RDWR, make=True)
        try:
            _take(fd, shared=False)
        except OSError:
            os.close(fd)
            return None
        return cls(fd)

    def release(self) -> None:
        """Let others have it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def is_locked(directory: Path) -> bool:
    """Return whether some process writes there now. A copy without a LOCK file is nobody's."""
    try:
        fd = open_file(directory / "LOCK", owned=False)
    except OSError:
        return False
    try:
        _take(fd, shared=True)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def open_to_read(file: Path) -> BinaryIO:
    """Open a file of a log, whoever owns it: an auditor may read a copy."""
    return os.fdopen(open_file(file, owned=False), "rb", buffering=1 << 18)


def lines(file: Path) -> Iterator[bytes]:
    """Yield a segment's lines with their ends; one without an end is torn or over the bound."""
    with open_to_read(file) as stream:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            yield line


def last_line(file: Path) -> bytes:
    """Return a segment's last line, with its end or torn; empty if there is none."""
    with open_to_read(file) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 2 * MAX_LINE_BYTES))
        tail = stream.read(2 * MAX_LINE_BYTES)
    if not tail:
        return b""
    return tail[tail.rfind(b"\n", 0, len(tail) - 1) + 1 :]
