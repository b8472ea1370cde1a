"""Agent processes that cannot hurt the host, and that end with a clear reason.

    async with LocalLauncher() as launcher:
        run = await launcher.launch(LaunchSpec("git", ("git-mcp",)), run_id=ids.next())
        ...                                # run.stdin, run.stdout, run.stderr: descriptors of
                                           # this side, non-blocking, yours to attach and close
        stopped = await run.stop("stop_requested")
        stopped.reason, stopped.state, stopped.exit_code, stopped.usage, stopped.limit

- `Policy.launch_spec(agent)` makes a `LaunchSpec` from a policy; one made by hand, as here,
  has no containment: level `privileged`, no limits, the whole tree is killed at the end.
- `launch` returns when the agent was executed, or raises `LaunchRefused` with every gap; then
  nothing was left behind. `await launcher.plan(spec)` is the same without doing it.
- `run.wait()` returns when no process of the run is left. `run.effective` says for each
  feature whether it is enforced, degraded or absent, and why.
- A run that the kernel ended for want of memory is `paused`: `launch(..., resume=run)` goes
  on in its workspace, `run.discard()` gives it up. The gate decides when.
- `find_launcher(name)` finds another launcher by its entry point; see `protocol`. `Launchers()`
  does so for each spec, by its `launcher`.

The layers: a *warden* for every run; a control group and `bwrap` for those that are contained.
The rooms, by the process that runs their code: `plan` decides what is done, as data; `host`
asks this host; `local` does it, in callgate's own process; `warden` is what runs outside of it.
Beside them: `protocol` and `plugins`, which launcher it is; `capture` and `limit_message`, for
whoever keeps a run; `doctor`, which proves what a host can enforce.
"""

from __future__ import annotations

import sys

from callgate.launcher.plan.launch_plan import LaunchPlan, Refusal, plan
from callgate.launcher.plugins import Launchers, find_launcher
from callgate.launcher.protocol import Effect, Launcher, LaunchRefused, Run, Stopped
from callgate.model import Usage

if sys.platform == "win32":
    from callgate.launcher.local.portable_launcher import PortableLauncher as LocalLauncher
else:
    from callgate.launcher.local.local_launcher import LocalLauncher

__all__ = [
    "Effect",
    "LaunchPlan",
    "LaunchRefused",
    "Launcher",
    "Launchers",
    "LocalLauncher",
    "Refusal",
    "Run",
    "Stopped",
    "Usage",
    "find_launcher",
    "plan",
]
