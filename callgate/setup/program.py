"""Find the `callgate` program that a configuration may name for good.

A program with a window has no shell's PATH, so a user's file gets an absolute path. A `callgate`
that `uvx` or `pipx run` installed for a moment may be gone tomorrow, and all servers with it.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Final

from callgate.setup.formats.nodes import Refused

NAME: Final = "callgate"
WINDOWS: Final = (
    "`callgate run` does not work on Windows yet (docs/containment.md), so a wrapped server could "
    "not start; nothing was changed"
)
_UV_CACHE: Final = re.compile(r"(?:archive|builds|environments)-v\d+")


def install_command(prefix: PurePath) -> str | None:
    """Return the command that installs for good, if `prefix` is a temporary environment."""
    parts = prefix.parts
    if any(_UV_CACHE.fullmatch(part) for part in parts):
        return "uv tool install callgate"
    for one, other in pairwise(parts):
        if one == "pipx" and other == ".cache":
            return "pipx install callgate"
        if one in {".cache", "Caches"} and other == "pipx":
            return "pipx install callgate"
    return None


def find_program() -> str:
    """Return the absolute path of this installation's program; raises `Refused`."""
    if sys.platform == "win32":
        raise Refused(WINDOWS)
    command = install_command(PurePath(sys.prefix))
    if command is not None:
        raise Refused(
            "this callgate runs from a temporary environment; when its cache is pruned, none of "
            f"your servers could start. Install it for good and run this again: {command}"
        )
    user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    folders = [Path(each) for each in (sysconfig.get_path("scripts"), user)]
    own = next((folder / NAME for folder in folders if (folder / NAME).is_file()), None)
    if own is None:
        raise Refused(
            f"there is no program {folders[0] / NAME}; install callgate first: "
            "uv tool install callgate"
        )
    # A link on the PATH to it outlives an upgrade that makes a new environment.
    linked = shutil.which(NAME)
    if linked is not None and Path(linked).is_absolute() and Path(linked).samefile(own):
        return linked
    return str(own)


def is_gone(program: str) -> bool:
    """Tell whether a program that a configuration names by its path cannot be started any more."""
    return PurePath(program).is_absolute() and shutil.which(program) is None
