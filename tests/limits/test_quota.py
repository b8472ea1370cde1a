from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.limits.quota import Quota
from tests.limits.helpers import DAY_NS, HOUR_NS, MINUTE_NS, SECOND_NS, quota_spec


class Books:
    """A store without a file: the same answers as `QuotaStore` for one caller."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.window = -1
        self.used = 0

    def reserve(self, window: int, block: int) -> int:
        if window < self.window:
            return 0
        if window > self.window:
            self.window, self.used = window, 0
        granted = max(0, min(block, self.limit - self.used))
        self.used += granted
        return granted


def fetch(quota: Quota, books: Books, wall_ns: int) -> None:
    window = quota.window_at(wall_ns)
    quota.give(window, books.reserve(window, quota.block), wall_ns)


def spend(quota: Quota, books: Books, wall_ns: int) -> bool:
    """One call as the router makes it: a block is fetched when none is in hand."""
    for _ in range(3):
        if quota.available(wall_ns):
            quota.take()
            return True
        if quota.spent(wall_ns):
            return False
        fetch(quota, books, wall_ns)
    raise AssertionError("three fetches, and neither budget nor its end")


@given(st.integers(1, 1_000_000_000))
def test_a_block_is_at_most_a_hundredth_of_the_quota_and_at_least_one(limit: int) -> None:
    block = Quota(quota_spec(limit)).block

    assert block == 1 or block * 100 <= limit
    assert block >= 1


@pytest.mark.parametrize("limit", [1, 2, 99, 100, 101, 250])
def test_a_window_admits_exactly_the_quota(limit: int) -> None:
    quota, books = Quota(quota_spec(limit)), Books(limit)

    admitted = sum(spend(quota, books, 0) for _ in range(limit + 10))

    assert admitted == limit
    assert quota.spent(0)


@pytest.mark.parametrize("period_ns", [SECOND_NS, MINUTE_NS, HOUR_NS, DAY_NS])
def test_a_new_window_has_the_whole_budget_from_its_first_nanosecond(period_ns: int) -> None:
    quota, books = Quota(quota_spec(3, period_ns)), Books(3)
    last_ns = 5 * period_ns - 1

    assert [spend(quota, books, last_ns) for _ in range(4)] == [True, True, True, False]
    assert [spend(quota, books, last_ns + 1) for _ in range(4)] == [True, True, True, False]


def test_what_is_in_hand_ends_with_its_window() -> None:
    quota, books = Quota(quota_spec(1_000)), Books(1_000)
    fetch(quota, books, 0)
    assert quota.available(HOUR_NS - 1)

    assert not quota.available(HOUR_NS)
    assert not quota.spent(HOUR_NS)


def test_a_block_that_arrives_after_its_window_is_dropped() -> None:
    quota = Quota(quota_spec(1_000))

    quota.give(window=0, granted=10, wall_ns=HOUR_NS)

    assert not quota.available(HOUR_NS)
    assert not quota.spent(HOUR_NS)


def test_a_partial_block_means_that_nothing_is_left_at_the_store() -> None:
    quota = Quota(quota_spec(1_000))

    quota.give(window=0, granted=3, wall_ns=0)

    assert not quota.wants_block()
    assert not quota.spent(0)
    for _ in range(3):
        quota.take()
    assert quota.spent(0)


def test_the_next_block_is_wanted_before_the_last_one_is_spent() -> None:
    quota = Quota(quota_spec(1_000))
    assert quota.wants_block()
    quota.give(0, quota.block, 0)

    wanted = []
    for _ in range(quota.block):
        wanted.append(quota.wants_block())
        quota.take()

    assert wanted == [False] * 8 + [True] * 2


def test_a_call_that_never_started_is_given_back_to_the_window_that_paid() -> None:
    quota = Quota(quota_spec(1_000))
    quota.give(0, 10, 0)
    window = quota.take()

    quota.refund(window, 0)

    assert quota.in_hand == 10


def test_a_call_of_a_past_window_gives_nothing_back_to_the_present_one() -> None:
    quota = Quota(quota_spec(1_000))
    quota.give(0, 10, 0)
    window = quota.take()

    quota.refund(window, HOUR_NS)

    assert not quota.available(HOUR_NS)


def test_forgetting_loses_budget_only_while_some_is_in_hand() -> None:
    quota = Quota(quota_spec(1_000))
    assert quota.is_idle(0)
    quota.give(0, 10, 0)

    assert not quota.is_idle(HOUR_NS - 1)
    assert quota.is_idle(HOUR_NS)


@given(st.integers(0, 10 * HOUR_NS))
def test_it_renews_at_the_next_window_and_not_before(wall_ns: int) -> None:
    quota, books = Quota(quota_spec(1)), Books(1)
    assert spend(quota, books, wall_ns)

    renews_ns = wall_ns + quota.renews_in_ns(wall_ns)

    assert not spend(quota, books, renews_ns - 1)
    assert spend(quota, books, renews_ns)


class TestClockSetBack:
    """The wall clock may step; a step back must neither refill the budget nor hang a call."""

    def test_the_budget_is_not_refilled(self) -> None:
        quota, books = Quota(quota_spec(2)), Books(2)
        assert [spend(quota, books, 5 * HOUR_NS) for _ in range(3)] == [True, True, False]

        assert not spend(quota, books, 4 * HOUR_NS)

    def test_what_is_left_can_still_be_spent(self) -> None:
        quota, books = Quota(quota_spec(2)), Books(2)
        assert spend(quota, books, 5 * HOUR_NS)

        # Asking for the window of the clock, which the store refuses, never came to an end.
        assert [spend(quota, books, 4 * HOUR_NS) for _ in range(2)] == [True, False]

    def test_it_says_when_the_budget_really_renews(self) -> None:
        quota, books = Quota(quota_spec(1)), Books(1)
        assert spend(quota, books, 5 * HOUR_NS)
        wall_ns = 3 * HOUR_NS + MINUTE_NS

        renews_ns = wall_ns + quota.renews_in_ns(wall_ns)

        assert renews_ns == 6 * HOUR_NS
        assert not spend(quota, books, renews_ns - 1)
        assert spend(quota, books, renews_ns)

    def test_a_new_process_waits_for_the_window_that_is_on_record(self) -> None:
        books = Books(2)
        assert spend(Quota(quota_spec(2)), books, 5 * HOUR_NS)
        quota = Quota(quota_spec(2))

        assert not spend(quota, books, 4 * HOUR_NS)
        assert [spend(quota, books, 5 * HOUR_NS) for _ in range(2)] == [True, False]


@given(
    st.integers(1, 400),
    st.lists(
        st.sampled_from(["call", "call", "call", "step", "back", "crash", "undo"]), max_size=300
    ),
)
def test_whatever_happens_no_window_admits_more_than_the_quota(
    limit: int, events: list[str]
) -> None:
    # Two processes share the books; either may crash with a block in hand, the clock may step.
    books = Books(limit)
    processes = [Quota(quota_spec(limit)) for _ in range(2)]
    paid: list[int | None] = [None, None]
    wall_ns = 10 * HOUR_NS
    admitted: Counter[int] = Counter()
    for number, event in enumerate(events):
        which = number % 2
        quota, last = processes[which], paid[which]
        if event == "call" and spend(quota, books, wall_ns):
            paid[which] = quota.window
            admitted[quota.window] += 1
        elif event == "undo" and last is not None:
            quota.refund(last, wall_ns)
            paid[which] = None
            admitted[last] -= 1
        elif event == "crash":
            processes[which], paid[which] = Quota(quota_spec(limit)), None
        elif event in ("step", "back"):
            wall_ns += HOUR_NS // 3 if event == "step" else -HOUR_NS // 2

    assert max(admitted.values(), default=0) <= limit


@given(st.integers(1, 2_000), st.integers(0, 20))
def test_a_crash_loses_no_more_than_a_block(limit: int, calls: int) -> None:
    books = Books(limit)
    first = Quota(quota_spec(limit))
    before = sum(spend(first, books, 0) for _ in range(calls))

    second = Quota(quota_spec(limit))
    after = sum(spend(second, books, 0) for _ in range(limit + 1))

    assert limit - first.block <= before + after <= limit
