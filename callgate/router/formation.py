"""Formations: calls of one lane that came in one read, and are one object while all goes well.

Synchronous, and only for what is plain: rates, places and the lane's own time are all there is
to check, nobody waits, nothing is traced, and the audit takes their records at the end of the
pass. What one call more in a formation costs is an id and two records; all else is done once.

It makes no other difference. The first of a volley are admitted as one by one; those that do not
fit are left to `Engine.begin`, which says why. And whoever has to look at one call alone (its
time is up, it is cancelled, it failed, its agent died) has the formation disbanded first: then
each call that is still in flight has a flight of its own, as if it had always been so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from callgate.limits.admission import admit_many
from callgate.limits.deadlines import NEVER
from callgate.router.flight import Flight, Owner

# msgspec does not resolve a Struct's annotations until it decodes one, and nobody decodes these.
# ruff: noqa: TC004

if TYPE_CHECKING:
    from collections.abc import Sequence

    from callgate.limits.deadlines import Timed
    from callgate.router.engine import Engine
    from callgate.router.lanes import Lane


class Leader(Owner, Protocol):
    """Who does the work of formations: it knows which of their calls are in flight."""

    def disband(self, formation: Formation) -> list[Flight]:
        """One of the calls has to be looked at: `disband` it, and give all their flights."""


class Formation(msgspec.Struct, eq=False):
    """Calls of one lane that entered together; those that have ended stay in the lists."""

    lane: Lane
    owner: Leader
    asked_ns: int
    deadline_ns: int
    request_ids: list[str]
    sizes: Sequence[int]
    """Of the arguments of each."""
    slot: set[Timed] | None
    """The deadlines' own."""
    left: int
    """How many are in flight."""
    handle: Any = None
    """The owner's own: what it needs to disband it."""


def enter(
    engine: Engine, lane: Lane, owner: Leader, now_ns: int, sizes: Sequence[int]
) -> Formation | None:
    """Let calls with arguments of these sizes in, and record that: as many as fit."""
    recorder = lane.recorder
    if not lane.plain or engine.is_crowded or engine.spans.enabled or not recorder.takes_many:
        return None
    count = admit_many(lane.rates, lane.slots, now_ns, len(sizes))
    if not count:
        return None
    deadline_ns = now_ns + lane.default_ns
    slot = engine.deadlines.slot_of(deadline_ns) if deadline_ns < NEVER else None
    ids = engine.new_ids(count)
    formation = Formation(lane, owner, now_ns, deadline_ns, ids, sizes[:count], slot, count)  # type: ignore[arg-type]  # as in `Deadlines`
    recorder.admitted_many(lane, ids)
    lane.stats.in_flight += count
    engine.formations.add(formation)
    if slot is not None:
        slot.add(formation)
        engine.rearm_if_sooner()
    return formation


def complete(
    engine: Engine,
    formation: Formation,
    start: int,
    sizes: Sequence[int],
    now_ns: int,
) -> bool:
    """Settle the calls from `start` on with answers of these sizes, and record that.

    False if they are to be settled one by one. They are all in flight, and their work is over;
    the owner forgets them and tells the engine then that they `have_left`.
    """
    lane = formation.lane
    recorder = lane.recorder
    if not lane.plain or not recorder.takes_many:
        return False
    count, duration_ns = len(sizes), now_ns - formation.asked_ns
    end = start + count
    ended = zip(formation.request_ids[start:end], formation.sizes[start:end], sizes, strict=True)
    recorder.completed_many(lane, ended, duration_ns)
    lane.stats.completed(count, duration_ns)
    for place in lane.slots:
        place.used -= count
    formation.left -= count
    if not formation.left:
        _leave(engine, formation)
    return True


def disband(engine: Engine, formation: Formation, indices: Sequence[int]) -> list[Flight]:
    """Give each of these calls, which are those in flight, a flight of its own."""
    slot = formation.slot
    _leave(engine, formation)
    times = formation.asked_ns, formation.deadline_ns, formation.deadline_ns
    flights = []
    for at in indices:
        own_id, size = formation.request_ids[at], formation.sizes[at]
        flight = Flight(formation.lane, own_id, formation.owner, None, *times, size, True, slot)
        engine.flights[own_id] = flight
        flights.append(flight)
    if slot is not None:
        slot.update(flights)
    return flights


def single(engine: Engine, request_id: str) -> Flight | None:
    """The flight of a call that is in a formation, which is disbanded for it."""
    for formation in engine.formations:
        if request_id in formation.request_ids:
            formation.owner.disband(formation)
            return engine.flights.get(request_id)
    return None


def disband_all(engine: Engine) -> None:
    """Give every call a flight of its own: each is to be ended."""
    for formation in list(engine.formations):
        formation.owner.disband(formation)


def _leave(engine: Engine, formation: Formation) -> None:
    engine.formations.discard(formation)
    engine.deadlines.discard(formation)
    formation.left = 0
    formation.handle = None  # or only the garbage collector would find the two
