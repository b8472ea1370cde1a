"""Admission: all of a call's counters at once, all or nothing.

Pure. `admit` is the hot path: two loops that look, two that take, no allocation. A refused
call takes nothing anywhere, so it is looked at again in `find_refusal` to find the reason; that
costs a little more, and refusals still cost less than admitted calls because nothing runs.
"""

from __future__ import annotations

import msgspec

from callgate.limits.rate import Rate
from callgate.limits.slots import Slots


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a call may not enter now; nothing was taken."""

    counter: Rate | Slots
    retry_after_ns: int | None
    """When the rates would admit it; None if it is slots that are missing."""
    may_wait: bool
    """Whether every counter that refuses lets calls wait."""
    shared_wait_ns: int | None
    """None, unless a counter that refuses holds back every call of the agent: then the longest
    wait of such rates, 0 if such slots are missing."""


def admit(rates: tuple[Rate, ...], slots: tuple[Slots, ...], now_ns: int) -> bool:
    """Take one from each counter, or nothing."""
    for slot in slots:
        if slot.used >= slot.limit:
            return False
    for rate in rates:
        if rate.paid_until_ns - now_ns > rate.ahead_ns:
            return False
    for slot in slots:
        slot.used += 1
    for rate in rates:
        paid_until = rate.paid_until_ns
        rate.paid_until_ns = (paid_until if paid_until > now_ns else now_ns) + rate.interval_ns
    return True


def find_refusal(
    rates: tuple[Rate, ...], slots: tuple[Slots, ...], now_ns: int, *, queue: bool
) -> Refusal | None:
    """Why `admit` refuses a call, None if it does not; `queue` says whether slots are waited for.

    A refusal that names a rate promises that the call fits after `retry_after_ns`; so slots
    that refuse for good speak first, and the wait is the longest of all the rates.
    """
    full: Slots | None = None
    slowest: Rate | None = None
    denying: Rate | None = None
    retry_ns = denying_ns = 0
    shared_ns: int | None = None
    for slot in slots:
        if slot.used >= slot.limit:
            full = full or slot
            if slot.blocks_whole_agent:
                shared_ns = 0
    for rate in rates:
        wait_ns = rate.paid_until_ns - now_ns - rate.ahead_ns
        if wait_ns <= 0:
            continue
        if wait_ns > retry_ns:
            retry_ns, slowest = wait_ns, rate
        if not rate.spec.wait and wait_ns > denying_ns:
            denying_ns, denying = wait_ns, rate
        if rate.blocks_whole_agent and shared_ns != 0:
            shared_ns = max(shared_ns or 0, wait_ns)
    if full is not None and (not queue or slowest is None or denying is None):
        return Refusal(full, None, queue, shared_ns)
    speaking = denying or slowest
    return None if speaking is None else Refusal(speaking, retry_ns, denying is None, shared_ns)


def release(slots: tuple[Slots, ...]) -> None:
    """Give the places back."""
    for slot in slots:
        slot.used -= 1


def refund(rates: tuple[Rate, ...], slots: tuple[Slots, ...]) -> None:
    """Give everything back, for a call that was let in and never started."""
    release(slots)
    for rate in rates:
        rate.refund()


def shadow(
    rates: tuple[Rate, ...], slots: tuple[Slots, ...], now_ns: int
) -> tuple[Rate | Slots, ...]:
    """Count a call that passes anyway; return the counters that would have refused it."""
    refusing: tuple[Rate | Slots, ...] = ()
    for slot in slots:
        if slot.used >= slot.limit + slot.spec.queue:
            refusing += (slot,)
        slot.used += 1
    for rate in rates:
        paid_until = rate.paid_until_ns
        if paid_until - now_ns > rate.ahead_ns:
            refusing += (rate,)
        else:
            rate.paid_until_ns = (paid_until if paid_until > now_ns else now_ns) + rate.interval_ns
    return refusing
