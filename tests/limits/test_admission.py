from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from callgate.limits.admission import Refusal, admit, find_refusal, refund, release, shadow
from callgate.limits.rate import Rate
from callgate.model import Scope
from tests.conftest import FULL
from tests.limits.helpers import (
    AGENT,
    CALLER,
    GLOBAL,
    SECOND_NS,
    SPLIT_TOOL,
    TOOL,
    make_rate,
    make_slots,
    take_all,
)

if TYPE_CHECKING:
    from callgate.limits.slots import Slots

CASES = 100_000 if FULL else 10_000
SCOPES = (GLOBAL, CALLER, AGENT, TOOL, SPLIT_TOOL, Scope("agent", "web", per_caller=True))

State = tuple[tuple[int, ...], tuple[int, ...]]


def random_counters(random: Random) -> tuple[tuple[Rate, ...], tuple[Slots, ...], int]:
    """Up to four rates and three slots in any state, and the time."""
    now_ns = random.randrange(2**60)
    rates = []
    for _ in range(random.randrange(5)):
        rate = make_rate(
            random.choice([1, 3, 60, 1_000]),
            random.choice([100, SECOND_NS]),
            random.choice([1, 2, 5]),
            scope=random.choice(SCOPES),
            wait=random.random() < 0.5,
        )
        if random.random() < 0.7:
            owed = random.randrange(-rate.interval_ns, rate.ahead_ns + rate.interval_ns + 1)
            rate.paid_until_ns = now_ns + owed
        rates.append(rate)
    slots = [
        make_slots(limit, used=random.randrange(limit + 1), scope=random.choice(SCOPES))
        for limit in random.choices([1, 2, 9], k=random.randrange(4))
    ]
    return tuple(rates), tuple(slots), now_ns


def state(rates: tuple[Rate, ...], slots: tuple[Slots, ...], now_ns: int) -> State:
    """What is owed and used. A bucket that was full long ago is as full as one since now."""
    owed_ns = tuple(max(0, rate.paid_until_ns - now_ns) for rate in rates)
    return owed_ns, tuple(slot.used for slot in slots)


def reason(
    rates: tuple[Rate, ...], slots: tuple[Slots, ...], now_ns: int, *, queue: bool
) -> Refusal:
    refusal = find_refusal(rates, slots, now_ns, queue=queue)
    assert refusal is not None
    return refusal


def test_a_call_enters_everywhere_or_nowhere() -> None:
    random = Random(2)  # noqa: S311
    answers = []
    for _ in range(CASES):
        rates, slots, now_ns = random_counters(random)
        owed_ns, used = state(rates, slots, now_ns)
        fits = all(slot.used < slot.limit for slot in slots) and not any(
            rate.wait_ns(now_ns) for rate in rates
        )

        admitted = admit(rates, slots, now_ns)

        after = state(rates, slots, now_ns)
        assert admitted == fits
        if admitted:
            charged = tuple(
                owed + rate.interval_ns for owed, rate in zip(owed_ns, rates, strict=True)
            )
            assert after == (charged, tuple(count + 1 for count in used))
        else:
            assert after == (owed_ns, used)
        answers.append(admitted)
    assert min(answers.count(True), answers.count(False)) > CASES // 5


def test_a_call_that_is_undone_leaves_every_counter_as_it_was() -> None:
    random = Random(3)  # noqa: S311
    undone = 0
    for _ in range(CASES):
        rates, slots, now_ns = random_counters(random)
        before = state(rates, slots, now_ns)
        if admit(rates, slots, now_ns):
            refund(rates, slots)
            assert state(rates, slots, now_ns) == before
            undone += 1
    assert undone > CASES // 5


