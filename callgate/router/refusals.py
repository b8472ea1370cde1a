"""Refusals: from what a limit said to the error that a caller sees.

Each function builds one error from a lane and a decision; none of them changes anything.
Names that may not be shown are absent from the lane, so they cannot reach an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from callgate.errors import (
    CallgateError,
    CallTimedOut,
    ConcurrencyLimited,
    InputTooLarge,
    LimitInfo,
    OutputTooLarge,
    QuotaExceeded,
    RateLimited,
)
from callgate.limits.rate import Rate

if TYPE_CHECKING:
    from callgate.limits.admission import Refusal
    from callgate.limits.quota import Quota
    from callgate.limits.slots import Slots
    from callgate.model import BytesSpec
    from callgate.router.flight import Flight
    from callgate.router.lanes import Lane

E = TypeVar("E", bound=CallgateError)

_MS_NS = 1_000_000
_KINDS = {"a": "agent", "g": "global", "t": "tool"}
"""By their first letter, which costs a refusal less than taking the scope apart."""


def plain(kind: type[E], lane: Lane, request_id: str | None, limit: LimitInfo | None = None) -> E:
    """An error that needs nothing but the names."""
    spec = lane.spec
    return kind(request_id=request_id, agent=spec.agent, tool=spec.tool, limit=limit)


def named(error: E, lane: Lane, request_id: str) -> E:
    """An error of another layer, with the call's names."""
    error.request_id = request_id
    error.agent = lane.spec.agent
    error.tool = lane.spec.tool
    return error


def limited(lane: Lane, request_id: str, refusal: Refusal, now_ns: int) -> CallgateError:
    """Refused by a rate or for want of a slot."""
    counter = refusal.counter
    retry_ns = refusal.retry_after_ns
    if isinstance(counter, Rate) and retry_ns is not None:
        return _spent(lane, request_id, counter, counter.spec.burst, retry_ns)
    return by_counter(lane, request_id, counter, now_ns)


def by_counter(
    lane: Lane, request_id: str, counter: Rate | Slots, now_ns: int
) -> RateLimited | ConcurrencyLimited:
    """Refused by this counter alone."""
    if isinstance(counter, Rate):
        used = counter.spec.burst - counter.saved(now_ns)
        return _spent(lane, request_id, counter, used, counter.wait_ns(now_ns))
    if counter.spec.queue:  # in shadow: so many would have waited before this one
        return _queue_full(lane, request_id, counter.spec.queue)
    return full(lane, request_id, counter)


def _spent(lane: Lane, request_id: str, rate: Rate, used: int, retry_ns: int) -> RateLimited:
    scope = rate.label or _label(lane, rate)
    names = lane.spec
    return RateLimited(
        request_id=request_id,
        agent=names.agent,
        tool=names.tool,
        limit=LimitInfo("rate", scope, rate.spec.text, used),
        retry_after_ms=_ms_up(retry_ns),
    )


def full(lane: Lane, request_id: str, slots: Slots) -> ConcurrencyLimited:
    """All places are taken."""
    scope = slots.label or _label(lane, slots)
    limit = LimitInfo("concurrency", scope, slots.limit, slots.used)
    return plain(ConcurrencyLimited, lane, request_id, limit)


def queue_full(lane: Lane, request_id: str) -> ConcurrencyLimited:
    """Nobody may wait any more."""
    return _queue_full(lane, request_id, lane.spec.queue)


def _queue_full(lane: Lane, request_id: str, length: int) -> ConcurrencyLimited:
    limit = LimitInfo("queue", f"agent:{lane.spec.agent or '*'}", length, length)
    return plain(ConcurrencyLimited, lane, request_id, limit)


def expired(flight: Flight, now_ns: int) -> CallgateError:
    """The deadline passed in the queue: a rate's fault if the call was paced."""
    lane = flight.lane
    if flight.paced:
        empty = [rate for rate in lane.rates if rate.wait_ns(now_ns) > 0] or list(lane.rates)
        slowest = max(empty, key=lambda rate: rate.wait_ns(now_ns))
        return by_counter(lane, flight.request_id, slowest, now_ns)
    for slots in lane.slots:
        if slots.used >= slots.limit:
            return full(lane, flight.request_id, slots)
    return queue_full(lane, flight.request_id)


def timed_out(lane: Lane, request_id: str, allowed_ns: int) -> CallTimedOut:
    """The deadline passed while the tool ran: the policy's, or one that the call brought."""
    scope = "call"
    spec = lane.spec
    for time in (spec.timeout, spec.max_timeout, spec.tried_timeout, spec.tried_max_timeout):
        if time is not None and time.limit_ns == allowed_ns:
            scope = time.scope.describe(lane.caller.shown)
            break
    limit = LimitInfo("timeout", scope, allowed_ns // _MS_NS)
    return plain(CallTimedOut, lane, request_id, limit)


def quota_spent(lane: Lane, request_id: str, quota: Quota, wall_ns: int) -> QuotaExceeded:
    """Nothing is left in this window."""
    spec = quota.spec
    scope = spec.scope.describe(lane.caller.shown)
    limit = LimitInfo("quota", scope, spec.text, spec.limit)
    error = plain(QuotaExceeded, lane, request_id, limit)
    error.retry_after_ms = _ms_up(quota.renews_in_ns(wall_ns))
    return error


def input_too_large(lane: Lane, request_id: str, spec: BytesSpec, size: int) -> InputTooLarge:
    """The arguments are over their limit."""
    return plain(InputTooLarge, lane, request_id, _bytes_info("input_bytes", lane, spec, size))


def output_too_large(
    lane: Lane, request_id: str, spec: BytesSpec, size: int | None
) -> OutputTooLarge:
    """The result is over its limit, or cannot be measured at all (`size` is None)."""
    info = None if size is None else _bytes_info("output_bytes", lane, spec, size)
    return plain(OutputTooLarge, lane, request_id, info)


def scope_kind(error: CallgateError) -> str | None:
    """The kind of scope that spoke, for metrics."""
    limit = error.limit
    if limit is None:
        return None
    scope = limit.scope
    return _KINDS.get(scope[0]) or scope.partition(":")[0]


def _label(lane: Lane, counter: Rate | Slots) -> str:
    """The scope in words, kept if it is the same for every caller."""
    scope = counter.spec.scope
    label = scope.describe(lane.caller.shown)
    if not scope.owned_by_caller:
        counter.label = label
    return label


def _bytes_info(kind: str, lane: Lane, spec: BytesSpec, size: int) -> LimitInfo:
    return LimitInfo(kind, spec.scope.describe(lane.caller.shown), spec.limit, size)


def _ms_up(wait_ns: int) -> int:
    """Rounded up: who waits this long is not early."""
    return -(-wait_ns // _MS_NS)
