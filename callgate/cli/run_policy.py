"""The policy of `callgate run`: read from a file or made without one, and said in a line.

No typer and no rich: see `callgate.cli.run`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from callgate.audit.files import check_writable
from callgate.cli.purposes import purpose_of
from callgate.model import BUILT_IN
from callgate.policy import Policy
from callgate.policy.purpose import RUN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from callgate.model import LaunchSpec


def load(file: Path, say: Callable[[str], None]) -> Policy:
    """Read the policy; what it does not say is as it is without one, and so is the audit."""
    purpose = purpose_of("run")
    policy = Policy.load(file, purpose=purpose)
    if policy.audit is None or policy.audit is not purpose.audit:
        return policy
    error = check_writable(policy.audit.path)
    if error is None:
        return policy
    say(f"no audit is written: {error}")
    return Policy.load(file, purpose=RUN)


def default_policy(say: Callable[[str], None]) -> Policy:
    """Return what holds without a file: `interactive`, an audit, and `guarded` tried in shadow."""
    purpose = replace(purpose_of("run"), tried="guarded")
    error = None if purpose.audit is None else check_writable(purpose.audit.path)
    if error is not None:
        say(f"no audit is written: {error}")
        purpose = replace(purpose, audit=None)
    return Policy.profile("interactive", purpose=purpose)


def announce(policy: Policy, spec: LaunchSpec, say: Callable[[str], None]) -> None:
    """Say in one line what is enforced and what is not, in another what is tried in shadow."""
    rows = policy.explain(spec.agent)
    limits = _limits({row.key: row.value for row in rows if row.enforced == "enforced"})
    contained = _contained(spec)
    audit = "no audit" if policy.audit is None else f"audit in {policy.audit.path}"
    if policy.agents and spec.agent not in policy.agents:
        names = ", ".join(sorted(policy.agents))
        say(f"the policy says nothing of agent {spec.agent}, only of {names}")
    say(f"agent {spec.agent}: {limits}; {contained}; {audit}")
    tried = policy.purpose.tried
    if tried is not None:
        shadow = _limits({row.key: row.value for row in rows if row.enforced == "shadow"})
        noted = "counted" if policy.audit is None else "recorded"
        say(
            f"what profile {tried} would refuse ({shadow}) is {noted} and passes; to enforce it, "
            f"put `profile: {tried}` into a file and say --policy FILE"
        )
    if os.isatty(0):
        say("reads MCP from this terminal; it is meant to be started by an MCP client")


def _limits(rows: dict[str, str]) -> str:
    keys = ("timeout", "concurrency", "rate", "queue")
    return ", ".join(f"{key} {rows[key]}" for key in keys if key in rows)


def _contained(spec: LaunchSpec) -> str:
    by = "" if spec.launcher == BUILT_IN else f" by launcher {spec.launcher}"
    if spec.contained:
        return f"contained at level {spec.level}{by}"
    if by:
        return f"started{by}, of which no containment was asked"
    return "not contained: the process has all rights of yours"
