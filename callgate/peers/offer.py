"""Which of an agent's tools a client is offered: a reload may change that. Synchronous."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from callgate.protocol import jsonrpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.peers.agent import AgentPeer

CHANGED = jsonrpc.encode_notification("notifications/tools/list_changed")


def make_hidden_tool_check(agent: AgentPeer) -> Callable[[str], bool]:
    """Says of a tool whether the client is not shown it, under the policy as it is now."""
    caller = "" if agent.caller is None else agent.caller.name
    lane = agent.hub.router.lane
    now_ns = monotonic_ns()
    return lambda tool: lane(caller, agent.name, tool, now_ns).spec.denied


def withheld(agent: AgentPeer) -> frozenset[str]:
    """The tools that the agent has listed and the client is not shown."""
    listed = agent.hub.router.listed_tools(agent.name)
    return frozenset(filter(make_hidden_tool_check(agent), listed))
