"""Runs on the wire: calls of one tool, and good answers in one lane, that came in one read.

Synchronous. A client that keeps many calls in flight sends them in bursts, and most of what a
burst costs can be done once for all of it (see `callgate.router.runs`). Here a run's calls are
given ids and sent, and its answers are passed on, as the peers do with single ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callgate.peers.inflight import Pending
from callgate.protocol import jsonrpc, results
from callgate.router import runs
from callgate.router.flight import Ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Raw

    from callgate.peers.agent import AgentPeer
    from callgate.peers.mcp_caller import McpCaller
    from callgate.protocol.jsonrpc import Response
    from callgate.protocol.mcp import CallTool
    from callgate.router.flight import Flight


def fits(call: CallTool, run: Sequence[CallTool]) -> bool:
    """Whether a call can be the next of a run: of the same tool, and nothing but arguments."""
    return (
        call.meta is None
        and call.extra is None
        and len(call.arguments) > 0
        and (not run or run[0].name == call.name)
    )


def send(caller: McpCaller, calls: list[CallTool], now_ns: int) -> int:
    """Let in and send as many of a run as fit; how many. The others are as they were."""
    agent = caller.agent
    encode = agent.encode_run
    ids = [call.id for call in calls]
    if (
        encode is None
        or agent.tools is not None
        or not agent.is_up
        or len(set(ids)) < len(ids)
        or not caller.in_flight.keys().isdisjoint(ids)
    ):
        return 0
    lane = agent.hub.router.lane(caller.name, agent.name, calls[0].name, now_ns)
    sizes = [len(call.arguments) for call in calls]
    flights = runs.enter(agent.engine, lane, agent, now_ns, sizes)
    if not flights:
        return 0
    frames = encode(calls[: len(flights)], agent.last_id + 1)
    pendings: list[Pending] = []
    for own_id, (flight, frame) in enumerate(zip(flights, frames, strict=True), agent.last_id + 1):
        pending = Pending(caller, ids[len(pendings)], None, own_id, agent, flight, frame)
        flight.handle = agent.pending[own_id] = pending
        pendings.append(pending)
    agent.last_id += len(flights)
    caller.in_flight.update(zip(ids, pendings, strict=False))
    agent.hub.wire.started += pendings
    agent.put_all(frames)
    return len(flights)


class Answers:
    """Good answers of one lane to one caller, which are settled together."""

    __slots__ = ("_agent", "_flights", "_results", "pendings")

    def __init__(self, agent: AgentPeer) -> None:
        self._agent = agent
        self.pendings: list[Pending] = []
        self._flights: list[Flight] = []
        self._results: list[Raw] = []

    def take(self, message: Response, frame: bytes, now_ns: int) -> bool:
        """Take an answer into the run, or into the next one; False if it is not a plain one."""
        waiting = self._agent.pending
        pending = waiting.get(message.id)  # type: ignore[arg-type]  # a string is no key
        if pending is None:
            return False
        flight, size = pending.flight, len(message.result)
        if (
            flight is None
            or flight.ending is not None
            or flight.span is not None
            or pending.stateless
            or not 0 < size <= flight.lane.output_bytes
            or results.may_be_failure(frame)
        ):
            return False
        del waiting[pending.own_id]
        flights = self._flights
        if flights and (
            flights[0].lane is not flight.lane or self.pendings[0].caller is not pending.caller
        ):
            self.settle(now_ns)
            flights = self._flights
        flight.bytes_out = size
        flights.append(flight)
        self.pendings.append(pending)
        self._results.append(message.result)
        return True

    def settle(self, now_ns: int) -> None:
        """Settle what was taken, and pass it on."""
        pendings, self.pendings = self.pendings, []
        flights, self._flights = self._flights, []
        taken, self._results = self._results, []
        agent = self._agent
        try:
            frames = jsonrpc.encode_results([pending.id for pending in pendings], taken)
            caller = pendings[0].caller
            if (
                caller is not None
                and len(flights) > 1
                and runs.complete(agent.engine, flights[0].lane, flights, now_ns)
            ):
                agent.hub.wire.ended += pendings
                _pass_on(caller, pendings, frames)
                return
            for pending, frame in zip(pendings, frames, strict=True):
                agent.answer(pending, Ending.COMPLETED, frame)
        except Exception as error:  # noqa: BLE001  # others may come
            agent.hub.fault(error)


def _pass_on(caller: McpCaller, pendings: list[Pending], frames: list[bytes]) -> None:
    for pending, frame in zip(pendings, frames, strict=True):
        del caller.in_flight[pending.id]
        pending.answer = frame
    caller.outbox.put_all(frames)
    if caller.on_idle is not None and not caller.in_flight:
        caller.on_idle()
