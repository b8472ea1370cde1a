"""Requests of an agent to its client: sampling, elicitation, roots.

Synchronous. They pass under ids and progress tokens of ours and have no timeout, because people
may have to answer. When the agent dies they are cancelled; when the client will answer nothing
any more, the agent is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callgate.errors import (
    CallCanceled,
    CallgateError,
    ConcurrencyLimited,
    LimitInfo,
)
from callgate.peers.inflight import MAX_REQUESTS
from callgate.protocol import jsonrpc, mcp_encode
from callgate.protocol.problem import IdInUse

if TYPE_CHECKING:
    from callgate.peers.hub import Hub
    from callgate.peers.outbox import Outbox
    from callgate.protocol.jsonrpc import Response
    from callgate.protocol.mcp import Progress, Request
    from callgate.protocol.problem import Id


class RequestsToClient:
    """The requests of the agent that the client has yet to answer."""

    __slots__ = ("_gate_ids", "_hub", "_last_id", "_open", "_to_agent", "_to_client", "is_closed")

    def __init__(self, hub: Hub, to_client: Outbox, to_agent: Outbox) -> None:
        self._hub = hub
        self._to_client = to_client
        self._to_agent = to_agent
        self._open: dict[int, tuple[Id, Id | None]] = {}
        """By our id: the agent's id and progress token."""
        self._gate_ids: dict[Id, int] = {}
        """By the agent's id: ours."""
        self._last_id = 0
        self.is_closed = False
        """Whether the client has said its last word."""

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, request: Request) -> CallgateError | None:
        """Pass a request of the agent on; why not, if not."""
        if self.is_closed:
            return CallCanceled()
        if request.id in self._gate_ids:
            return IdInUse()
        if len(self._open) >= MAX_REQUESTS:
            limit = LimitInfo("requests", "connection", MAX_REQUESTS, len(self._open))
            return ConcurrencyLimited(limit=limit)
        self._last_id = gate_id = self._last_id + 1
        self._open[gate_id] = request.id, request.token
        self._gate_ids[request.id] = gate_id
        self._hub.count(request.method)
        self._to_client.put(mcp_encode.encode_request(request, gate_id, gate_id))
        return None

    def answered(self, response: Response) -> None:
        """The client answers."""
        found = self._take(response.id)
        if found is None:
            self._hub.stray += 1
        else:
            self._to_agent.put(jsonrpc.encode_response(found, response))

    def spoiled(self, gate_id: Id | None, error: CallgateError) -> None:
        """The client's answer cannot be read: the agent need not wait any longer."""
        found = self._take(gate_id)
        if found is not None:
            self._to_agent.put(jsonrpc.encode_error(found, error))

    def progress(self, message: Progress) -> None:
        """The client's news of a request of the agent."""
        found = self._open.get(message.token) if isinstance(message.token, int) else None
        if found is None or found[1] is None:
            self._hub.stray += 1
        else:
            self._to_agent.put(mcp_encode.encode_progress(found[1], message.params))

    def withdraw(self, agent_id: Id) -> None:
        """The agent cancels a request of its own."""
        gate_id = self._gate_ids.get(agent_id)
        if gate_id is None:
            self._hub.stray += 1
        else:
            self._take(gate_id)
            self._to_client.put(mcp_encode.encode_cancelled(gate_id))

    def withdraw_all(self) -> None:
        """Cancel all that the agent asked: its process has ended."""
        for gate_id in self._open:
            self._to_client.put(mcp_encode.encode_cancelled(gate_id))
        self._open.clear()
        self._gate_ids.clear()

    def close(self) -> None:
        """The client will answer nothing any more: tell the agent, now and from now on."""
        self.is_closed = True
        for agent_id, _ in self._open.values():
            self._to_agent.put(jsonrpc.encode_error(agent_id, CallCanceled()))
        self._open.clear()
        self._gate_ids.clear()

    def _take(self, gate_id: Id | None) -> Id | None:
        """The agent's id of an open request, which is not open any more."""
        found = self._open.pop(gate_id, None) if isinstance(gate_id, int) else None
        if found is None:
            return None
        del self._gate_ids[found[0]]
        return found[0]
