"""What a launch will do, as data: pure, decided before anything is done, and printable.

`launch_plan` makes the plan of a run from its spec and from what the host can do
(`capabilities`). Its parts have a module each: `bwrap` the sandbox and landlock's rules,
`cgroup_plan` the files of a control group, `environment` the variables, `effects` what of it
holds. A wall of the containment begins here, with a member of `LaunchPlan` and the `Effect`
that it promises; `local` only carries it out. Nothing here imports another room.
"""

from __future__ import annotations

from callgate.launcher.plan.effects import NOT_ASKED
from callgate.launcher.plan.launch_plan import LaunchPlan, Refusal, plan

__all__ = ["NOT_ASKED", "LaunchPlan", "Refusal", "plan"]
