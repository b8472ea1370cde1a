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
    FrameTooLarge,
    LimitInfo,
    ProtocolInvalid,
)
from callgate.peers.inflight import MAX_REQUESTS
from callgate.protocol import jsonrpc, mcp_encode

if TYPE_CHECKING:
    from callgate.peers.hub import Hub
    from callgate.peers.outbox import Outbox
    from callgate.protocol.jsonrpc import Response
    from callgate.protocol.mcp import Progress, Request
    from callgate.protocol.problem import Id


class Asked:
    """What one client has been asked and has yet to answer."""

    __slots__ = ("_hub", "_last_id", "_open", "_own_ids", "_to_agent", "_to_client", "is_closed")

    def __init__(self, hub: Hub, to_client: Outbox, to_agent: Outbox) -> None:
        self._hub = hub
        self._to_client = to_client
        self._to_agent = to_agent
        self._open: dict[int, tuple[Id, Id | None]] = {}
        """By our id: the agent's id and progress token."""
        self._own_ids: dict[Id, int] = {}
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
        if request.id in self._own_ids:
            return ProtocolInvalid()
        if len(self._open) >= MAX_REQUESTS:
            limit = LimitInfo("requests", "connection", MAX_REQUESTS, len(self._open))
            return ConcurrencyLimited(limit=limit)
        self._last_id = own_id = self._last_id + 1
        self._open[own_id] = request.id, request.token
        self._own_ids[request.id] = own_id
        self._hub.count(request.method)
        self._to_client.put(mcp_encode.encode_request(request, own_id, own_id))
        return None

    def answered(self, response: Response) -> None:
        """The client answers."""
        asked = self._take(response.id)
        if asked is None:
            self._hub.stray += 1
        else:
            self._to_agent.put(jsonrpc.encode_response(asked, response))

    def spoiled(self, own_id: Id | None, error: ProtocolInvalid | FrameTooLarge) -> None:
        """The client's answer cannot be read: the agent need not wait any longer."""
        asked = self._take(own_id)
        if asked is not None:
            self._to_agent.put(jsonrpc.encode_error(asked, error))

    def progress(self, message: Progress) -> None:
        """The client's news of a request of the agent."""
        asked = self._open.get(message.token) if isinstance(message.token, int) else None
        if asked is None or asked[1] is None:
            self._hub.stray += 1
        else:
            self._to_agent.put(mcp_encode.encode_progress(asked[1], message.params))

    def withdraw(self, agent_id: Id) -> None:
        """The agent cancels a request of its own."""
        own_id = self._own_ids.get(agent_id)
        if own_id is None:
            self._hub.stray += 1
        else:
            self._take(own_id)
            self._to_client.put(mcp_encode.encode_cancelled(own_id))

    def withdraw_all(self) -> None:
        """The agent that asked is gone: nobody wants these answers."""
        for own_id in self._open:
            self._to_client.put(mcp_encode.encode_cancelled(own_id))
        self._open.clear()
        self._own_ids.clear()

    def close(self) -> None:
        """The client will answer nothing any more: tell the agent, now and from now on."""
        self.is_closed = True
        for agent_id, _ in self._open.values():
            self._to_agent.put(jsonrpc.encode_error(agent_id, CallCanceled()))
        self._open.clear()
        self._own_ids.clear()

    def _take(self, own_id: Id | None) -> Id | None:
        """The agent's id of an open request, which is not open any more."""
        asked = self._open.pop(own_id, None) if isinstance(own_id, int) else None
        if asked is None:
            return None
        del self._own_ids[asked[0]]
        return asked[0]
