"""Keep what an undo needs, in the state directory: one file for each changed configuration.

A record is written before its configuration is changed and removed after it is undone, so a
process that is killed in between leaves a record that is not needed, never a change without one.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from callgate.files import open_file, read_file, replace_file, secure_directory
from callgate.setup.formats.nodes import Refused
from callgate.stores.place import state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES: Final = 128 << 20
"""A configuration of the largest size in base64, and a little more."""


class Record(msgspec.Struct, frozen=True):
    """What was done to one file."""

    path: str
    client: str
    form: str
    places: list[tuple[str, ...]]
    before: bytes
    """The file without any change of ours."""
    before_hash: str
    after_hash: str
    added: list[tuple[tuple[str, ...], str | None]]
    """Each wrapped entry, with the text of the list that was added to it."""


def digest(data: bytes) -> str:
    """Return the hash that records keep."""
    return hashlib.sha256(data).hexdigest()


def folder() -> Path:
    """Return the directory of the records."""
    return state_dir() / "setup"


@contextmanager
def lock() -> Iterator[None]:
    """Hold what only one process may do at a time; raises `Refused` if another one does it."""
    import fcntl  # noqa: PLC0415  # not on Windows, where nothing is changed

    try:
        secure_directory(folder(), make=True)
        fd = open_file(folder() / "LOCK", os.O_RDWR, make=True)
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}; nothing is changed") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refused("another callgate is changing configurations; try again") from None
    finally:
        os.close(fd)


def _file(path: Path) -> Path:
    return folder() / f"{digest(os.fsencode(path))[:32]}.json"


def load(path: Path) -> Record | None:
    """Return the record of a configuration, None if there is none; raises `Refused`."""
    try:
        return _read(_file(path))
    except FileNotFoundError:
        return None


def load_all() -> list[Record]:
    """Return all records, by path; raises `Refused` for one that cannot be read."""
    found = []
    with suppress(FileNotFoundError):
        secure_directory(folder())
        found = [_read(file) for file in folder().glob("*.json")]
    return sorted(found, key=lambda each: each.path)


def _read(file: Path) -> Record:
    try:
        secure_directory(file.parent)
        return msgspec.json.decode(read_file(file, MAX_BYTES), type=Record)
    except FileNotFoundError:
        raise
    except (OSError, msgspec.DecodeError) as error:
        raise Refused(f"{file}: the record of an earlier change cannot be read: {error}") from None


def save(record: Record) -> None:
    """Write a record, 0600; raises `Refused`."""
    try:
        secure_directory(folder(), make=True)
        replace_file(_file(Path(record.path)), msgspec.json.encode(record))
    except OSError as error:
        raise Refused(f"no backup can be written, so nothing is changed: {error}") from None


def forget(path: Path) -> None:
    """Remove the record of a configuration."""
    _file(path).unlink(missing_ok=True)
