from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from callgate.limits.counters import Caller, Counters
from callgate.model import MAX_LIVE, OTHERS, Scope, SlotSpec
from tests.conftest import FULL
from tests.limits.helpers import (
    AGENT,
    CALLER,
    HOUR_NS,
    MINUTE_NS,
    SECOND_NS,
    SPLIT_TOOL,
    quota_spec,
    rate_spec,
)

OWN_RATE = rate_spec(600, MINUTE_NS, scope=CALLER)
OWN_SLOTS = SlotSpec(CALLER, 32)


def meet(counters: Counters, name: str, now_ns: int, *, named: bool = False) -> Caller:
    """The caller as the router finds or makes it."""
    known = counters.caller(name)
    if known is not None:
        return known
    caller, _ = counters.add_caller(name, name, named=named, now_ns=now_ns, wall_ns=now_ns)
    return caller


def call(counters: Counters, name: str, now_ns: int) -> Caller:
    """One call of a caller with a rate and slots of its own; it ends at once."""
    caller = meet(counters, name, now_ns)
    counters.slots(OWN_SLOTS, caller)
    counters.rate(OWN_RATE, caller, now_ns).take(now_ns)
    return caller


def test_a_scope_has_one_counter_whoever_asks() -> None:
    counters = Counters()
    a, b = (meet(counters, name, 0) for name in "ab")
    spec = rate_spec(5, scope=AGENT)
    slots = SlotSpec(AGENT, 2)

    assert counters.rate(spec, a, 0) is counters.rate(spec, b, 0)
    assert counters.slots(slots, a) is counters.slots(slots, b)
    assert counters.shared() == ([counters.rate(spec, a, 0)], [counters.slots(slots, a)])


def test_a_scope_of_a_caller_has_one_counter_for_each() -> None:
    counters = Counters()
    a, b = (meet(counters, name, 0) for name in "ab")

    for spec in (OWN_RATE, rate_spec(5, scope=SPLIT_TOOL)):
        assert counters.rate(spec, a, 0) is counters.rate(spec, a, 0)
        assert counters.rate(spec, a, 0) is not counters.rate(spec, b, 0)
    assert counters.slots(OWN_SLOTS, a) is not counters.slots(OWN_SLOTS, b)
    assert counters.shared() == ([], [])


def test_counts_survive_a_new_policy_with_new_figures() -> None:
    counters = Counters()
    caller = meet(counters, "a", 0)
    caller.lanes += (("a", "web", "search"),)
    for scope in (AGENT, CALLER):
        rate = counters.rate(rate_spec(10, scope=scope), caller, 0)
        for _ in range(8):
            rate.take(0)
        counters.slots(SlotSpec(scope, 3), caller).used = 2

    counters.drop_lanes()

    assert len(caller.lanes) == 0
    for scope in (AGENT, CALLER):
        assert counters.rate(rate_spec(5, scope=scope), caller, 0).saved(0) == 2
        assert counters.rate(rate_spec(50, scope=scope), caller, 0).saved(0) == 2
        slots = counters.slots(SlotSpec(scope, 1), caller)
        assert (slots.used, slots.limit) == (2, 1)


def test_a_quota_with_the_same_figures_is_kept_and_with_others_begins_at_the_store() -> None:
    counters = Counters()
    caller = meet(counters, "a", 0)
    quota = counters.quota(quota_spec(1_000), caller)
    quota.give(0, 10, 0)

    assert counters.quota(quota_spec(1_000), caller) is quota
    assert not counters.quota(quota_spec(500), caller).available(0)


def test_a_caller_whose_bucket_is_full_again_is_forgotten_when_others_come() -> None:
    counters = Counters()
    call(counters, "old", 0)
    full_ns = OWN_RATE.interval_ns

    _, early = counters.add_caller("b", "b", named=False, now_ns=full_ns - 1, wall_ns=0)
    _, later = counters.add_caller("c", "c", named=False, now_ns=full_ns, wall_ns=0)

    assert "old" not in [caller.name for caller in early]
    assert "old" in [caller.name for caller in later]
    assert counters.caller("old") is None


def test_a_caller_with_a_call_inside_or_waiting_is_never_forgotten() -> None:
    counters = Counters()
    inside = meet(counters, "inside", 0)
    counters.slots(OWN_SLOTS, inside).used = 1
    waiting = meet(counters, "waiting", 0)
    waiting.waiting_calls = 1

    for number in range(100):
        meet(counters, f"new{number}", HOUR_NS)

    assert counters.caller("inside") is inside
    assert counters.caller("waiting") is waiting


