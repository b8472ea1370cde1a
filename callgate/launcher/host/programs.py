"""Find the files that must be executable for a list of programs to run, and no more.

IO, blocking but short. To run a program the kernel executes the file itself, the interpreter
that its `#!` line names (through `env`, if it says so), and the loader that its ELF header
names. All of them are files without links; a directory is never among them.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from callgate.launcher.host.command import find, interpreters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAX_FILES = 1000
"""A list that needs more is no list that somebody has read."""
_HEADER_BYTES = 65536
"""Where a loader's name stands: in the first page, for all that was seen."""
_LOADER = 3
"""`PT_INTERP` of <elf.h>."""


class NotFound(LookupError):
    """Raised for a name that leads to no program."""


def files(
    words: Iterable[str], path: str, environ: Mapping[str, str], cwd: str | None
) -> tuple[str, ...]:
    """Return what must be executable for the program `path` and those that `words` name.

    Raises `NotFound`.
    """
    waiting = [Path(path)]
    for word in words:
        command = find(word, environ, cwd)
        if command is None:
            raise NotFound(word)
        waiting.append(Path(command.path))
    found: dict[str, None] = {}
    while waiting and len(found) < _MAX_FILES:
        each = Path(os.path.realpath(waiting.pop()))
        if str(each) in found or not each.is_file():
            continue
        found[str(each)] = None
        waiting += interpreters(each, environ)
        loader = _loader(each)
        waiting += [] if loader is None else [Path(loader)]
    return tuple(found)


def _loader(path: Path) -> str | None:
    """Return the loader that an ELF file of 64 bits names; a static one names none."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER_BYTES)
        if head[:5] != b"\x7fELF\x02":
            return None
        order = "<" if head[5] == 1 else ">"
        (table,) = struct.unpack_from(f"{order}Q", head, 32)
        size, count = struct.unpack_from(f"{order}HH", head, 54)
        for at in range(table, table + size * count, size):
            (kind,) = struct.unpack_from(f"{order}I", head, at)
            if kind == _LOADER:
                offset, _, _, length = struct.unpack_from(f"{order}QQQQ", head, at + 8)
                return os.fsdecode(head[offset : offset + length].rstrip(b"\0"))
    except (OSError, struct.error):
        return None
    return None
