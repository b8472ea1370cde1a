"""The agent's side of MCP: calls out under ids of ours, answers back under the caller's.

Synchronous. Both eras: with `initialize`, whose session is replayed to a process that was
started again; and without. The gate lists the agent's tools itself, so that each has counters
of its own and may be named; what the client lists is shown without what is denied.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from callgate.errors import (
    AgentUnavailable,
    CallgateError,
    FrameTooLarge,
    InternalError,
    LimitInfo,
    ProtocolInvalid,
)
from callgate.peers.agent import AgentPeer
from callgate.peers.inflight import HEAD_BYTES, Pending
from callgate.peers.mcp_caller import HARD_FRAME_BYTES
from callgate.peers.mcp_session import McpSession
from callgate.peers.mcp_tools import LIST_TIMEOUT_NS, ToolLister
from callgate.peers.offer import CHANGED, shown_result
from callgate.peers.subscriptions import LISTEN, renamed, stream_of
from callgate.peers.swallowed import Swallowed
from callgate.protocol import jsonrpc, mcp, mcp_encode, results
from callgate.protocol.framing import Lines, Oversized
from callgate.protocol.jsonrpc import Response
from callgate.protocol.mcp import CallTool, Cancelled, Notification, Progress, Request
from callgate.protocol.problem import ProtocolError
from callgate.protocol.reserved import as_an_agent, may_be_ours
from callgate.protocol.seek import seek, seek_in
from callgate.router import refusals
from callgate.router.flight import Ending
from callgate.telemetry.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.model import GateSpec, StopReason
    from callgate.peers.agent import EndProcess
    from callgate.peers.hub import Hub
    from callgate.peers.outbox import Outbox
    from callgate.router.flight import Flight
    from callgate.router.timer import TimedCallback


class McpAgent(AgentPeer):
    """An agent that speaks MCP."""

    def __init__(self, hub: Hub, spec: GateSpec, outbox: Outbox, end_process: EndProcess) -> None:
        super().__init__(hub, spec, outbox, end_process)
        self.lines = Lines(spec.max_frame_bytes or HARD_FRAME_BYTES)
        self.session = McpSession()
        self._tools = ToolLister(self)
        self._swallowed = Swallowed(self)
        self._handshake: TimedCallback | None = None
        self._pinging = False

    def use(self, spec: GateSpec) -> None:
        self.spec = spec
        self.lines.max_frame_bytes = spec.max_frame_bytes or HARD_FRAME_BYTES

    def offer_changed(self) -> None:
        if self.caller is not None and self.session.is_open and self.session.tells_changes:
            self.caller.outbox.put(CHANGED)

    # Towards the agent.

    def encode_call(self, pending: Pending, call: CallTool) -> bytes:
        gate_id = pending.gate_id
        flight = pending.flight
        if call.meta is None and (flight is None or flight.span is None):
            return mcp_encode.encode_call(call, gate_id)
        token = None if call.token is None else gate_id
        timeout_ms: int | None = None
        trace: dict[str, str] | None = None
        if flight is not None:
            if call.timeout_ms is not None:
                timeout_ms = flight.remaining_ms(monotonic_ns())
            if flight.span is not None:
                trace = {}
                with flight.span:
                    Spans.inject(trace)
        return mcp_encode.encode_call(call, gate_id, token, timeout_ms, trace)

    def encode_cancel(self, pending: Pending) -> bytes:
        return mcp_encode.encode_cancelled(pending.gate_id)

    def send_request(self, pending: Pending, request: Request) -> None:
        if not self.is_up:
            if pending.caller is not None:
                pending.caller.refused(pending, AgentUnavailable(agent=self.name))
            return
        self.session.note(request)
        self.register(pending)
        if request.method == "initialize":
            self._tools.meta = None  # of a client that tried the other era first
            if self.is_ready:
                self._expect_handshake()
        elif pending.stateless and not self._tools.listed:
            self._tools.meta = mcp.copied(request.meta)
        token = None if request.token is None else pending.gate_id
        self.put(mcp_encode.encode_request(request, pending.gate_id, token), pending)

    def notification(self, notification: Notification) -> None:
        if notification.method != "notifications/initialized":
            self.put(mcp_encode.encode_notification(notification))
            return
        self.session.is_open = True
        if self.is_ready:  # else it is part of what is replayed
            self.outbox.put(mcp_encode.encode_notification(notification))
            self._tools.begin()

    def before_stateless_call(self, call: CallTool) -> None:
        if not self._tools.listed:
            self._tools.meta = mcp.copied(call.meta)

    def ask(
        self, method: str, params: bytes, on_answer: Callable[[Response | None], None], ns: int
    ) -> None:
        """A request of ours; `on_answer(None)` if no answer comes within `ns`."""
        pending = Pending(None, 0, method=method)
        self.register(pending)

        def give_up(_: int) -> None:
            self.cancel_request(pending)
            on_answer(None)

        pending.timeout = self.hub.call_later(ns, give_up)
        pending.on_answer = on_answer
        frame = jsonrpc.encode_request(pending.gate_id, method, params)
        pending.head = frame[:HEAD_BYTES]
        self.outbox.put(frame)

    # From the agent.

    def receive(self, data: bytes) -> None:
        now_ns = monotonic_ns()
        self.turns.begin(self.lines.feed(data, now_ns), now_ns)
        if self.lines.since_ns is not None:
            self.hub.start_frame_timeout(self.lines, self.count_rejected)

    def _receive_one(self, frame: bytes | Oversized, now_ns: int) -> None:
        del now_ns
        if isinstance(frame, Oversized):
            self._too_large(frame)
            return
        try:
            message = mcp.decode(frame)
            if may_be_ours(frame) or (message.__class__ is Response and not len(message.result)):
                frame, message, taken = as_an_agent(frame, message)
                if taken:
                    self.hub.count_reserved(self.name)
        except ProtocolError as error:
            self._reject(error, frame)
            return
        except Exception:
            self._undecodable(frame)
            raise
        if isinstance(message, Response):
            self._response(message, frame)
        else:
            self._other(message)

    def _other(self, message: mcp.Message) -> None:
        if isinstance(message, Progress):
            self._progress(message)
        elif isinstance(message, Notification):
            self._notification(message)
        elif isinstance(message, Request | CallTool):
            self._request(message)
        elif isinstance(message, Cancelled):
            self._cancelled(message)

    def _response(self, message: Response, frame: bytes) -> None:
        gate_id = message.id if isinstance(message.id, int) else 0  # no text is an id of ours
        pending = self.pending.pop(gate_id, None)
        if pending is None:
            self.late(gate_id)
            return
        if self.on_handshake is not None and self.session.initialize is None:
            self.handshake_done()  # the era without one: any answer will do
        if pending.stateless and not self._tools.listed and len(message.result):
            self._tools.begin()  # an error may only say that it wants `initialize` first
        flight = pending.flight
        try:
            if flight is None:
                self._other_answer(pending, message)
            elif flight.ending is not None:
                self.engine.work_ended(flight, answered=True)
            else:
                self._call_answer(pending, flight, message, frame)
        except Exception:
            self.broken(pending)
            raise

    def _call_answer(
        self, pending: Pending, flight: Flight, message: Response, frame: bytes
    ) -> None:
        size = flight.bytes_out = len(message.result) or len(message.error)
        ceiling = flight.lane.spec.max_output_bytes
        if ceiling is not None and size > ceiling.limit:
            error = refusals.output_too_large(flight.lane, flight.request_id, ceiling, size)
            if not ceiling.shadow:
                self.end(pending, Ending.OVERSIZED, error)
                return
            self.engine.would_deny(flight, error)
        failed = not len(message.result) or (
            results.may_be_failure(frame) and results.is_failure(message.result)
        )
        ending = Ending.FAILED if failed else Ending.COMPLETED
        self.answer(pending, ending, jsonrpc.encode_response(pending.id, message))

    def _other_answer(self, pending: Pending, message: Response) -> None:
        self.hub.cancel_callback(pending.timeout)
        if pending.on_answer is not None:
            pending.on_answer(message)
            return
        if (caller := pending.caller) is None:
            return
        if pending.method == "initialize":
            self.session.version = self._initialized(message)
            self.turns.has_batches = caller.turns.has_batches = self.session.has_batches
        if len(message.result):
            message.result = shown_result(self, pending, message.result)
        caller.answered(pending, jsonrpc.encode_response(pending.id, message))

    def _progress(self, message: Progress) -> None:
        pending = self.pending.get(message.token) if isinstance(message.token, int) else None
        if (
            pending is None
            or pending.progress_token is None
            or pending.caller is None
            or pending.cancelled_by_client
        ):
            self.hub.stray += 1
        elif pending.flight is None or pending.flight.ending is None:
            frame = mcp_encode.encode_progress(pending.progress_token, message.params)
            pending.caller.outbox.put(frame)

    def _notification(self, message: Notification) -> None:
        if message.method == "notifications/tools/list_changed" and self._tools.listed:
            self._tools.begin()
        gate_id = stream_of(message.params)
        if gate_id is not None and message.params is not None:
            listening = self.pending.get(gate_id) if isinstance(gate_id, int) else None
            if listening is None or listening.caller is None or listening.method != LISTEN:
                self.hub.stray += 1
                return
            message.params = renamed(message.params, listening.id)
        if self.caller is not None:
            self.caller.outbox.put(mcp_encode.encode_notification(message))

    def _request(self, message: Request | CallTool) -> None:
        """Sampling, elicitation, roots: the agent asks the client. No timeout; people answer."""
        error: CallgateError | None = ProtocolInvalid()
        try:
            if isinstance(message, Request) and self.caller is not None:
                error = self.caller.requests_to_client.ask(message)
        except Exception:
            self._reply(jsonrpc.encode_error(message.id, InternalError(agent=self.name)))
            raise
        if error is not None:
            error.agent = self.name
            self._reply(jsonrpc.encode_error(message.id, error))

    def _cancelled(self, message: Cancelled) -> None:
        gate_id = message.request_id
        listening = self.pending.get(gate_id) if isinstance(gate_id, int) else None
        if listening is not None and listening.caller is not None and listening.method == LISTEN:
            del self.pending[listening.gate_id]
            listening.caller.stream_ended(listening)
        elif self.caller is not None:
            self.caller.requests_to_client.withdraw(gate_id)

    def _reject(self, error: ProtocolError, frame: bytes) -> None:
        """Noise on stdout, most often. A request that cannot be read is answered."""
        self.count_rejected(error.reason)
        if error.id is None:
            self._swallowed.look(frame)
            return
        if error.is_response is False:
            self._reply(jsonrpc.encode_error(error.id, error))
        elif error.is_response and isinstance(error.id, int):
            self.unreadable(error.id)

    def _undecodable(self, frame: bytes) -> None:
        """A fault of ours met the frame before anybody knew what it is."""
        sought = seek_in(frame)
        if sought.is_response is False and sought.id is not None:
            self._reply(jsonrpc.encode_error(sought.id, InternalError(agent=self.name)))
        elif isinstance(sought.id, int) and sought.id in self.pending:
            self.broken(self.pending.pop(sought.id))

    def _too_large(self, frame: Oversized) -> None:
        self.count_rejected("frame_bytes")
        sought = seek(frame.head, frame.tail)
        limit_bytes = self.lines.max_frame_bytes
        if sought.id is None:
            return
        if sought.is_response is False:
            limit = LimitInfo("frame_bytes", f"agent:{self.name}", limit_bytes, frame.size)
            error = FrameTooLarge(agent=self.name, limit=limit)
            self._reply(jsonrpc.encode_error(sought.id, error))
        elif isinstance(sought.id, int):
            self.oversized(sought.id, frame.size, limit_bytes)

    def _reply(self, frame: bytes) -> None:
        self.hub.stray += not self.outbox.reply(frame)

    # The process's life.

    def _expect_handshake(self) -> None:
        self.hub.cancel_callback(self._handshake)
        self._handshake = self.hub.call_later(self.spec.handshake_ns, self._handshake_failed)

    def _handshake_failed(self, _: int) -> None:
        self._handshake = None
        self.hub.record("agent.handshake_failed", agent=self.name)
        self.end_process("handshake_failed")

    def _initialized(self, message: Response) -> str | None:
        """The version in an answer to `initialize`; what an error means the client knows."""
        self.hub.cancel_callback(self._handshake)
        self._handshake = None
        if not len(message.result):
            return None
        try:
            version = results.negotiated_version(message.result)
        except ProtocolError as error:
            self.count_rejected(error.reason)
            return None
        self.session.tells_changes = results.tells_changes(message.result)
        self.hub.record("agent.connected", agent=self.name)
        self.handshake_done()
        return version

    def process_launched(self, token: str | None) -> None:
        """MCP has no tokens on stdio."""

    def say_goodbye(self, reason: str) -> None:
        """The end of its stdin tells it."""

    def process_ended(self, reason: StopReason, limit: LimitInfo | None, *, again: bool) -> None:
        self.hub.cancel_callback(self._handshake)
        self._handshake = None
        self._pinging = False
        self._tools.reset()
        self.lines.since_ns = None  # its last frame will not be complete any more
        self.lines = Lines(self.lines.max_frame_bytes)
        super().process_ended(reason, limit, again=again)

    def started(self) -> None:
        initialize = self.session.initialize
        if initialize is None or self.session.version is None:
            self.ready()
            if any(pending.method == "initialize" for pending in self.pending.values()):
                self._expect_handshake()
        else:
            self.ask("initialize", initialize, self._initialized_again, self.spec.handshake_ns)

    def _initialized_again(self, response: Response | None) -> None:
        version = None if response is None else self._initialized(response)
        if version is None:
            self._handshake_failed(0)
        elif self.session.version is None:
            self.ready()  # the client begins anew meanwhile
            self._expect_handshake()
        elif version != self.session.version:
            self.end_process("protocol_violation")
        else:
            self._replay()
            self.ready()

    def _replay(self) -> None:
        if not self.session.is_open:
            return
        self.outbox.put(jsonrpc.encode_notification("notifications/initialized"))
        for method, params in self.session.requests_to_replay():
            self.ask(method, params, lambda _: None, LIST_TIMEOUT_NS)
        self._tools.begin()

    def on_cancel_ignored(self, flight: Flight) -> None:
        """Silence after a cancel is what MCP asks for: only a ping tells whether it is deaf."""
        if self._pinging:
            return
        self._pinging = True
        spec = flight.lane.spec

        def answered(response: Response | None) -> None:
            self._pinging = False
            if response is None:
                self.end_process("ignored_cancel", again=spec.on_ignored_cancel == "restart")

        self.ask("ping", b"{}", answered, max(spec.cancel_grace_ns, 1))
