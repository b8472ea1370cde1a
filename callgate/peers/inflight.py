"""What is in flight between a caller and an agent: whose it is, and what it is called where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from callgate.audit.events import safe_uuid

# msgspec does not resolve a Struct's annotations until it decodes one, and nobody decodes these.
# ruff: noqa: TC004

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.model import ToolCall
    from callgate.peers.agent import AgentPeer
    from callgate.peers.mcp_caller import McpClientPeer
    from callgate.protocol.jsonrpc import Response
    from callgate.protocol.mcp import CallTool
    from callgate.protocol.problem import Id
    from callgate.router.flight import Flight
    from callgate.router.timer import TimedCallback

HEAD_BYTES = 64
"""Of a frame to an agent: our id is among them, in either protocol, and no id is given twice."""

MAX_REQUESTS = 256
"""Requests other than tool calls that one connection may have in flight; the design's figure,
which is the runtime protocol's."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""What may wait for or because of one connection; the design's figure."""


class Pending(msgspec.Struct, eq=False):
    """A request that an agent has yet to answer: a call, another request, or one of ours."""

    caller: McpClientPeer | None
    id: Id
    """The caller's."""
    progress_token: Id | None = None
    """The caller's progress token; the agent's is `gate_id`."""
    gate_id: int = 0
    """The id that the gate gave this request towards the agent; 0 until assigned."""
    agent: AgentPeer | None = None
    """Whom a call was sent to."""
    flight: Flight | None = None
    """Of a tool call that was let in."""
    head: bytes = b""
    """How the frame begins that it is sent in: enough to take it out of a queue, where it is."""
    call: CallTool | None = None
    """Of a tool call that waits for its turn."""
    call_bytes: int = 0
    """What that takes."""
    method: str = ""
    """Of a request other than a tool call."""
    timeout: TimedCallback | None = None
    """Its deadline while it has no flight."""
    on_answer: Callable[[Response | None], None] | None = None
    """Of a request of ours; None means that no answer came in time."""
    stateless: bool = False
    is_task: bool = False
    """Whether the caller waits for a task, which a tool result is not."""
    cancelled_by_client: bool = False
    """The caller has cancelled it: MCP wants no answer then."""
    answer: bytes = b""
    seq: int = 0
    """The last piece that a call has streamed, where pieces are numbered."""


def with_ids(call: ToolCall, message: CallTool) -> ToolCall:
    """Return a call with what its `_meta` says that it belongs to.

    A correlation id is taken if it is a UUID: no other text of a client may reach the audit.
    """
    trace, said = message.trace(), message.correlation_id()
    correlation_id = None if said is None else safe_uuid(said)
    if not trace and correlation_id is None:
        return call
    return msgspec.structs.replace(call, trace=trace or None, correlation_id=correlation_id)
