"""The way in: until when a call may take, and why it may not even wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callgate.errors import CallgateError, CallTimedOut, InvalidInput
from callgate.limits.admission import why_not
from callgate.router import refusals
from callgate.router.flight import blocked_by_ancestors

if TYPE_CHECKING:
    from callgate.router.flight import Flight
    from callgate.router.lanes import Lane


def deadline_of(
    lane: Lane, request_id: str, timeout_ms: int | None, parent: Flight | None, now_ns: int
) -> int | CallgateError:
    """When a call must end that asks for a time of its own, or is nested in another."""
    if timeout_ms is None:
        deadline_ns = now_ns + lane.default_ns
    elif timeout_ms.__class__ is not int or timeout_ms <= 0:
        return refusals.plain(InvalidInput, lane, request_id)
    else:
        deadline_ns = now_ns + min(timeout_ms * 1_000_000, lane.ceiling_ns)
    if parent is None or parent.enforced_ns >= deadline_ns or parent.ended_by_itself:
        return deadline_ns
    if parent.enforced_ns <= now_ns:
        return refusals.plain(CallTimedOut, lane, request_id)
    return parent.enforced_ns


def no_room(
    lane: Lane, request_id: str, parent: Flight | None, now_ns: int, deadline_ns: int
) -> CallgateError | None:
    """Why a call that cannot enter may not wait either."""
    queue = lane.spec.queue
    refusal = why_not(lane.rates, lane.slots, now_ns, queue=queue > 0)
    if refusal is None:
        raise AssertionError("`admit` and `why_not` read the same counters")
    retry_ns = refusal.retry_after_ns
    if (
        not refusal.may_wait
        or len(lane.agent.queue) >= queue
        or (retry_ns is not None and now_ns + retry_ns > deadline_ns)
    ):
        return refusals.limited(lane, request_id, refusal, now_ns)
    if parent is not None:
        blocking = blocked_by_ancestors(lane, parent)
        if blocking is not None:
            return refusals.full(lane, request_id, blocking)
    return None
