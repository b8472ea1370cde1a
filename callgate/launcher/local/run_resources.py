"""What a run holds on the host: a warden, a directory, a group. Made, renewed, released.

`Resources` is what a run's life needs of it; `portable_launcher` has another kind. IO; what
blocks is called from a thread. Resources outlive their run when that is paused: the run that
resumes it takes them over, with a new group, because limits may have changed and counters
begin anew.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from callgate.launcher.host import cgroup
from callgate.launcher.local import workspace
from callgate.launcher.local.local_run import Resources
from callgate.launcher.plan.environment import RUN_VARIABLE
from callgate.launcher.warden import leftovers, tree

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.launcher.host.cgroup import Group
    from callgate.launcher.local.warden_client import Exit, WardenProcess
    from callgate.launcher.local.workspace import RunDirectory
    from callgate.launcher.plan.capabilities import Cgroups
    from callgate.launcher.plan.launch_plan import LaunchPlan


MARK_BYTES = 16
"""Nobody else's environment has it by chance."""


class RunResources(Resources):
    """Handed on when a run is paused and another resumes it."""

    def __init__(
        self, warden: WardenProcess, directory: RunDirectory | None, group: Group | None
    ) -> None:
        self.warden = warden
        self.directory = directory
        self.group = group
        self.mark = secrets.token_hex(MARK_BYTES)
        """In the environment of an uncontained agent, and of what it starts."""

    @property
    def exited(self) -> asyncio.Future[Exit]:
        """The end of the agent and of everything below it."""
        return self.warden.exited

    def processes(self) -> list[int]:
        """Return the processes below the warden, parents first."""
        from callgate.launcher.host.process_tree import descendants  # noqa: PLC0415  # psutil

        return descendants(self.warden.pid)

    def terminate(self) -> None:
        """Ask the agent to end."""
        self.warden.terminate()

    def kill(self) -> None:
        """Kill the agent and its descendants."""
        if sys.platform != "linux":
            from callgate.launcher.host.process_tree import kill_tree  # noqa: PLC0415  # psutil

            below = partial(kill_tree, self.warden.pid, itself=False)
            threading.Thread(target=below, daemon=True).start()
        self.warden.kill()

    async def release(self) -> None:
        """End the warden, which takes everything else with it, or do its work if it was lost."""
        await self.warden.end()
        if self.warden.lost:
            await asyncio.to_thread(self._clean_up)
        if self.directory is not None:
            self.directory.close()

    def renew_group(self, cgroups: Cgroups, plan: LaunchPlan, name: str) -> None:
        """Leave the old group, which is empty, for one with the plan's limits."""
        if self.group is not None:
            self.group.remove()
        self.group = None
        if plan.cgroup is None or self.directory is None:
            return
        group = cgroup.group_for(cgroups, plan.cgroup, name)
        self.directory.record(group.paths)
        group.make(plan.cgroup)
        self.group = group

    def _clean_up(self) -> None:
        """Do the warden's work: what left the agent's session is found only in a group."""
        if self.warden.agent is not None:
            for pid in tree.session(self.warden.agent):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        tree.kill_marked(f"{RUN_VARIABLE}={self.mark}".encode())
        if self.group is not None:
            self.group.kill()
            self.group.remove()
        if self.directory is not None:
            leftovers.remove_tree(str(self.directory.path))


def make(
    root: Path, cgroups: Cgroups, plan: LaunchPlan, name: str
) -> tuple[RunDirectory, Group | None]:
    """Make the directory and the group of a plan; raises `OSError`, having left nothing."""
    group = None if plan.cgroup is None else cgroup.group_for(cgroups, plan.cgroup, name)
    paths = [] if group is None else group.paths
    directory = workspace.RunDirectory.make(root, name, paths)
    try:
        if group is not None and plan.cgroup is not None:
            group.make(plan.cgroup)
        if plan.workspace is not None:
            directory.prepare(parts=not plan.workspace.tmpfs, drop=plan.drop)
    except OSError:
        unmake(directory, group)
        raise
    return directory, group


def unmake(directory: RunDirectory | None, group: Group | None) -> None:
    """Remove what no warden ever had."""
    if group is not None:
        group.remove()
    if directory is not None:
        leftovers.remove_tree(str(directory.path))
        directory.close()
