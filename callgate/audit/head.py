"""HEAD: how far a writer's log goes, kept beside it so that a cut tail shows.

A memory-mapped file of two slots that are written in turn, each with a check sum: a process
that dies in the middle of an update leaves the other slot whole. The log is written first and
HEAD second, so the log may be ahead by one write, never behind.

A clean close fills both slots, so that afterwards no byte of the file may differ.
"""

from __future__ import annotations

import errno
import mmap
import os
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from callgate.audit.chain import GENESIS
from callgate.audit.files import BINARY, FILE_MODE, NOFOLLOW

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = b"callgate HEAD 1\n"
_SLOT: Final = Struct("<QQ64sqI")
_CRC: Final = Struct("<I")
_SLOT_BYTES: Final = _SLOT.size + _CRC.size
_OFFSETS: Final = (len(MAGIC), len(MAGIC) + _SLOT_BYTES)
HEAD_BYTES: Final = len(MAGIC) + 2 * _SLOT_BYTES
_pack: Final = _SLOT.pack
_pack_crc: Final = _CRC.pack


class HeadState(NamedTuple):
    """What HEAD says: the last line, how many calls are open, and whether it was closed."""

    generation: int
    seq: int
    hash: bytes
    open_calls: int
    clean: bool
    whole: bool
    """Both slots are valid. After a clean close they always are."""


def parse_head(data: bytes) -> HeadState | None:
    """What the bytes of a HEAD say, or None if no slot is valid."""
    if len(data) != HEAD_BYTES or not data.startswith(MAGIC):
        return None
    found: list[HeadState] = []
    for offset in _OFFSETS:
        slot = data[offset : offset + _SLOT.size]
        (crc,) = _CRC.unpack_from(data, offset + _SLOT.size)
        if crc == crc32(slot):
            generation, seq, digest, open_calls, clean = _SLOT.unpack(slot)
            found.append(HeadState(generation, seq, digest, open_calls, clean == 1, whole=True))
    if not found:
        return None
    newest = max(found)
    agreed = len(found) == len(_OFFSETS) and (
        not newest.clean or (found[0][1:] == found[1][1:] and newest.generation - 1 in _ages(found))
    )
    return newest._replace(whole=agreed)


def _ages(found: list[HeadState]) -> list[int]:
    return [state.generation for state in found]


def read_head(directory: Path) -> HeadState | None:
    """What a writer's HEAD says, or None if it is missing or says nothing."""
    try:
        data = (directory / "HEAD").read_bytes()
    except FileNotFoundError:
        return None
    return parse_head(data)


class Head:
    """The mapped HEAD of a writer that this process holds the lock of."""

    __slots__ = ("_fd", "_generation", "_map")

    def __init__(self, fd: int, generation: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, HEAD_BYTES)
        self._generation = generation

    @classmethod
    def attach(cls, directory: Path) -> Head:
        """Map a writer's HEAD; one that says nothing is made new."""
        flags = os.O_RDWR | os.O_CREAT | NOFOLLOW | BINARY
        fd = os.open(directory / "HEAD", flags, FILE_MODE)
        try:
            state = parse_head(os.read(fd, HEAD_BYTES + 1))
            if state is None:
                _fill(fd)
            return cls(fd, state.generation if state else 0)
        except OSError:
            os.close(fd)
            raise

    def store(self, seq: int, digest: bytes, open_calls: int, clean: int = 0) -> None:
        """Say how far the log goes."""
        self._generation = generation = self._generation + 1
        slot = _pack(generation, seq, digest, open_calls, clean)
        offset = _OFFSETS[generation & 1]
        self._map[offset : offset + _SLOT_BYTES] = slot + _pack_crc(crc32(slot))

    def is_removed(self) -> bool:
        """Whether somebody deleted the file under us."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Unmap."""
        self._map.close()
        os.close(self._fd)


def _fill(fd: int) -> None:
    """Write an empty HEAD: real bytes, not a hole, so that a store never needs room."""
    slot = _pack(0, 0, GENESIS, 0, 0)
    slot += _pack_crc(crc32(slot))
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    if os.write(fd, MAGIC + slot + slot) != HEAD_BYTES:
        raise OSError(errno.ENOSPC, "no room for HEAD")