def test_looking_for_the_reason_takes_nothing() -> None:
    random = Random(4)  # noqa: S311
    for _ in range(CASES // 10):
        rates, slots, now_ns = random_counters(random)
        before = state(rates, slots, now_ns)
        if not admit(rates, slots, now_ns):
            reason(rates, slots, now_ns, queue=random.random() < 0.5)
            assert state(rates, slots, now_ns) == before


def test_whoever_waits_as_a_refusal_says_is_admitted_and_not_a_nanosecond_earlier() -> None:
    random = Random(5)  # noqa: S311
    named = 0
    for _ in range(CASES):
        rates, slots, now_ns = random_counters(random)
        if admit(rates, slots, now_ns):
            continue
        refusal = reason(rates, slots, now_ns, queue=random.random() < 0.5)
        if refusal.retry_after_ns is None:
            continue
        named += 1
        for slot in slots:
            slot.used = 0
        assert not admit(rates, slots, now_ns + refusal.retry_after_ns - 1)
        assert admit(rates, slots, now_ns + refusal.retry_after_ns)
    assert named > CASES // 10


def test_a_call_that_fits_has_no_reason_not_to_enter() -> None:
    random = Random(8)  # noqa: S311
    for _ in range(CASES // 10):
        rates, slots, now_ns = random_counters(random)
        before = state(rates, slots, now_ns)
        if admit(rates, slots, now_ns):
            refund(rates, slots)
            assert find_refusal(rates, slots, now_ns, queue=True) is None
            assert find_refusal(rates, slots, now_ns, queue=False) is None
            assert state(rates, slots, now_ns) == before


def test_a_refusal_names_a_counter_that_refuses() -> None:
    random = Random(6)  # noqa: S311
    for _ in range(CASES // 10):
        rates, slots, now_ns = random_counters(random)
        if admit(rates, slots, now_ns):
            continue
        counter = reason(rates, slots, now_ns, queue=random.random() < 0.5).counter
        if isinstance(counter, Rate):
            assert counter.wait_ns(now_ns) > 0
        else:
            assert counter.used >= counter.limit


def test_a_burst_of_refused_calls_leaves_the_other_scopes_their_budget() -> None:
    agent, tool = make_rate(100), make_rate(5, scope=TOOL)

    admitted = [admit((agent, tool), (), 0) for _ in range(60)]

    assert admitted.count(True) == 5
    assert agent.saved(0) == 95


class TestReason:
    """What `find_refusal` says, case by case; all of them at time 0."""

    def empty(self, *, wait: bool, period_ns: int = 100, scope: Scope = TOOL) -> Rate:
        rate = make_rate(1, period_ns, scope=scope, wait=wait)
        rate.take(0)
        return rate

    def test_full_slots_without_a_queue_refuse_for_good(self) -> None:
        full = make_slots(1, used=1, scope=TOOL)

        refusal = reason((self.empty(wait=True),), (full,), 0, queue=False)

        assert refusal.counter is full
        assert refusal.retry_after_ns is None
        assert not refusal.may_wait

    def test_full_slots_with_a_queue_are_waited_for(self) -> None:
        full = make_slots(1, used=1, scope=TOOL)

        refusal = reason((), (full,), 0, queue=True)

        assert refusal.counter is full
        assert refusal.retry_after_ns is None
        assert refusal.may_wait

    @pytest.mark.parametrize("wait", [True, False])
    def test_an_empty_rate_may_be_waited_for_if_it_says_so(self, *, wait: bool) -> None:
        rate = self.empty(wait=wait)

        refusal = reason((rate,), (make_slots(1),), 0, queue=True)

        assert refusal.counter is rate
        assert refusal.retry_after_ns == 100
        assert refusal.may_wait is wait

    def test_one_rate_that_denies_refuses_whatever_the_others_say(self) -> None:
        slow = self.empty(wait=True, period_ns=900)
        denying = self.empty(wait=False, period_ns=100)

        refusal = reason((slow, denying), (make_slots(1, used=1),), 0, queue=True)

        assert refusal.counter is denying
        assert not refusal.may_wait
        assert refusal.retry_after_ns == 900

    def test_the_wait_is_the_longest_of_all_rates(self) -> None:
        rates = tuple(self.empty(wait=True, period_ns=ns) for ns in (100, 900, 500))

        refusal = reason(rates, (), 0, queue=True)

        assert refusal.counter is rates[1]
        assert refusal.retry_after_ns == 900

    def test_slots_and_a_rate_that_both_wait_promise_no_time(self) -> None:
        full = make_slots(1, used=1, scope=TOOL)

        refusal = reason((self.empty(wait=True),), (full,), 0, queue=True)

        assert refusal.counter is full
        assert refusal.retry_after_ns is None
        assert refusal.may_wait

    @pytest.mark.parametrize("scope", [TOOL, SPLIT_TOOL, CALLER, SCOPES[-1]])
    def test_a_counter_of_some_calls_does_not_hold_back_the_agent(self, scope: Scope) -> None:
        full = make_slots(1, used=1, scope=scope)

        refusal = reason((self.empty(wait=True, scope=scope),), (full,), 0, queue=True)

        assert refusal.shared_wait_ns is None

    @pytest.mark.parametrize("scope", [AGENT, GLOBAL])
    def test_a_rate_of_all_calls_holds_back_the_agent_for_its_own_time(self, scope: Scope) -> None:
        shared = self.empty(wait=True, period_ns=100, scope=scope)
        own = self.empty(wait=True, period_ns=900)

        refusal = reason((own, shared), (), 0, queue=True)

        assert refusal.shared_wait_ns == 100
        assert refusal.retry_after_ns == 900

    @pytest.mark.parametrize("scope", [AGENT, GLOBAL])
    def test_slots_of_all_calls_hold_back_the_agent_until_a_release(self, scope: Scope) -> None:
        shared = self.empty(wait=True, scope=scope)
        full = make_slots(1, used=1, scope=scope)

        assert reason((shared,), (full,), 0, queue=True).shared_wait_ns == 0


def test_a_shadow_lets_every_call_pass_and_says_who_would_have_refused() -> None:
    rate, slots = make_rate(2), make_slots(1)

    said = [shadow((rate,), (slots,), 0) for _ in range(3)]

    assert said == [(), (slots,), (slots, rate)]
    assert slots.used == 3


def test_a_shadowed_rate_goes_no_deeper_into_debt_than_an_enforced_one() -> None:
    shadowed, enforced = make_rate(2), make_rate(2)
    take_all(enforced, 0)

    for _ in range(100):
        shadow((shadowed,), (), 0)

    assert shadowed.wait_ns(0) == enforced.wait_ns(0)


def test_shadowed_slots_are_given_back_one_by_one() -> None:
    slots = make_slots(1)
    for _ in range(3):
        shadow((), (slots,), 0)

    for _ in range(3):
        release((slots,))

    assert slots.used == 0
