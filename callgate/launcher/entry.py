"""Launchers of other packages, by the name of their entry point."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from callgate.launcher.protocol import ENTRY_POINTS

if TYPE_CHECKING:
    from callgate.launcher.protocol import Launcher

BUILT_IN = "local"


def find_launcher(name: str = BUILT_IN) -> Launcher:
    """Make the launcher of that name; raises `LookupError` with the names that there are."""
    if name == BUILT_IN:
        return _built_in()
    from importlib.metadata import entry_points  # noqa: PLC0415  # 15 ms that `run` need not pay

    found = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        names = ", ".join(sorted({BUILT_IN, *found}))
        raise LookupError(f"no launcher {name!r}; there are: {names}")
    return cast("Launcher", found[name].load()())


def _built_in() -> Launcher:
    if sys.platform == "win32":
        from callgate.launcher.portable import PortableLauncher  # noqa: PLC0415  # see below

        return PortableLauncher()
    else:  # noqa: RET505  # for the type checker each system has one branch
        from callgate.launcher.builtin import LocalLauncher  # noqa: PLC0415  # not on Windows

        return LocalLauncher()
