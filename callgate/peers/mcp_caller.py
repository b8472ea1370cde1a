"""The caller's side of MCP: frames of one client in, answers and an agent's requests out.

Synchronous; a front door is this and its IO. A tool call asks the engine; every other request
passes to the agent under an id of ours, within `requests.timeout`; notifications pass. What
cannot be read is answered if it has an id, counted, and hurts nobody else.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from callgate.errors import (
    AgentUnavailable,
    CallCanceled,
    CallgateError,
    CallTimedOut,
    ConcurrencyLimited,
    FrameTooLarge,
    InternalError,
    LimitInfo,
    PolicyDenied,
    ToolUnknown,
)
from callgate.model import ToolCall
from callgate.peers.inflight import MAX_REQUESTS, MAX_WAITING_BYTES, Pending, with_ids
from callgate.peers.quota_wait import wait_for_quota
from callgate.peers.requests_to_client import RequestsToClient
from callgate.peers.subscriptions import LISTEN
from callgate.peers.turns import Turns
from callgate.protocol import jsonrpc, mcp, mcp_encode
from callgate.protocol.framing import Lines, Oversized
from callgate.protocol.jsonrpc import Response, encode_result
from callgate.protocol.mcp import CallTool, Cancelled, Notification, Progress, Request
from callgate.protocol.problem import IdInUse, ProtocolError
from callgate.protocol.seek import seek, seek_in
from callgate.router import refusals
from callgate.router.flight import Flight

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.model import GateSpec
    from callgate.peers.agent import AgentPeer
    from callgate.peers.hub import Hub
    from callgate.peers.outbox import Outbox
    from callgate.protocol.problem import Id
    from callgate.protocol.seek import Sought
    from callgate.router.lanes import Lane

HARD_FRAME_BYTES = 128 * 1024 * 1024
"""The most that one frame may have where the policy says `unlimited`."""
_PLAIN: Final = ToolCall("", "")
"""What a call says of itself that asks for no time and has no trace; its lane knows the rest."""
LARGE_ANSWER_BYTES = 16 * 1024
"""Of an answer of our own: after such a one it is looked at anew what waits."""


class McpClientPeer:
    """One client's connection."""

    def __init__(self, hub: Hub, agent: AgentPeer, outbox: Outbox, name: str) -> None:
        self.hub = hub
        self._engine = hub.engine
        self._lane = hub.router.lane
        self.agent = agent
        self.outbox = outbox
        self.name = name
        self.lines = Lines(agent.spec.max_frame_bytes or HARD_FRAME_BYTES)
        self.requests_to_client = RequestsToClient(hub, outbox, agent.outbox)
        self.turns = Turns(hub, self._receive_one, outbox)
        self.in_flight: dict[Id, Pending] = {}
        """By the client's own ids."""
        self.others = 0
        """How many of them have no flight: other requests, and calls that wait for a quota."""
        self._waiting_bytes = 0
        """Of calls that wait for their turn, or for a quota."""
        self._has_session = False
        """Whether the client is of the era with `initialize`."""
        self.on_idle: Callable[[], None] | None = None
        """Told when nothing is in flight any more, while somebody waits for that."""
        agent.attach(self)

    def use(self, spec: GateSpec) -> None:
        """Go on under another policy."""
        self.lines.max_frame_bytes = spec.max_frame_bytes or HARD_FRAME_BYTES

    def receive(self, data: bytes) -> None:
        """Handle a turn of one read; the owner flushes the hub."""
        now_ns = monotonic_ns()
        self.turns.begin(self.lines.feed(data, now_ns), now_ns)
        if self.lines.since_ns is not None:
            self.hub.start_frame_timeout(self.lines, self._count_rejected)

    def _receive_one(self, frame: bytes | Oversized, now_ns: int) -> None:
        if isinstance(frame, Oversized):
            self._oversized(frame)
            return
        try:
            message = mcp.decode(frame)
        except ProtocolError as error:
            self._reject(error)
            return
        except Exception:
            sought = seek_in(frame)
            self._spoiled(sought, InternalError(agent=self.agent.name))
            raise
        if isinstance(message, CallTool):
            self._call(message, now_ns)
        else:
            self._other(message)

    def _other(self, message: mcp.Message) -> None:
        if isinstance(message, Request):
            self._request(message)
        elif isinstance(message, Response):
            self.requests_to_client.answered(message)
        elif isinstance(message, Cancelled):
            self._cancelled(message)
        elif isinstance(message, Progress):
            self.requests_to_client.progress(message)
        elif isinstance(message, Notification):
            self.agent.notification(message)

    def _call(self, message: CallTool, now_ns: int) -> None:
        pending = Pending(self, message.id, message.token)
        if message.meta is not None:
            pending.stateless = message.is_stateless
        if message.extra is not None:
            pending.is_task = message.is_task
        if message.id in self.in_flight:
            lane = self._lane(self.name, self.agent.name, message.name, now_ns)
            self._say(pending, self.refusal(lane, IdInUse(), now_ns))
            return
        try:
            self.begin_call(pending, message, now_ns, now_ns)
        except Exception:
            self._broken(pending)
            raise

    def begin_call(
        self,
        pending: Pending,
        message: CallTool,
        now_ns: int,
        asked_ns: int,
        *,
        waited: bool = False,
    ) -> None:
        agent = self.agent
        lane = self._lane(self.name, agent.name, message.name, now_ns)
        if message.extra is not None or agent.tools is not None or not agent.is_up:
            unfit = self._unfit(lane, message)
            if unfit is not None:
                self.refused(pending, self.refusal(lane, unfit, now_ns))
                return
        quota = lane.quota
        if (
            quota is not None
            and not self.hub.router.quota_in_hand(lane)
            and not (waited and quota.spec.shadow)  # counted or not, that one lets it pass
        ):
            wait_for_quota(self, lane, quota, pending, message, asked_ns)
            return
        call = _PLAIN
        if message.meta:
            call = with_ids(ToolCall("", "", timeout_ms=message.timeout_ms), message)
        size = len(message.arguments)
        begun = self._engine.begin(lane, call, agent, None, now_ns, size, asked_ns)
        if begun.__class__ is not Flight:
            self.refused(pending, begun)  # type: ignore[arg-type]  # else it is an error
            return
        flight: Flight = begun
        pending.flight = flight
        flight.handle = pending
        self.in_flight[message.id] = pending
        if not flight.queued:
            agent.send_call(pending, message)
        elif not self.keep_waiting(pending, message):
            error = refusals.named(self._too_much_waits(), lane, flight.request_id)
            self._engine.turn_away(flight, error)

    def keep_waiting(self, pending: Pending, message: CallTool) -> bool:
        """Keep a call until its turn; return False if too much is kept already."""
        pending.call, size = message.kept()
        pending.call_bytes = size
        self._waiting_bytes += size
        return self._waiting_bytes <= MAX_WAITING_BYTES

    def waits_no_more(self, pending: Pending) -> None:
        """Let go of a call that waited: it is sent, or answered."""
        self._waiting_bytes -= pending.call_bytes
        pending.call_bytes = 0
        pending.call = None

    def _too_much_waits(self) -> ConcurrencyLimited:
        limit = LimitInfo("waiting_bytes", "connection", MAX_WAITING_BYTES, self._waiting_bytes)
        return ConcurrencyLimited(agent=self.agent.name, limit=limit)

    def _broken(self, pending: Pending) -> None:
        """A fault of ours met a request of the client: end it, and say so."""
        flight = pending.flight
        error: CallgateError = InternalError(agent=self.agent.name)
        if flight is None:
            self.refused(pending, error)
        elif flight.queued:
            refusals.named(error, flight.lane, flight.request_id)
            self._engine.turn_away(flight, error)
        else:
            self.agent.pending.pop(pending.gate_id, None)
            self.agent.broken(pending)

    def _unfit(self, lane: Lane, message: CallTool) -> CallgateError | None:
        """Why a call cannot go to this agent at all, whatever its limits."""
        agent = self.agent
        if message.extra is not None and message.is_task and agent.spec.tasks == "refuse":
            limit = LimitInfo("tasks", f"agent:{agent.name}", "refuse")
            return refusals.plain(PolicyDenied, lane, None, limit)
        if lane.spec.denied:
            return None  # the engine says so, whether the tool exists or not
        if not agent.is_up:
            return refusals.plain(AgentUnavailable, lane, None)
        if agent.tools is not None and agent.is_ready and message.name not in agent.tools:
            return refusals.plain(ToolUnknown, lane, None)
        return None

    def leave(self, pending: Pending) -> None:
        """Something without a flight is not in flight any more."""
        self.hub.cancel_callback(pending.timeout)
        if self.in_flight.pop(pending.id, None) is not None:
            self.others -= 1

    def answered(self, pending: Pending, frame: bytes) -> None:
        """An answer under the client's id, the agent's or ours."""
        if pending.flight is None:
            self.leave(pending)
        else:
            self.in_flight.pop(pending.id, None)
        if pending.call is not None:
            self.waits_no_more(pending)
        if not pending.cancelled_by_client:
            pending.answer = frame
            self.outbox.put(frame)
        if self.on_idle is not None and not self.in_flight:
            self.on_idle()

    def refused(self, pending: Pending, error: CallgateError) -> None:
        """An answer of ours: a refusal, a timeout, a crash."""
        self.answered(pending, b"" if pending.cancelled_by_client else self._encode(pending, error))

    def encode_withheld(self, pending: Pending, error: CallgateError) -> bytes:
        """What stands in the place of an answer whose record could not be written."""
        flight = pending.flight
        if flight is not None:
            refusals.named(error, flight.lane, flight.request_id)
        return self._encode(pending, error)

    def stream_ended(self, pending: Pending) -> None:
        """The agent ends a stream that the client listens to."""
        pending.cancelled_by_client = True
        self.outbox.put(mcp_encode.encode_cancelled(pending.id))
        self.answered(pending, b"")

    def client_finished(self) -> None:
        """The client will send nothing any more: what needs it for its end, ends."""
        self.requests_to_client.close()
        for pending in list(self.in_flight.values()):
            if pending.method == LISTEN:
                self._cancel(pending)

    def agent_gone(self) -> None:
        """There will be no agent any more: nobody else answers what waits for a quota."""
        now_ns = monotonic_ns()
        for pending in list(self.in_flight.values()):
            if pending.call is not None and pending.flight is None:
                lane = self._lane(self.name, self.agent.name, pending.call.name, now_ns)
                error = refusals.plain(AgentUnavailable, lane, None)
                self.refused(pending, self.refusal(lane, error, now_ns))

    def closed(self) -> None:
        """The client went away: that is a cancel of everything it asked for."""
        self.requests_to_client.close()
        for pending in list(self.in_flight.values()):
            self._cancel(pending)

    def _request(self, message: Request) -> None:
        self.hub.count(message.method)
        self._has_session |= message.method == "initialize"
        pending = Pending(self, message.id, message.token, method=message.method)
        pending.stateless = message.meta is not None and mcp.VERSION in message.meta
        if message.id in self.in_flight:
            self._say(pending, IdInUse(agent=self.agent.name))
        elif self.others >= MAX_REQUESTS:
            limit = LimitInfo("requests", "connection", MAX_REQUESTS, self.others)
            self._say(pending, ConcurrencyLimited(agent=self.agent.name, limit=limit))
        else:
            self.in_flight[message.id] = pending
            self.others += 1
            timeout_ns = self.agent.spec.requests_timeout_ns
            if timeout_ns is not None and message.method != LISTEN:
                limit = LimitInfo("timeout", f"agent:{self.agent.name}", timeout_ns // 1_000_000)
                pending.timeout = self.hub.call_later(
                    timeout_ns, lambda _: self._request_timed_out(pending, limit)
                )
            try:
                self.agent.send_request(pending, message)
            except Exception:
                self.agent.pending.pop(pending.gate_id, None)
                self._broken(pending)
                raise

    def _request_timed_out(self, pending: Pending, limit: LimitInfo) -> None:
        self.agent.cancel_request(pending)
        self.refused(pending, CallTimedOut(agent=self.agent.name, limit=limit))

    def _cancelled(self, message: Cancelled) -> None:
        pending = self.in_flight.get(message.request_id)
        if pending is None or pending.method == "initialize":
            self.hub.stray += 1
        else:
            self._cancel(pending)

    def _cancel(self, pending: Pending) -> None:
        """MCP wants no answer to what was cancelled, so the client gets none."""
        pending.cancelled_by_client = True
        flight = pending.flight
        if flight is not None:
            self._engine.cancel(flight.request_id)
            return
        if pending.call is not None:  # it waits for a quota
            now_ns = monotonic_ns()
            lane = self._lane(self.name, self.agent.name, pending.call.name, now_ns)
            self.refusal(lane, refusals.plain(CallCanceled, lane, None), now_ns)
        self.agent.cancel_request(pending)
        self.answered(pending, b"")

    def refusal(self, lane: Lane, error: CallgateError, now_ns: int) -> CallgateError:
        """Count a refusal and write it down."""
        refusals.named(error, lane, self._engine.new_id())
        return self._engine.refuse(lane, error, now_ns)

    def _say(self, pending: Pending, error: CallgateError) -> None:
        """Answer something that was never in flight; its id may be another's that is."""
        self.outbox.put(self._encode(pending, error))

    def _encode(self, pending: Pending, error: CallgateError) -> bytes:
        if pending.method or pending.is_task or self.agent.spec.denials == "error":
            return jsonrpc.encode_error(pending.id, error)
        return mcp_encode.encode_refusal(pending.id, error, stateless=pending.stateless)

    def _reject(self, error: ProtocolError) -> None:
        error.agent = self.agent.name
        error.request_id = None if error.is_response else self._engine.new_id()
        self._count_rejected(error.reason, error.request_id)
        if error.is_response:
            self.requests_to_client.spoiled(error.id, error)
        else:
            self.outbox.put(jsonrpc.encode_error(error.id, error))

    def _count_rejected(self, reason: str, request_id: str | None = None) -> None:
        lane = self._lane(self.name, self.agent.name, "", monotonic_ns())
        self.hub.count_rejected_frame(self.agent.name, reason, lane.caller.shown, request_id)

    def _oversized(self, frame: Oversized) -> None:
        sought = seek(frame.head, frame.tail)
        request_id = None if sought.is_response else self._engine.new_id()
        self._count_rejected("frame_bytes", request_id)
        scope = f"agent:{self.agent.name}"
        limit = LimitInfo("frame_bytes", scope, self.lines.max_frame_bytes, frame.size)
        error = FrameTooLarge(request_id=request_id, agent=self.agent.name, limit=limit)
        self._spoiled(sought, error)

    def _spoiled(self, sought: Sought, error: CallgateError) -> None:
        """Tell whoever waits that a frame came to nothing."""
        if sought.is_response:
            self.requests_to_client.spoiled(sought.id, error)
        elif sought.is_call and sought.id is not None and self.agent.spec.denials != "error":
            stateless = not self._has_session
            self.outbox.put(mcp_encode.encode_refusal(sought.id, error, stateless=stateless))
        else:
            self.outbox.put(jsonrpc.encode_error(sought.id, error))

    def answer_own(self, pending: Pending, result: bytes) -> None:
        """Answer a request from what the gate itself knows: much, maybe, to one who asked little.

        So it is not more than a connection may have waiting, and is counted as soon as it is.
        """
        if self.outbox.pipe.flooded:
            self.refused(pending, self._too_much_waits())
            return
        self.answered(pending, encode_result(pending.id, result))
        if len(result) > LARGE_ANSWER_BYTES:
            self.hub.flush()