def test_a_caller_with_quota_in_hand_is_never_forgotten_in_its_window() -> None:
    counters = Counters()
    caller = meet(counters, "a", 0)
    quota = counters.quota(quota_spec(1_000), caller)
    quota.give(0, 10, 0)

    for number in range(10):
        counters.add_caller(str(number), "", named=False, now_ns=0, wall_ns=HOUR_NS - 1)
    assert counters.caller("a") is caller
    for number in range(10):
        counters.add_caller(f"{number}b", "", named=False, now_ns=0, wall_ns=HOUR_NS)

    assert counters.caller("a") is None


def test_a_caller_that_the_policy_names_is_never_forgotten_and_never_shares() -> None:
    counters = Counters(max_live=4)
    named = meet(counters, "ci-bot", 0, named=True)
    for number in range(100):
        call(counters, f"stranger{number}", 0)

    assert counters.caller("ci-bot") is named
    late = meet(counters, "late-bot", 0, named=True)
    assert late is not counters.others
    assert counters.caller("late-bot") is late


def test_beyond_the_bound_newcomers_share_one() -> None:
    counters = Counters(max_live=4)
    for number in range(4):
        assert call(counters, f"early{number}", 0) is not counters.others

    late = [call(counters, f"late{number}", 0) for number in range(3)]

    assert all(caller is counters.others for caller in late)
    assert counters.others.name == OTHERS
    rate = counters.rate(OWN_RATE, counters.others, 0)
    assert rate.saved(0) == OWN_RATE.burst - 3


def test_when_buckets_are_full_again_newcomers_have_their_own_once_more() -> None:
    counters = Counters(max_live=4)
    for number in range(9):
        call(counters, f"early{number}", 0)

    assert call(counters, "late", HOUR_NS) is not counters.others


def test_a_caller_cannot_pass_the_bound_with_buckets_of_many_tools() -> None:
    counters = Counters(max_live=100)
    callers = [meet(counters, f"caller{number}", 0) for number in range(10)]
    for number in range(50):
        spec = rate_spec(5, HOUR_NS, scope=Scope("tool", "web", f"t{number}", per_caller=True))
        for caller in callers:
            counters.rate(spec, caller, 0).take(0)

    live = sum(len(caller.rates) for caller in callers)
    assert live <= 100
    # Beyond it they share one bucket a tool, so that nobody goes uncounted.
    shared = counters.rate(spec, callers[0], 0)
    assert shared is counters.rate(spec, callers[9], 0)
    assert shared.wait_ns(0) > 0


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, SECOND_NS // 4)), min_size=1, max_size=150
    )
)
def test_no_order_of_callers_gives_anybody_more_than_its_rate(
    events: list[tuple[int, int]],
) -> None:
    # Names return, are forgotten and come again; the bound is small, so all paths are taken.
    counters = Counters(max_live=8)
    spec = rate_spec(2, burst=2, scope=CALLER)
    now_ns = 0
    admitted: dict[str, list[int]] = {}
    for name, gap_ns in events:
        now_ns += gap_ns
        caller = meet(counters, str(name), now_ns)
        rate = counters.rate(spec, caller, now_ns)
        if not rate.wait_ns(now_ns):
            rate.take(now_ns)
            admitted.setdefault(caller.name, []).append(now_ns)
        assert counters.callers <= 8

    for times in admitted.values():
        for first, start_ns in enumerate(times):
            for last, end_ns in enumerate(times[first:], first):
                assert (last - first + 1 - spec.burst) * SECOND_NS <= (end_ns - start_ns) * 2


def test_a_million_hostile_names_stay_under_the_bound() -> None:
    # At everyday size a tenth of the names against a tenth of the bound.
    names, bound = (1_000_000, MAX_LIVE) if FULL else (100_000, MAX_LIVE // 10)
    counters = Counters(max_live=bound)
    tracemalloc.start()
    try:
        for number in range(names):
            call(counters, f"hostile-{number}", now_ns=number)
            assert counters.callers <= bound
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert counters.callers == bound
    assert used_bytes < bound * 1_024


def test_hostile_names_that_come_slowly_are_forgotten_as_fast_as_they_come() -> None:
    counters = Counters()
    for number in range(10_000):
        call(counters, f"hostile-{number}", now_ns=number * OWN_RATE.interval_ns)

    assert counters.callers <= 3
    assert len(counters._hand) == counters.callers
    assert counters._buckets == counters.callers
