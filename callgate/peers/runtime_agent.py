"""The agent's side of the runtime protocol v1, for callers that speak MCP.

Synchronous. The agent says hello with its one-time token, registers its tools, and beats its
heart; a call becomes `core.tool.call` and its one result an MCP result; what it streams becomes
progress, for callers that asked for it. An agent whose heart stops is not called until it beats
again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hmac import compare_digest
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from msgspec import Raw

from callgate.errors import AgentUnavailable, ProtocolInvalid
from callgate.limits.deadlines import NEVER
from callgate.peers import runtime_facade
from callgate.peers.agent import AgentPeer
from callgate.peers.heartbeat import HEARTBEAT_MS, Heart
from callgate.peers.offer import CHANGED, make_hidden_tool_check
from callgate.peers.runtime_tools import RegisteredTools
from callgate.protocol import mcp_encode, runtime
from callgate.protocol import runtime_table as table
from callgate.protocol.framing import Lengths
from callgate.protocol.jsonrpc import encode_json, encode_result
from callgate.protocol.problem import ProtocolError, Reason
from callgate.protocol.seek import SOUGHT_BYTES
from callgate.router import refusals
from callgate.router.flight import Ending

if TYPE_CHECKING:
    from callgate.errors import LimitInfo
    from callgate.model import GateSpec, StopReason
    from callgate.peers.agent import EndProcess
    from callgate.peers.hub import Hub
    from callgate.peers.inflight import Pending
    from callgate.peers.outbox import Outbox
    from callgate.protocol.framing import Oversized
    from callgate.protocol.mcp import CallTool, Notification, Request
    from callgate.router.flight import Flight
    from callgate.router.timer import TimedCallback

_MS_NS: Final = 1_000_000
_METHOD_NOT_FOUND: Final = -32601
_CALL: Final = "call-"
"""Before our number of a call, in the id of the message that sends it."""


class RuntimeAgent(AgentPeer):
    """An agent that speaks the runtime protocol."""

    def __init__(
        self,
        hub: Hub,
        spec: GateSpec,
        outbox: Outbox,
        end_process: EndProcess,
        *,
        heartbeat_ms: int = HEARTBEAT_MS,
    ) -> None:
        super().__init__(hub, spec, outbox, end_process)
        self.tools: RegisteredTools = RegisteredTools(self.name)
        self._limit_bytes = spec.max_frame_bytes or runtime.MAX_FRAME_BYTES
        self._frames = Lengths(self._limit_bytes)
        self._token: str | None = None
        self._session: str | None = None
        self._heart = Heart(hub, self.name, heartbeat_ms, self._mark_unhealthy)
        self._handshake: TimedCallback | None = None
        self._listing: list[Pending] = []
        """Clients' `tools/list` that wait for the first registration."""
        self._has_listed = False
        """Whether a client has seen a list, so that it may hear of a change."""
        self._sent = 0
        self.is_ready = False

    def use(self, spec: GateSpec) -> None:
        self.spec = spec
        self._limit_bytes = self._frames.max_frame_bytes = (
            spec.max_frame_bytes or runtime.MAX_FRAME_BYTES
        )

    # Towards the agent.

    def process_launched(self, token: str | None) -> None:
        """A process was started that knows this token, once."""
        self._token = token
        self.tools.clear()
        self.hub.cancel_callback(self._handshake)
        self._handshake = self.hub.call_later(self.spec.handshake_ns, self._handshake_failed)

    def started(self) -> None:
        """It says hello by itself."""

    def before_stateless_call(self, call: CallTool) -> None:
        """What the client's era is does not matter here."""

    def encode_call(self, pending: Pending, call: CallTool) -> bytes:
        flight = pending.flight
        timeout_ms = None
        if flight is not None and flight.deadline_ns < NEVER:
            timeout_ms = flight.remaining_ms(monotonic_ns())
        who = {"type": "agent", "id": "" if pending.caller is None else pending.caller.name}
        body = table.Call(
            str(pending.gate_id),
            f"{self.name}/{call.name}",
            call.arguments if len(call.arguments) else Raw(b"{}"),
            timeout_ms=timeout_ms,
            caller=Raw(encode_json(who)),
        )
        gate_id = f"{_CALL}{pending.gate_id}"
        if flight is None:
            return runtime.encode(body, gate_id, _utc_now())
        return runtime.encode(
            body,
            gate_id,
            _utc_now(),
            request_id=flight.request_id,
            correlation_id=flight.correlation_id,
        )

    def encode_cancel(self, pending: Pending) -> bytes:
        grace_ms = self.spec.cancel_grace_ns // _MS_NS
        return self._encode(table.Cancel(str(pending.gate_id), deadline_ms=grace_ms))

    def send_request(self, pending: Pending, request: Request) -> None:
        """This agent has tools only: the gate itself is the client's server."""
        caller = pending.caller
        if caller is None:
            return
        if request.method == "tools/list" and not self.is_ready:  # it has yet to register any
            if self.is_up:
                self._listing.append(pending)
            else:
                caller.refused(pending, AgentUnavailable(agent=self.name))
            return
        self._has_listed |= request.method == "tools/list"
        result = runtime_facade.answer(request, self.name, self._offered())
        if result is not None:
            caller.answer_own(pending, result)
            return
        error = ProtocolInvalid(agent=self.name)
        error.jsonrpc = _METHOD_NOT_FOUND  # type: ignore[misc]  # the one that JSON-RPC names
        caller.refused(pending, error)

    def notification(self, notification: Notification) -> None:
        """The runtime protocol has nothing like MCP's; the gate needs none of them."""

    def cancel_request(self, pending: Pending) -> None:
        """A request other than a call was never the agent's."""
        if pending in self._listing:
            self._listing.remove(pending)

    def say_goodbye(self, reason: str) -> None:
        """Tell the agent that the connection will close."""
        if self._session is not None:
            self.outbox.put(self._encode(table.Goodbye(reason)))

    def on_cancel_ignored(self, flight: Flight) -> None:
        """An agent of this protocol has to answer a cancel."""
        self.end_process("ignored_cancel", again=flight.lane.spec.on_ignored_cancel == "restart")

    # From the agent.

    def receive(self, data: bytes) -> None:
        now_ns = monotonic_ns()
        self.turns.begin(self._frames.feed(data, now_ns), now_ns)
        if self._frames.since_ns is not None:
            self.hub.start_frame_timeout(self._frames, self.count_rejected)

    def _receive_one(self, frame: bytes | Oversized, now_ns: int) -> None:
        del now_ns
        if isinstance(frame, bytes):
            self._frame(frame)
        else:
            self._too_large(frame)

    def _frame(self, frame: bytes) -> None:
        try:
            self._take(runtime.decode(frame, "agent"))
        except ProtocolError as error:
            self.count_rejected(error.reason)
            if error.id is not None:
                said = table.Error("protocol.invalid", str(error.reason), retryable=False)
                self._reply(table.CoreError(), str(error.id), error=said)
        except Exception:
            call_id = runtime.seek_call(frame[:SOUGHT_BYTES], frame[-SOUGHT_BYTES:])
            pending = self.pending.pop(_gate_id(call_id or ""), None)
            if pending is not None:  # else it was taken, and whoever took it has ended it
                self.broken(pending)
            raise

    def _take(self, message: runtime.Message) -> None:
        body = message.body
        if isinstance(body, table.Hello):
            self._hello(message, body)
        elif self._session is None:
            raise ProtocolError(Reason.TYPE, rpc_id=message.id)
        elif isinstance(body, table.Result):
            self._result(body)
        elif isinstance(body, table.Stream):
            self._stream(body)
        elif isinstance(body, table.Heartbeat):
            self._heartbeat(body)
        elif isinstance(body, table.Register):
            self._register(message, body)
        elif isinstance(body, table.Unregister):
            self._unregister(message, body)
        elif isinstance(body, table.AgentError):
            self._not_taken(message)

    def _hello(self, message: runtime.Message, hello: table.Hello) -> None:
        token, self._token = self._token, None  # good for one try
        problem = None
        if token is None or not compare_digest(hello.session_token.encode(), token.encode()):
            problem = table.Error("protocol.unauthorized", "the token is not valid")
            self.hub.record("security.denied", agent=self.name, code="protocol.unauthorized")
        elif hello.agent_id != self.name:
            problem = table.Error("protocol.unauthorized", "the token is another agent's")
            self.hub.record("security.denied", agent=self.name, code="protocol.unauthorized")
        elif runtime.V1 not in hello.protocol.supported_versions:
            problem = table.Error("protocol.invalid", "no version in common; this side has 1")
        if problem is not None:
            refused = self._encode(table.Refused(), in_reply_to=message.id, error=problem)
            self.outbox.put(refused)
            self._handshake_failed(0)
            return
        self._session = uuid4().hex
        welcome = table.Welcome(
            runtime.V1,
            self._session,
            self._heart.interval_ms,
            self._limit_bytes,
            table.Server("0.1", self._session[:12]),
        )
        self.outbox.put(self._encode(welcome, in_reply_to=message.id))
        self.hub.record("agent.connected", agent=self.name)
        self._heart.beat()

    def _handshake_failed(self, _: int) -> None:
        self.hub.cancel_callback(self._handshake)
        self._handshake = None
        self.hub.record("agent.handshake_failed", agent=self.name)
        for pending in self._listing:
            if pending.caller is not None:
                pending.caller.refused(pending, AgentUnavailable(agent=self.name))
        self._listing.clear()
        self.end_process("handshake_failed")

    def _register(self, message: runtime.Message, body: table.Register) -> None:
        reply = self.tools.register(body)
        self._reply(reply, message.id)
        names = [tool_id.removeprefix(f"{self.name}/") for tool_id in reply.registered]
        self.hub.router.list_tools(self.name, names)
        self._tools_changed()

    def _unregister(self, message: runtime.Message, body: table.Unregister) -> None:
        self._reply(self.tools.unregister(body), message.id)
        self._tools_changed()

    def _tools_changed(self) -> None:
        self.hub.cancel_callback(self._handshake)
        self._handshake = None
        self.handshake_done()
        if not self.is_ready:
            self.ready()
        listing, self._listing = self._listing, []
        for pending in listing:
            if pending.caller is not None:
                tools = runtime_facade.tool_list(self._offered(), stateless=pending.stateless)
                pending.caller.answer_own(pending, tools)
        self.offer_changed()
        self._has_listed |= bool(listing)

    def _offered(self) -> list[table.Tool]:
        """The tools that the client may see."""
        is_denied = make_hidden_tool_check(self)
        return [tool for name, tool in self.tools.items() if not is_denied(name)]

    def offer_changed(self) -> None:
        if self.caller is not None and self._has_listed:
            self.caller.outbox.put(CHANGED)

    def _result(self, body: table.Result) -> None:
        gate_id = _gate_id(body.call_id)
        pending = self.pending.pop(gate_id, None)
        flight = None if pending is None else pending.flight
        if pending is None or flight is None:
            self.late(gate_id)
        elif flight.ending is not None:
            self.engine.work_ended(flight, answered=body.status != "canceled")
        else:
            try:
                self._answered(pending, flight, body)
            except Exception:
                self.broken(pending)
                raise

    def _answered(self, pending: Pending, flight: Flight, body: table.Result) -> None:
        size = flight.bytes_out = len(body.output)
        ceiling = flight.lane.spec.max_output_bytes
        if ceiling is not None and size > ceiling.limit:
            error = refusals.output_too_large(flight.lane, flight.request_id, ceiling, size)
            if not ceiling.shadow:
                self.end(pending, Ending.OVERSIZED, error)
                return
            self.engine.would_deny(flight, error)
        ending = Ending.COMPLETED if body.status == "succeeded" else Ending.FAILED
        result = runtime_facade.call_result(body, stateless=pending.stateless)
        self.answer(pending, ending, encode_result(pending.id, result))

    def _stream(self, body: table.Stream) -> None:
        pending = self.pending.get(_gate_id(body.call_id))
        flight = None if pending is None else pending.flight
        if pending is None or flight is None or flight.ending or body.seq <= pending.seq:
            self.hub.stray += 1
            return
        pending.seq = body.seq
        if pending.progress_token is not None and pending.caller is not None:
            params = runtime_facade.progress(body)
            pending.caller.outbox.put(mcp_encode.encode_progress(pending.progress_token, params))

    def _not_taken(self, message: runtime.Message) -> None:
        """The agent answers one of our messages with an error; if that was a call, it has ended."""
        replied = message.in_reply_to or ""
        if replied.startswith(_CALL):
            call_id = replied.removeprefix(_CALL)
            self._result(table.Result(call_id, "failed", error=message.error))
        else:
            self.hub.stray += 1

    # Its health.

    def _mark_unhealthy(self) -> None:
        if self.is_up:
            self.is_up = False
            self.hub.record("agent.marked_unhealthy", agent=self.name)
            self.refuse_waiting()

    def _heartbeat(self, body: table.Heartbeat) -> None:
        if body.session_id != self._session:
            self.hub.stray += 1
            return
        self._heart.beat()
        if body.status == "unhealthy":
            self._mark_unhealthy()
        elif not self.is_up:
            self.is_up = True
            self.hub.record("agent.recovered", agent=self.name)

    def process_ended(self, reason: StopReason, limit: LimitInfo | None, *, again: bool) -> None:
        self._heart.stop()
        self.hub.cancel_callback(self._handshake)
        self._handshake = self._session = None
        self._frames.since_ns = None  # its last frame will not be complete any more
        self._frames = Lengths(self._limit_bytes)
        super().process_ended(reason, limit, again=again)
        if not again:
            for pending in self._listing:
                if pending.caller is not None:
                    pending.caller.refused(pending, AgentUnavailable(agent=self.name))
            self._listing.clear()

    def _too_large(self, frame: Oversized) -> None:
        self.count_rejected("frame_bytes")
        call_id = runtime.seek_call(frame.head, frame.tail)
        if call_id is not None:
            self.oversized(_gate_id(call_id), frame.size, self._limit_bytes)

    def _reply(self, body: table.Body, message_id: str, **chain: Any) -> None:
        """Answer a message of the agent, unless it reads none of the answers."""
        if not self.outbox.reply(self._encode(body, in_reply_to=message_id, **chain)):
            self.hub.stray += 1

    def _encode(self, body: table.Body, **chain: Any) -> bytes:
        self._sent += 1
        return runtime.encode(body, f"core-{self._sent}", _utc_now(), **chain)


def _gate_id(call_id: str) -> int:
    """Our number of a call; 0, which no call has, for what is not one of ours."""
    return int(call_id) if call_id.isascii() and call_id.isdigit() and len(call_id) < 20 else 0  # noqa: PLR2004


def _utc_now() -> str:
    """Return the wall clock's time as RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
