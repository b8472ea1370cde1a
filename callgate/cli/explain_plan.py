"""`callgate explain --plan`: how an agent's process would be launched here, before it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from callgate.cli import say, table
from callgate.errors import ConfigError
from callgate.launcher import Launchers, LaunchPlan
from callgate.launcher.protocol import LaunchRefused
from callgate.text import quoted

if TYPE_CHECKING:
    from callgate.model import LaunchSpec
    from callgate.policy import Policy

_COLOURS = {"enforced": "green", "degraded": "yellow", "absent": "red"}


def show_plan(policy: Policy, agent: str, *, as_json: bool) -> int:
    """Print the plan, or every gap; the exit code."""
    try:
        plan = asyncio.run(_plan(policy.launch_spec(agent)))
    except ConfigError:
        say.remark(f"agent {quoted(agent)} has no `command` to plan for")
        return 1
    except LaunchRefused as refused:
        if as_json:
            say.print_json({"ok": False, "stage": refused.stage, "gaps": refused.gaps})
        else:
            say.remark(quoted(refused.describe()))
        return 1
    if as_json:
        say.print_json({"ok": True, "plan": msgspec.to_builtins(plan, str_keys=True)})
        return 0
    say.answer(f"{quoted(agent)}: level {plan.level}: {quoted(' '.join(plan.argv))}")
    rows = [(name, effect.status, effect.reason) for name, effect in plan.effective.items()]
    table.show(("feature", "status", "why"), rows, colours=_COLOURS)
    return 0


async def _plan(spec: LaunchSpec) -> LaunchPlan:
    async with Launchers() as launchers:
        launcher = launchers.named(spec)
        plan = await launcher.plan(spec) if hasattr(launcher, "plan") else None
        if isinstance(plan, LaunchPlan):
            return plan
        gaps = {"launcher": f"{spec.launcher!r} shows no plan of what it will do"}
        raise LaunchRefused(agent=spec.agent, gaps=gaps)
