"""What a command needs to be seen for it to run: links, `#!` interpreters, a prefix.

IO, blocking but short. A sandbox shows nothing that is not listed, so a virtual environment
must be shown with the interpreter that it links to. Only prefixes that are known to be one
language's installation are shown whole. The parent of any `bin` could be a home directory.

A link, a `#!` line, a `pyvenv.cfg` or a directory that a run can write to (`places`) may have
been written by a run, to have something of the host shown to the next. So what was found
through one is a *doubt*: it is never bound, and the plan refuses the launch unless the policy
or the system shows it anyway. Whatever is not a doubt was decided by files that no run can
change, so it may be looked up anew at each launch.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from callgate.launcher.plan.capabilities import Command
from callgate.launcher.warden.safe_path import UnsafePath, open_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from callgate.launcher.host.places import Places

_MAX_STEPS = 40
"""The kernel's own limit for the links of one path."""
_SHEBANG_BYTES = 256
"""As many as the kernel reads of a `#!` line."""


def find(
    word: str, environ: Mapping[str, str], cwd: str | None, places: Places | None = None
) -> Command | None:
    """Return the program that a command's first word names, as the agent's own PATH finds it."""
    if "/" in word:
        path = str(Path(cwd or Path.cwd()) / word)
        found = path if os.access(path, os.X_OK) and not Path(path).is_dir() else None
    else:
        found = shutil.which(word, path=environ.get("PATH"))
    if found is None:
        return None
    path = str(Path(found).absolute())
    needed = _reaches(Path(path), environ, dict(places or {}))
    reaches = tuple(each for each, doubt in needed.items() if doubt is None)
    doubts = tuple((each, doubt) for each, doubt in needed.items() if doubt is not None)
    return Command(path, reaches, all(_is_open(Path(each)) for each in needed), doubts)


def _reaches(path: Path, environ: Mapping[str, str], places: Places) -> dict[str, str | None]:
    """Return what the program needs, each with what is doubtful about it; ordered."""
    found: dict[str, str | None] = {}
    waiting: list[tuple[Path, str | None]] = [(path, None)]
    for _ in range(_MAX_STEPS):
        if not waiting:
            break
        each, doubt = waiting.pop()
        if not os.path.lexists(each):
            continue
        doubt = doubt or _doubt(each.parent if each.is_symlink() else each, places)
        prefix = _prefix(each)
        if prefix is None:
            found.setdefault(str(each), doubt)
        else:
            evidence = (prefix / "pyvenv.cfg", prefix / "lib")
            doubtful = [_doubt(file, places) for file in evidence if os.path.lexists(file)]
            doubt = doubt or next((why for why in doubtful if why is not None), None)
            found.setdefault(str(prefix), doubt)
            waiting += [(python, doubt) for python in _home(prefix)]
        if each.is_symlink():
            waiting.append((Path(os.path.normpath(each.parent / each.readlink())), doubt))
        else:
            waiting += [(named, doubt) for named in interpreters(each, environ)]
    return found


def _doubt(path: Path, places: Places) -> str | None:
    """Return how a run could have changed what is at a path; None if it could not."""
    if not places:
        return None
    try:
        opened = open_path(str(path), places)
    except UnsafePath as error:
        return f"{error.filename} is {error.strerror}"
    except OSError:
        return f"{path} cannot be looked at"
    try:
        status = os.fstat(opened.fd)
    finally:
        os.close(opened.fd)
    if opened.written is not None:
        return f"{path} is in {opened.written}, which agents can write to"
    linked = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    if linked and _may_be_written(status) and any(device == status.st_dev for device, _ in places):
        return f"{path} has another name (a hard link), which may be where agents can write"
    return None


def _may_be_written(status: os.stat_result) -> bool:
    """Return whether another than root may write to a file."""
    return status.st_uid != 0 or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


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


def interpreters(path: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return what a script's first line names, through `env` if it says so."""
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
