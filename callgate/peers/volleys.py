"""Volleys on the wire: calls of one tool, and good answers, that came in one read.

Synchronous. A client that keeps many calls in flight sends them in volleys, and most of what a
volley costs can be done once for all of it (see `callgate.router.formation`). Here its calls are
given ids and sent, and its answers are passed on, as the peers do with single ones. A volley stands
in the tables of both peers in the place of each of its calls, until that is answered or the volley
is scattered: then each call that is still in flight is a `Pending` of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from callgate.peers.inflight import Pending
from callgate.protocol import jsonrpc
from callgate.router import formation as formations
from callgate.router.flight import Flight

# msgspec does not resolve a Struct's annotations until it decodes one, and nobody decodes these.
# ruff: noqa: TC004

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from msgspec import Raw

    from callgate.peers.agent import AgentPeer
    from callgate.peers.mcp_caller import McpCaller
    from callgate.protocol.mcp_volleys import Calls, Results
    from callgate.protocol.problem import Id
    from callgate.router.formation import Formation


K = TypeVar("K")


class Volley(msgspec.Struct, eq=False):
    """Calls that one client sent together and one agent has to answer."""

    caller: McpCaller
    agent: AgentPeer
    formation: Formation
    ids: Sequence[Id]
    """The caller's."""
    first_id: int
    """The agent's for the first of them; the others follow."""
    frames: list[bytes]
    """As they were sent; empty for what has been answered."""
    singles: list[Pending] = []
    """What was in flight when it was scattered."""

    def scatter(self) -> list[Pending]:
        """Let each call that is in flight stand for itself."""
        agent, formation = self.agent, self.formation
        if not formation.left:
            return self.singles
        waiting = agent.pending
        own_ids = range(self.first_id, self.first_id + len(formation.request_ids))
        left = [at for at, own_id in enumerate(own_ids) if waiting.get(own_id) is self]
        for at, flight in zip(left, formations.disband(agent.engine, formation, left), strict=True):
            pending = Pending(
                self.caller, self.ids[at], None, own_ids[at], agent, flight, self.frames[at]
            )
            flight.handle = waiting[own_ids[at]] = self.caller.in_flight[pending.id] = pending
            self.singles.append(pending)
        return self.singles


class Landed(msgspec.Struct, eq=False):
    """Calls of a volley that were answered in this pass, whose end is yet to be written."""

    volley: Volley
    start: int
    frames: list[bytes]

    def singles(self) -> list[Pending]:
        """Each for itself, with as much as is needed to take its answer back."""
        volley, formation = self.volley, self.volley.formation
        times = formation.asked_ns, formation.deadline_ns, formation.deadline_ns
        found = []
        for at, frame in enumerate(self.frames, self.start):
            request_id = formation.request_ids[at]
            flight = Flight(formation.lane, request_id, formation.owner, None, *times)
            found.append(Pending(volley.caller, volley.ids[at], flight=flight, answer=frame))
        return found


def single(table: Mapping[K, Pending | Volley], own_id: K) -> Pending | None:
    """What a peer has under an id; a volley that it is in is scattered for it."""
    found = table.get(own_id)
    if isinstance(found, Volley):
        found.scatter()
        found = table.get(own_id)
    return None if isinstance(found, Volley) else found


def singles(table: Mapping[K, Pending | Volley]) -> list[Pending]:
    """All that a peer has, each for itself."""
    found = (single(table, own_id) for own_id in list(table))
    return [pending for pending in found if pending is not None]


def send(caller: McpCaller, calls: Calls, now_ns: int) -> int:
    """Let in and send as many of these calls as fit; how many. The others are as they were."""
    agent, ids = caller.agent, calls.ids
    if (
        agent.encode_calls is None
        or agent.tools is not None
        or not (agent.is_up and agent.is_ready)
        or len(set(ids)) < len(ids)
        or not caller.in_flight.keys().isdisjoint(ids)
    ):
        return 0
    lane = agent.hub.router.lane(caller.name, agent.name, calls.name, now_ns)
    sizes = [len(each) for each in calls.arguments]
    formation = formations.enter(agent.engine, lane, agent, now_ns, sizes)
    if formation is None:
        return 0
    count, first_id = formation.left, agent.last_id + 1
    ids = ids[:count]
    frames = agent.encode_calls(calls.name, calls.arguments[:count], first_id)
    volley = Volley(caller, agent, formation, ids, first_id, frames)
    formation.handle = volley
    agent.last_id += count
    agent.pending.update(dict.fromkeys(range(first_id, first_id + count), volley))
    caller.in_flight.update(dict.fromkeys(ids, volley))
    agent.hub.wire.started.append(volley)
    agent.outbox.put_all(frames)
    return count


def land(volley: Volley, first_id: int, results: Sequence[Raw], now_ns: int) -> bool:
    """Pass on good answers to a call of a volley, under an id of ours, and to those that follow.

    False if they are to be settled one by one: one is too large, or was answered before. They are
    all calls of the volley, which is not scattered: the agent still has it under the first id.
    """
    agent, caller, formation = volley.agent, volley.caller, volley.formation
    start = first_id - volley.first_id
    end = start + len(results)
    sizes = [len(result) for result in results]
    if not all(volley.frames[start:end]) or max(sizes) > formation.lane.output_bytes:
        return False
    ids = volley.ids[start:end]
    frames = jsonrpc.encode_results(ids, results)
    if not formations.complete(agent.engine, formation, start, sizes, now_ns):
        return False
    volley.frames[start:end] = [b""] * len(frames)
    waiting, in_flight = agent.pending, caller.in_flight
    for own_id in range(first_id, first_id + len(frames)):
        del waiting[own_id]
    for callers_id in ids:
        del in_flight[callers_id]
    agent.engine.have_left(now_ns)
    agent.hub.wire.ended.append(Landed(volley, start, frames))
    caller.outbox.put_all(frames)
    caller.look_if_idle()
    return True


def land_all(agent: AgentPeer, answers: Results, one: Callable[[int], None], now_ns: int) -> None:
    """Pass on good answers that came together; `one` settles a single one, by its position."""
    ids = answers.ids
    start = 0
    while start < len(ids):
        volley = agent.pending.get(ids[start])
        end = start + 1
        landed = False
        if isinstance(volley, Volley):
            end = start + _length(volley, ids, start)
            try:
                landed = land(volley, ids[start], answers.results[start:end], now_ns)
            except Exception as error:  # noqa: BLE001  # others may come
                agent.hub.fault(error)
                landed = True  # as some may have
        if not landed:
            for at in range(start, end):
                one(at)
        start = end


def _length(volley: Volley, ids: Sequence[int], start: int) -> int:
    """How many of these ids, from the one at `start` on, follow each other within a volley."""
    first_id = ids[start]
    most = min(volley.first_id + len(volley.ids) - first_id, len(ids) - start)
    if ids[start : start + most] == list(range(first_id, first_id + most)):
        return most
    count = 1
    while ids[start + count] == first_id + count:
        count += 1
    return count
