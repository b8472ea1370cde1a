"""The one line with which `callgate run` ends: what it did, and how to see more of it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from callgate.stores.place import state_dir

if TYPE_CHECKING:
    from callgate.router import Router


def summary(router: Router, agent: str) -> str:
    """Return how many calls there were, were refused and would have been, and the next command."""
    tools = router.snapshot()["tools"]
    refused = sum(sum(tool["refusals"].values()) for tool in tools)
    shadowed = sum(sum(tool["would_deny"].values()) for tool in tools)
    calls = refused + sum(sum(tool["outcomes"].values()) for tool in tools)
    noun = "call" if calls == 1 else "calls"
    text = f"agent {agent}: {calls} {noun}, {refused} refused, {shadowed} would have been refused"
    return f"{text}; {_next(router, agent)}"


def _next(router: Router, agent: str) -> str:
    audit = router.policy.audit
    if audit is None:
        return "there is no audit of them"
    words = ["callgate", "calls", "--agent", agent]
    if audit.path != str(state_dir() / "audit"):
        words += ["--log", audit.path]
    return f"see: {shlex.join(words)}"
