"""Live usage, for people and dashboards: what `Router.snapshot` returns. Reads, changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callgate.limits.counters import Counters
    from callgate.router.engine import Engine
    from callgate.router.lanes import Lanes
    from callgate.router.usage import Usages


def snapshot(
    engine: Engine, lanes: Lanes, counters: Counters, usages: Usages, now_ns: int
) -> dict[str, Any]:
    """Names that may not be shown are None, and callers' own counters are left out."""
    rates, slots = counters.shared()
    return {
        "policy": lanes.policy.revision,
        "in_flight": sum(not flight.queued for flight in engine.flights.values()),
        "queued": sum(flight.queued for flight in engine.flights.values()),
        "callers": counters.callers,
        "rates": [
            {
                "scope": rate.spec.scope.describe("*"),
                "limit": rate.spec.text,
                "burst": rate.spec.burst,
                "left": rate.saved(now_ns),
            }
            for rate in rates
            if not rate.spec.scope.tried
        ],
        "slots": [
            {"scope": slot.spec.scope.describe("*"), "limit": slot.limit, "used": slot.used}
            for slot in slots
            if not slot.spec.scope.tried
        ],
        "tools": [
            {
                "agent": stats.agent,
                "tool": stats.tool,
                "in_flight": stats.in_flight,
                "queued": stats.queued,
                "outcomes": dict(stats.outcomes),
                "refusals": {f"{code} {kind}": n for (code, kind), n in stats.refusals.items()},
                "would_deny": {f"{code} {kind}": n for (code, kind), n in stats.shadowed.items()},
                "late": stats.late,
            }
            for stats in lanes.stats()
        ],
        "runs": [usage.row() for usage in usages.all()],
        "audit": engine.recorders[0].snapshot(),
    }
