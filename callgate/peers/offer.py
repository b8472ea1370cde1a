"""What of an agent a client is shown: a reload may change that. Synchronous."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from callgate.peers.subscriptions import LISTEN, renamed_result
from callgate.protocol import jsonrpc, results
from callgate.protocol.problem import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from callgate.peers.agent import AgentPeer
    from callgate.peers.inflight import Pending

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


def shown_result(agent: AgentPeer, pending: Pending, result: Raw) -> Raw:
    """Return a result as the client may see it: no denied tool, no tasks if they are refused."""
    try:
        match pending.method:
            case "initialize" | "server/discover" if agent.spec.tasks == "refuse":
                return results.without_tasks(result)
            case "tools/list":
                return results.without_tools(result, make_hidden_tool_check(agent))
            case method if method == LISTEN:
                return renamed_result(result, pending.id)
    except ProtocolError as error:
        agent.hub.count_rejected_frame(agent.name, error.reason)
        return results.NO_TOOLS if pending.method == "tools/list" else result
    return result
