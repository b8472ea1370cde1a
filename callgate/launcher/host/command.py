"""What a command needs to be seen for it to run: links, `#!` interpreters, a prefix.

IO, blocking but short. A sandbox shows nothing that is not listed, so a virtual environment
must be shown with the interpreter that it links to. Only prefixes that are known to be one
language's installation are shown whole. The parent of any `bin` could be a home directory.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from callgate.launcher.plan.capabilities import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_STEPS = 40
"""The kernel's own limit for the links of one path."""
_SHEBANG_BYTES = 256
"""As many as the kernel reads of a `#!` line."""


def find(word: str, environ: Mapping[str, str], cwd: str | None) -> Command | None:
    """Return the program that a command's first word names, as the agent's own PATH finds it."""
    if "/" in word:
        path = str(Path(cwd or Path.cwd()) / word)
        found = path if os.access(path, os.X_OK) and not Path(path).is_dir() else None
    else:
        found = shutil.which(word, path=environ.get("PATH"))
    if found is None:
        return None
    path = str(Path(found).absolute())
    reaches = tuple(_reaches(Path(path), environ))
    return Command(path, reaches, all(_is_open(Path(each)) for each in reaches))


def _reaches(path: Path, environ: Mapping[str, str]) -> dict[str, None]:
    """Ordered and without repetition."""
    found: dict[str, None] = {}
    waiting = [path]
    for _ in range(_MAX_STEPS):
        if not waiting:
            break
        each = waiting.pop()
        if not os.path.lexists(each):
            continue
        prefix = _prefix(each)
        found[str(prefix or each)] = None
        if prefix is not None:
            waiting += _home(prefix)
        if each.is_symlink():
            waiting.append(Path(os.path.normpath(each.parent / each.readlink())))
        else:
            waiting += _interpreter(each, environ)
    return found


def _is_open(path: Path) -> bool:
    """Return whether others may enter every directory on the way."""
    folders = [path, *path.parents] if path.is_dir() else path.parents
    try:
        return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)
    except OSError:
        return False


def _prefix(path: Path) -> Path | None:
    """The installation that a program is part of, if it is surely nothing else as well."""
    prefix = path.parent.parent
    if path.parent.name != "bin" or prefix == prefix.parent:
        return None
    if (prefix / "pyvenv.cfg").is_file():
        return prefix
    home = Path.home()
    if prefix in (home, home / ".local") or prefix in home.parents:
        return None
    if path.name.startswith("python") and any((prefix / "lib").glob("python3*")):
        return prefix
    return prefix if (prefix / "lib" / "node_modules").is_dir() else None


def _home(prefix: Path) -> list[Path]:
    """The interpreter behind a virtual environment, also if it was copied, not linked."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    values = dict(line.partition("=")[::2] for line in lines)
    home = next((value.strip() for key, value in values.items() if key.strip() == "home"), None)
    python = None if home is None else Path(home) / "python3"
    return [python] if python is not None and python.exists() else []


def _interpreter(path: Path, environ: Mapping[str, str]) -> list[Path]:
    """What a script's first line names, through `env` if it says so."""
    try:
        with path.open("rb") as file:
            line = file.readline(_SHEBANG_BYTES)
    except OSError:
        return []
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    if not words:
        return []
    found = [Path(words[0])]
    if found[0].name == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        other = shutil.which(named[0], path=environ.get("PATH")) if named else None
        found += [Path(other)] if other is not None else []
    return found
