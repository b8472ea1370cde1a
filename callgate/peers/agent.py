"""An agent's connection: what is in flight there, and how each of it is settled once.

Synchronous, and the same for every protocol; what is protocol's own is in the subclasses. The
peer owns the flights that it sends: the engine tells it when one may go, must stop, or has
ignored its cancel. The process behind it may die and come again: what it may have read is
answered with the reason, what it cannot have read is kept for the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Protocol

from callgate.errors import (
    AgentCrashed,
    AgentUnavailable,
    CallCanceled,
    CallgateError,
    FrameTooLarge,
    InternalError,
    LimitInfo,
    ProtocolInvalid,
    ResourceLimitExceeded,
)
from callgate.peers.inflight import HEAD_BYTES
from callgate.peers.turns import Turns
from callgate.router import refusals
from callgate.router.flight import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from callgate.model import GateSpec, StopReason
    from callgate.peers.hub import Hub
    from callgate.peers.inflight import Pending
    from callgate.peers.mcp_caller import McpClientPeer
    from callgate.peers.outbox import Outbox
    from callgate.protocol.framing import Oversized
    from callgate.protocol.mcp import CallTool, Notification, Request
    from callgate.router.flight import Flight

MAX_OVERDUE = 1_024
"""Calls that ignored their cancel and are remembered, so that a late answer is known as one."""


class EndProcess(Protocol):
    """Whoever can end a process."""

    def __call__(self, reason: StopReason, *, again: bool = False) -> None:
        """It has to go; `again` starts another whatever the policy says of restarts."""


class AgentPeer(ABC):
    """The connection to one agent."""

    def __init__(self, hub: Hub, spec: GateSpec, outbox: Outbox, end_process: EndProcess) -> None:
        self.hub = hub
        self.engine = hub.engine
        self.spec = spec
        self.name = spec.agent
        hub.router.list_tools(spec.agent, ())  # the operator's name: it counts from now on
        self.outbox = outbox
        self.tools: Container[str] | None = None
        """Names that can be called; None if only the agent knows."""
        self.end_process = end_process
        self.on_handshake: Callable[[], None] | None = None
        """Told once a process has shown that it speaks the protocol."""
        self.on_wanted: Callable[[], None] | None = None
        """Told when something waits for a process that is not there."""
        self.on_ready: Callable[[], None] | None = None
        """Told when nothing is held any more."""
        self.pending: dict[int, Pending] = {}
        """What the agent has yet to answer, by our ids."""
        self.caller: McpClientPeer | None = None
        self.is_up = True
        """Whether calls are taken: the process runs, or is being started again."""
        self.is_ready = True
        """Whether what is sent goes out; else it is held."""
        self._held: list[tuple[int, bytes]] = []
        """Each with the number of its request, or 0."""
        self.held_bytes = 0
        self._ignored_cancels: OrderedDict[int, Flight] = OrderedDict()
        self.last_id = 0
        self.turns = Turns(hub, self._receive_one)
        self.count_rejected = partial(hub.count_rejected_frame, spec.agent)

    def attach(self, caller: McpClientPeer) -> None:
        """The one client that this agent may ask and notify."""
        self.caller = caller

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Handle a turn of one read; the owner flushes the hub."""

    @abstractmethod
    def _receive_one(self, frame: bytes | Oversized, now_ns: int) -> None:
        """Handle one frame."""

    @abstractmethod
    def use(self, spec: GateSpec) -> None:
        """Go on under another policy."""

    @abstractmethod
    def offer_changed(self) -> None:
        """Tell the client to list the tools again, if it may be told."""

    @abstractmethod
    def send_request(self, pending: Pending, request: Request) -> None:
        """Pass on a request other than a tool call, or answer it."""

    @abstractmethod
    def notification(self, notification: Notification) -> None:
        """Pass on a client's notification."""

    @abstractmethod
    def before_stateless_call(self, call: CallTool) -> None:
        """A call of the era without a handshake is about to be sent."""

    @abstractmethod
    def encode_call(self, pending: Pending, call: CallTool) -> bytes:
        """A call under `pending.gate_id`."""

    @abstractmethod
    def encode_cancel(self, pending: Pending) -> bytes:
        """The protocol's cancel."""

    @abstractmethod
    def process_launched(self, token: str | None) -> None:
        """A process was started; it was given this token, if its protocol has one."""

    @abstractmethod
    def say_goodbye(self, reason: str) -> None:
        """Tell the agent that the connection will close, if its protocol has that."""

    @abstractmethod
    def started(self) -> None:
        """A new process has taken the place of one that died."""

    def send_call(self, pending: Pending, call: CallTool) -> None:
        """Send an admitted call."""
        if pending.stateless:
            self.before_stateless_call(call)
        self.last_id = gate_id = self.last_id + 1
        pending.gate_id = gate_id
        self.pending[gate_id] = pending
        pending.agent = self
        frame = self.encode_call(pending, call)
        self.hub.wire.started.append(pending)
        self.put(frame, pending)

    def register(self, pending: Pending) -> None:
        """Give a request an id of ours."""
        self.last_id = gate_id = self.last_id + 1
        pending.gate_id = gate_id
        self.pending[gate_id] = pending

    def put(self, frame: bytes, pending: Pending | None = None) -> None:
        """Send a frame, of this request, now or when the process is ready."""
        if pending is not None:
            pending.head = frame[:HEAD_BYTES]
        if self.is_ready:
            self.outbox.put(frame)
        else:
            self._hold(frame, 0 if pending is None else pending.gate_id)

    def _hold(self, frame: bytes, gate_id: int) -> None:
        self._held.append((gate_id, frame))
        self.held_bytes += len(frame)
        if self.on_wanted is not None:
            self.on_wanted()

    @property
    def is_wanted(self) -> bool:
        """Whether something waits for a process."""
        return bool(self._held)

    def handshake_done(self) -> None:
        """The process speaks the protocol."""
        if self.on_handshake is not None:
            self.on_handshake()
            self.on_handshake = None

    def ready(self) -> None:
        """Send what was held."""
        self.is_ready = True
        held, self._held = self._held, []
        self.held_bytes = 0
        for _, frame in held:
            self.outbox.put(frame)
        if self.on_ready is not None:
            self.on_ready()

    def cancel_request(self, pending: Pending) -> None:
        """A request other than a call is not wanted any more: take it back, or cancel it."""
        if self.pending.pop(pending.gate_id, None) is None:
            return
        if not self._take_back(pending) and pending.method != "initialize":
            self.outbox.put_first(self.encode_cancel(pending))  # all but that may be cancelled

    # What the engine says of flights.

    def entered(self, flight: Flight) -> None:
        pending: Pending | None = flight.handle
        if pending is not None and pending.call is not None:  # else whoever began it sends it
            call = pending.call
            if pending.caller is not None:
                pending.caller.waits_no_more(pending)
            self.send_call(pending, call)

    def turned_away(self, flight: Flight) -> None:
        pending: Pending | None = flight.handle
        if pending is not None and pending.caller is not None and flight.refused is not None:
            pending.caller.refused(pending, flight.refused)

    def interrupt(self, flight: Flight) -> None:
        pending: Pending = flight.handle
        if self._take_back(pending):
            del self.pending[pending.gate_id]
        else:
            self.outbox.put_first(self.encode_cancel(pending))
            flight.lingers = True
            flight.grace_ns = flight.lane.spec.cancel_grace_ns
        lane = flight.lane
        if flight.ending is Ending.TIMED_OUT:
            elapsed_ns = flight.deadline_ns - flight.asked_ns
            error: CallgateError = refusals.timed_out(lane, flight.request_id, elapsed_ns)
        else:
            error = refusals.plain(CallCanceled, lane, flight.request_id)
        self.end(pending, Ending.CANCELLED, error)

    def ignored(self, flight: Flight) -> None:
        pending: Pending = flight.handle
        self.pending.pop(pending.gate_id, None)
        self._ignored_cancels[pending.gate_id] = flight
        if len(self._ignored_cancels) > MAX_OVERDUE:
            _, oldest = self._ignored_cancels.popitem(last=False)
            self.engine.work_ended(oldest, answered=False)
        if flight.lane.spec.on_ignored_cancel != "release":
            self.on_cancel_ignored(flight)

    @abstractmethod
    def on_cancel_ignored(self, flight: Flight) -> None:
        """A cancel was ignored and the policy wants more than patience."""

    # How calls end.

    def end(self, pending: Pending, ending: Ending, error: CallgateError) -> None:
        """Settle a call with an error of ours and answer its caller."""
        flight = pending.flight
        if flight is None:
            return
        error = self.engine.finish(flight, ending) or error
        self.hub.wire.ended.append(pending)
        if pending.caller is not None:
            pending.caller.refused(pending, error)

    def answer(self, pending: Pending, ending: Ending, frame: bytes) -> None:
        """Settle a call with the agent's answer and pass it on."""
        flight = pending.flight
        if flight is None:
            return
        failure = self.engine.finish(flight, ending)
        flight.handle = None  # or only the garbage collector would find the two
        self.hub.wire.ended.append(pending)
        caller = pending.caller
        if caller is None:
            return
        if failure is None:
            caller.answered(pending, frame)
        else:
            caller.refused(pending, failure)

    def late(self, gate_id: int) -> None:
        """An answer to nothing in flight: late, doubled or invented."""
        flight = self._ignored_cancels.pop(gate_id, None)
        if flight is not None:
            self.engine.work_ended(flight, answered=True)
        else:
            self.hub.stray += 1

    def oversized(self, gate_id: int, size: int, limit_bytes: int) -> None:
        """An answer was too large to be read."""
        limit = LimitInfo("frame_bytes", f"agent:{self.name}", limit_bytes, size)
        error = FrameTooLarge(agent=self.name, limit=limit)
        self._spoiled(gate_id, Ending.FRAME_TOO_LARGE, error, size)

    def unreadable(self, gate_id: int) -> None:
        """An answer was not valid in its protocol: its caller need not wait any longer."""
        self._spoiled(gate_id, Ending.UNREADABLE, ProtocolInvalid(agent=self.name))

    def _spoiled(
        self, gate_id: int, ending: Ending, error: CallgateError, size: int | None = None
    ) -> None:
        pending = self.pending.get(gate_id)
        if pending is None:
            self.late(gate_id)
            return
        del self.pending[gate_id]
        flight = pending.flight
        if flight is None:
            self._without_answer(pending, error)
        elif flight.ending is not None:
            self.engine.work_ended(flight, answered=True)
        else:
            flight.bytes_out = size
            refusals.named(error, flight.lane, flight.request_id)
            self.end(pending, ending, error)

    def broken(self, pending: Pending) -> None:
        """Handling the answer to a request met a fault of ours: end the request all the same."""
        error: CallgateError = InternalError(agent=self.name)
        flight = pending.flight
        if flight is not None and flight.ending is None:
            refusals.named(error, flight.lane, flight.request_id)
            self.end(pending, Ending.BROKEN, error)
        elif flight is not None and flight.lingers:
            self.engine.work_ended(flight, answered=True)
        else:
            self._without_answer(pending, error)

    def _without_answer(self, pending: Pending, error: CallgateError) -> None:
        """A request other than a call has come to nothing."""
        self.hub.cancel_callback(pending.timeout)
        if pending.on_answer is not None:
            pending.on_answer(None)
        elif pending.caller is not None:
            pending.caller.refused(pending, error)

    def revoke(self, pending: Pending, error: CallgateError) -> None:
        """Do not send a call after all: its record could not be written."""
        self.pending.pop(pending.gate_id, None)
        self._take_back(pending)
        if pending.flight is not None and pending.caller is not None:
            pending.caller.refused(pending, self.engine.revoke(pending.flight, error))

    # The process's life.

    def process_ended(self, reason: StopReason, limit: LimitInfo | None, *, again: bool) -> None:
        """The process is gone, its pipe still here. `again`: another will take its place."""
        self.turns.clear()
        self.is_ready = False
        self.is_up = again
        if not again:
            self._held.clear()
            self.held_bytes = 0
            self.refuse_waiting()  # else they would enter in the place of those who are lost
        unsent = self._keep_unsent() if again else frozenset()
        for pending in [one for one in self.pending.values() if one.gate_id not in unsent]:
            del self.pending[pending.gate_id]
            self._lost(pending, reason, limit)
        for flight in self._ignored_cancels.values():
            self.engine.work_ended(flight, answered=False)
        self._ignored_cancels.clear()
        if self.caller is not None:
            self.caller.requests_to_client.withdraw_all()

    def _keep_unsent(self) -> frozenset[int]:
        """Hold what no process can have read; our ids of that."""
        kept = {gate_id for gate_id, _ in self._held}
        for pending in self.pending.values():
            if pending.gate_id not in kept and pending.caller is not None:
                unsent = self.outbox.take_back(pending.head)
                if unsent is not None:
                    kept.add(pending.gate_id)
                    self._hold(unsent, pending.gate_id)
        return frozenset(kept)

    def _lost(self, pending: Pending, reason: StopReason, limit: LimitInfo | None) -> None:
        flight = pending.flight
        kind = AgentCrashed if limit is None else ResourceLimitExceeded
        error = kind(agent=self.name, limit=limit, stop_reason=reason)
        if flight is None:
            if pending.on_answer is None:
                self._without_answer(pending, error)
            else:
                self.hub.cancel_callback(pending.timeout)  # whoever asked knows of the death
        elif flight.ending is not None:
            self.engine.work_ended(flight, answered=False)
        else:
            refusals.named(error, flight.lane, flight.request_id)
            ending = Ending.CRASHED if limit is None else Ending.ENDED_BY_LIMIT
            self.end(pending, ending, error)

    def refuse_waiting(self) -> None:
        """Nobody who waits will be called."""
        waiting = [one for one in self.engine.flights.values() if one.owner is self and one.queued]
        for flight in waiting:
            error = refusals.plain(AgentUnavailable, flight.lane, flight.request_id)
            self.engine.turn_away(flight, error)

    def _take_back(self, pending: Pending) -> bool:
        """Return True if the agent will never see the frame."""
        for position, (gate_id, frame) in enumerate(self._held):
            if gate_id == pending.gate_id:
                del self._held[position]
                self.held_bytes -= len(frame)
                return True
        return self.outbox.take_back(pending.head) is not None
