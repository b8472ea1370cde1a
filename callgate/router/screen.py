"""What is checked of a call besides rates, slots and its deadline.

Most lanes have none of it (`Lane.plain`) and never come here: denied tools, argument sizes,
quotas, and every limit in shadow mode, which speaks and lets the call pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from callgate.errors import (
    CallgateError,
    ConcurrencyLimited,
    InvalidInput,
    PolicyDenied,
    RateLimited,
    StateUnavailable,
    ToolUnknown,
)
from callgate.limits.admission import shadow
from callgate.limits.deadlines import NEVER
from callgate.limits.rate import Rate
from callgate.router import refusals

if TYPE_CHECKING:
    from callgate.limits.quota import Quota
    from callgate.router.flight import Flight
    from callgate.router.lanes import Lane


def measure(value: Any) -> int | None:
    """Bytes of a value as compact JSON; None if it has no JSON form."""
    try:
        return len(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (TypeError, RecursionError):
        return None


def refuse_early(
    lane: Lane, request_id: str, bytes_in: int | None, wall_ns: int
) -> CallgateError | None:
    """Why the call may not even ask for a place."""
    spec = lane.spec
    if lane.is_odd or spec.denied:
        return refusals.plain(ToolUnknown if lane.is_odd else PolicyDenied, lane, request_id)
    ceiling = spec.max_input_bytes
    if ceiling is not None and not ceiling.shadow:
        if bytes_in is None:
            return refusals.plain(InvalidInput, lane, request_id)
        if bytes_in > ceiling.limit:
            return refusals.input_too_large(lane, request_id, ceiling, bytes_in)
    quota = lane.quota
    if quota is not None and not quota.spec.shadow and not quota.available(wall_ns):
        if quota.spent(wall_ns):
            return refusals.quota_spent(lane, request_id, quota, wall_ns)
        # A window has begun since budget was in hand; the next try fetches the new one's.
        return refusals.plain(StateUnavailable, lane, request_id)
    return None


def take_quota(quota: Quota) -> int | None:
    """Charge a call that passed `refuse_early`; which window paid, if it is enforced."""
    return None if quota.spec.shadow else quota.take()


def charge(flight: Flight, now_ns: int, wall_ns: int) -> list[CallgateError]:
    """Count an admitted call in its limits in shadow; return what they would have refused.

    What only adds to a flood is counted here and costs no error. `wall_ns` is for quotas.
    """
    lane = flight.lane
    would = _charge_screened(flight, wall_ns) if lane.screened else []
    for counter in shadow(lane.shadow_rates, lane.shadow_slots, now_ns):
        code = RateLimited.code if counter.__class__ is Rate else ConcurrencyLimited.code
        flood = lane.floods.get(code)
        if flood is not None:
            flood.count += 1
            flood.last_ns = now_ns
            lane.stats.shadow(code, counter.spec.scope.kind)
        else:
            would.append(refusals.by_counter(lane, flight.request_id, counter, now_ns))
    if lane.shadow_default_ns != NEVER:
        shadow_ns = lane.shadow_default_ns if flight.timeout_ms is None else lane.shadow_ceiling_ns
        flight.check_at_ns = min(flight.deadline_ns, flight.asked_ns + shadow_ns)
    return would


def _charge_screened(flight: Flight, wall_ns: int) -> list[CallgateError]:
    lane = flight.lane
    spec = lane.spec
    request_id = flight.request_id
    would: list[CallgateError] = []
    if spec.denied_shadow:
        would.append(refusals.plain(PolicyDenied, lane, request_id))
    ceiling = spec.max_input_bytes
    size = flight.bytes_in
    if ceiling is not None and ceiling.shadow and size is not None and size > ceiling.limit:
        would.append(refusals.input_too_large(lane, request_id, ceiling, size))
    quota = lane.quota
    if quota is not None and quota.spec.shadow:
        if quota.available(wall_ns):
            quota.take()
        elif quota.spent(wall_ns):
            would.append(refusals.quota_spent(lane, request_id, quota, wall_ns))
    return would
