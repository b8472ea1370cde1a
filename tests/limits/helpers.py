"""Specs and counters to count with."""

from __future__ import annotations

from callgate.limits.rate import Rate
from callgate.limits.slots import Slots
from callgate.model import QuotaSpec, RateSpec, Scope, SlotSpec

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS

AGENT = Scope("agent", "web")
CALLER = Scope("caller")
GLOBAL = Scope("global")
TOOL = Scope("tool", "web", "search")
SPLIT_TOOL = Scope("tool", "web", "search", per_caller=True)


def rate_spec(
    count: int,
    period_ns: int = SECOND_NS,
    burst: int | None = None,
    *,
    scope: Scope = AGENT,
    wait: bool = False,
) -> RateSpec:
    text = f"{count}/{period_ns}ns"
    return RateSpec(scope, text, count, period_ns, burst or count, wait=wait)


def make_rate(
    count: int,
    period_ns: int = SECOND_NS,
    burst: int | None = None,
    *,
    scope: Scope = AGENT,
    wait: bool = False,
) -> Rate:
    return Rate(rate_spec(count, period_ns, burst, scope=scope, wait=wait))


def make_slots(limit: int, *, used: int = 0, scope: Scope = AGENT) -> Slots:
    slots = Slots(SlotSpec(scope, limit))
    slots.used = used
    return slots


def quota_spec(limit: int, period_ns: int = HOUR_NS) -> QuotaSpec:
    return QuotaSpec(CALLER, f"{limit}/{period_ns}ns", limit, period_ns)


def take_all(rate: Rate, now_ns: int) -> int:
    """Take until it refuses; how many fitted."""
    taken = 0
    while not rate.wait_ns(now_ns):
        rate.take(now_ns)
        taken += 1
    return taken
