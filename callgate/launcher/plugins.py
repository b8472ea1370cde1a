"""Launchers of other packages, by the name of their entry point."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self, cast

from callgate.launcher.protocol import ENTRY_POINTS, LaunchRefused
from callgate.model import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

    from callgate.errors import LimitInfo
    from callgate.launcher.protocol import Launcher, Run
    from callgate.model import LaunchSpec


def find_launcher(name: str = BUILT_IN) -> Launcher:
    """Make the launcher of that name; raises `LookupError` with the names that there are."""
    if name == BUILT_IN:
        return _built_in()
    found = _entry_points()
    if name not in found:
        names = ", ".join(sorted({BUILT_IN, *found}))
        raise LookupError(f"no launcher {name!r} is installed; there are: {names}")
    return cast("Launcher", found[name].load()())


def installed() -> frozenset[str]:
    """Return the names of all launchers."""
    return frozenset({BUILT_IN, *_entry_points()})


class Launchers:
    """A launcher that hands each spec to the one that it names, made at its first use."""

    def __init__(self) -> None:
        self._made: dict[str, Launcher] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def named(self, spec: LaunchSpec) -> Launcher:
        """Return the launcher of a spec; raises `LaunchRefused` without one that works."""
        launcher = self._made.get(spec.launcher)
        if launcher is None:
            try:
                launcher = find_launcher(spec.launcher)
            except LookupError as error:
                raise _refused(spec, str(error)) from None
            except Exception as error:  # somebody else's code, whatever it does
                text = f"launcher {spec.launcher!r} cannot be used: {type(error).__name__}: {error}"
                raise _refused(spec, text) from error
            self._made[spec.launcher] = launcher
        return launcher

    async def launch(
        self,
        spec: LaunchSpec,
        *,
        run_id: str,
        on_warning: Callable[[LimitInfo], None] | None = None,
        resume: Run | None = None,
    ) -> Run:
        """Start an agent; see `protocol.Launcher`."""
        launcher = self.named(spec)
        return await launcher.launch(spec, run_id=run_id, on_warning=on_warning, resume=resume)

    async def aclose(self) -> None:
        """Close all that were made."""
        async with AsyncExitStack() as stack:  # one that fails does not spare the others
            for launcher in self._made.values():
                stack.push_async_callback(launcher.aclose)


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415  # 15 ms that `run` need not pay

    return {each.name: each for each in entry_points(group=ENTRY_POINTS)}


def _refused(spec: LaunchSpec, why: str) -> LaunchRefused:
    return LaunchRefused(agent=spec.agent, gaps={"launcher": why}, stage="launcher")


def _built_in() -> Launcher:
    if sys.platform == "win32":
        from callgate.launcher.local.portable_launcher import PortableLauncher  # noqa: PLC0415  # see below

        return PortableLauncher()
    else:  # noqa: RET505  # for the type checker each system has one branch
        from callgate.launcher.local.local_launcher import LocalLauncher  # noqa: PLC0415  # not on Windows

        return LocalLauncher()
