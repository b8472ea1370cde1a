"""HEAD: how far a writer's log goes, kept beside it so that a cut tail shows.

A memory-mapped text of two slots that are written in turn, and a character that says whose turn
it was:

    callgate HEAD 2
    0
    12 1 <the hash of line 12, 64 hex>
    11 0 <the hash of line 11>

A slot is a line's number, how many calls are open, and the line's hash. It is filled while the
character still names the other one; then that is changed, which is one byte. So a process that
dies in the middle of an update leaves a slot whole that is named. The log is written first and
HEAD second, so the log may be ahead by one write, never behind.

A clean close fills both slots alike and puts `=` for the character, so that afterwards no byte of
the file may differ.

No check sum and no `struct`: in the middle of an agent's step, where nothing of ours is in the
processor's caches, the code of both costs more than all the rest of an update.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from callgate.audit.chain import GENESIS
from callgate.files import UnsafePath, open_file

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = b"callgate HEAD 2\n"
_TURN_AT: Final = len(MAGIC)
_TURNS: Final = b"01"
_CLOSED: Final = ord("=")
_SLOT_BYTES: Final = 112
"""Two numbers of 64 bits, a hash, and what separates them."""
_FIRST_AT: Final = _TURN_AT + 2
_OFFSETS: Final = (_FIRST_AT, _FIRST_AT + _SLOT_BYTES)
HEAD_BYTES: Final = _FIRST_AT + 2 * _SLOT_BYTES
_parse_slot: Final = re.compile(rb"(\d{1,20}) (-?\d{1,19}) ([0-9a-f]{64})\n").match


class HeadState(NamedTuple):
    """What HEAD says: the last line, how many calls are open, and whether it was closed."""

    seq: int
    hash: bytes
    open_calls: int
    clean: bool
    whole: bool
    """Nothing of it is damaged, as far as that can be seen: after a clean close, every byte."""


def parse_head(data: bytes) -> HeadState | None:
    """What the bytes of a HEAD say, or None if they say nothing."""
    if len(data) != HEAD_BYTES or not data.startswith(MAGIC) or data[_TURN_AT + 1] != ord("\n"):
        return None
    turn = data[_TURN_AT]
    clean = turn == _CLOSED
    if not clean and turn not in _TURNS:
        return None
    slots = [data[at : at + _SLOT_BYTES] for at in _OFFSETS]
    whole = not clean or slots[0] == slots[1]
    if turn == _TURNS[1]:
        slots.reverse()
    for slot in slots:
        if found := _parse_slot(slot):
            seq, open_calls, digest = found.groups()
            return HeadState(int(seq), digest, int(open_calls), clean, whole)
        whole = False
    return None


def read_head(directory: Path) -> HeadState | None:
    """Return what a writer's HEAD says, or None if it is missing or says nothing."""
    try:
        fd = open_file(directory / "HEAD", owned=False)
    except (FileNotFoundError, UnsafePath):
        return None
    try:
        return parse_head(os.read(fd, HEAD_BYTES + 1))
    finally:
        os.close(fd)


class Head:
    """The mapped HEAD of a writer that this process holds the lock of."""

    __slots__ = ("_fd", "_map", "_turn")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, HEAD_BYTES)
        if self._map[_TURN_AT] == _CLOSED:
            self._map[_TURN_AT] = _TURNS[0]
        self._turn = _TURNS.index(self._map[_TURN_AT])

    @classmethod
    def attach(cls, directory: Path) -> Head:
        """Map a writer's HEAD; one that says nothing is made new."""
        fd = open_file(directory / "HEAD", os.O_RDWR, make=True)
        try:
            if parse_head(os.read(fd, HEAD_BYTES + 1)) is None:
                _fill(fd)
            return cls(fd)
        except OSError:
            os.close(fd)
            raise

    def store(self, seq: int, digest: bytes, open_calls: int) -> None:
        """Say how far the log goes."""
        slot = b"%d %d %b\n" % (seq, open_calls, digest)
        self._turn = turn = 1 - self._turn
        at = _OFFSETS[turn]
        self._map[at : at + len(slot)] = slot
        self._map[_TURN_AT] = _TURNS[turn]

    def seal(self, seq: int, digest: bytes, open_calls: int) -> None:
        """Say how far the log goes, and that nothing follows."""
        for at in (_OFFSETS[1 - self._turn], _OFFSETS[self._turn]):
            self._map[at : at + _SLOT_BYTES] = b" " * _SLOT_BYTES
            self.store(seq, digest, open_calls)
        self._map[_TURN_AT] = _CLOSED

    def is_removed(self) -> bool:
        """Whether somebody deleted the file under us."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Unmap."""
        self._map.close()
        os.close(self._fd)


def _fill(fd: int) -> None:
    """Write an empty HEAD: real bytes, not a hole, so that a store never needs room."""
    slot = (b"0 0 " + GENESIS + b"\n").ljust(_SLOT_BYTES)
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    if os.write(fd, MAGIC + _TURNS[:1] + b"\n" + slot + slot) != HEAD_BYTES:
        raise OSError(errno.ENOSPC, "no room for HEAD")
