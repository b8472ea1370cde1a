"""Runs: calls of one lane that came in one read, let in together and settled together.

Synchronous, and only for what is plain: rates, places and the lane's own time are all there is
to check, nobody waits, nothing is traced, and the audit takes their records at the end of the
pass. What one call more in a run costs is a flight and two records; all else is done once. It
makes no other difference: the first of a run are admitted as one by one, those that do not fit
are left to `Engine.begin`, which says why, and whatever is not plain is left to it altogether.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callgate.limits.admission import admit_many
from callgate.limits.deadlines import NEVER
from callgate.router.flight import Ending, Flight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from callgate.router.engine import Engine
    from callgate.router.flight import Owner
    from callgate.router.lanes import Lane


def enter(
    engine: Engine, lane: Lane, owner: Owner, now_ns: int, sizes: Sequence[int]
) -> list[Flight]:
    """Let calls with arguments of these sizes in, and record that: as many as fit."""
    recorder = lane.recorder
    if not lane.plain or engine.is_crowded or engine.spans.enabled or not recorder.takes_runs:
        return []
    count = admit_many(lane.rates, lane.slots, now_ns, len(sizes))
    if not count:
        return []
    deadline_ns = now_ns + lane.default_ns
    slot = engine.deadlines.slot_of(deadline_ns) if deadline_ns < NEVER else None
    ids = engine.new_ids(count)
    times = now_ns, deadline_ns, deadline_ns
    flights = [
        Flight(lane, own_id, owner, None, *times, size, True, slot)  # type: ignore[arg-type]  # as in `Deadlines`
        for own_id, size in zip(ids, sizes, strict=False)  # the others do not fit
    ]
    recorder.admitted_run(lane, ids)
    lane.stats.in_flight += count
    engine.flights.update(zip(ids, flights, strict=True))
    if slot is not None:
        slot.update(flights)
        engine.rearm_if_sooner()
    return flights


def complete(engine: Engine, lane: Lane, flights: list[Flight], now_ns: int) -> bool:
    """Settle calls that ended well, and record that; False if they are to be settled singly.

    They are all in flight and of this lane, nobody has settled them, and their work is over.
    """
    recorder = lane.recorder
    if not lane.plain or not recorder.takes_runs:
        return False
    in_flight = engine.flights
    for flight in flights:
        del in_flight[flight.request_id]
        flight.ending = Ending.COMPLETED
        flight.holds_slots = False
        flight.handle = None  # or only the garbage collector would find the two
        slot = flight.slot
        if slot is not None:
            slot.discard(flight)
            flight.slot = None
    recorder.completed_run(lane, flights, now_ns)
    lane.stats.completed([now_ns - flight.asked_ns for flight in flights])
    for place in lane.slots:
        place.used -= len(flights)
    engine.have_left(now_ns)
    return True
