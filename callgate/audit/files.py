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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callgate.audit.chain import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
KEY_BYTES: Final = 32
NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
BINARY: Final[int] = getattr(os, "O_BINARY", 0)  # Windows would rewrite line ends

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
    """Why a log cannot be written there, before anything is launched; None if it can."""
    try:
        Path(path).mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return None
    except OSError as error:
        return error


def load_key(path: Path) -> bytes:
    """The key of this install from `<path>/key`, made if there is none.

    Written under another name and then linked, so that of many processes that start at once
    all read the same whole key.
    """
    file = path / "key"
    with suppress(FileNotFoundError):
        return _checked_key(file)
    path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    draft = path / f".key-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY
    fd = os.open(draft, flags, FILE_MODE)
    try:
        os.write(fd, secrets.token_bytes(KEY_BYTES))
        os.close(fd)
        with suppress(FileExistsError):
            file.hardlink_to(draft)
    finally:
        draft.unlink()
    return _checked_key(file)


def _checked_key(file: Path) -> bytes:
    key = file.read_bytes()
    if len(key) != KEY_BYTES:
        raise OSError(f"{file} is not a key of {KEY_BYTES} bytes; remove it to make a new one")
    return key


def new_writer(root: Path, wall_ns: int) -> Path:
    """A directory for a new writer; names sort by time."""
    directory = root / f"{wall_ns // 1_000_000:012x}-{secrets.token_hex(4)}"
    directory.mkdir(DIRECTORY_MODE)
    return directory


def writers(root: Path) -> list[Path]:
    """The writer directories under `root`, oldest first."""
    return sorted(
        entry
        for entry in root.iterdir()
        if entry.is_dir()
        and ((entry / "LOCK").exists() or (entry / "HEAD").exists() or segments(entry))
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
        """The lock, or None if another process (or this one) holds it."""
        flags = os.O_RDWR | os.O_CREAT | NOFOLLOW | BINARY
        fd = os.open(directory / "LOCK", flags, FILE_MODE)
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
    """Whether some process writes there now. A copy without a LOCK file is nobody's."""
    try:
        fd = os.open(directory / "LOCK", os.O_RDONLY | NOFOLLOW | BINARY)
    except OSError:
        return False
    try:
        _take(fd, shared=True)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def lines(file: Path) -> Iterator[bytes]:
    """The lines of a segment with their ends; one without an end is torn or over the bound."""
    with file.open("rb", buffering=1 << 18) as stream:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            yield line


def has_whole_line(file: Path) -> bool:
    """Whether a segment has its header."""
    with file.open("rb") as stream:
        return stream.readline(MAX_LINE_BYTES).endswith(b"\n")


def last_line(file: Path) -> bytes:
    """The last line of a segment as it is, with its end or torn; empty if there is none."""
    with file.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 2 * MAX_LINE_BYTES))
        tail = stream.read()
    if not tail:
        return b""
    return tail[tail.rfind(b"\n", 0, len(tail) - 1) + 1 :]
