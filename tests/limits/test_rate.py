from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.limits.rate import Rate
from tests.limits.helpers import (
    DAY_NS,
    MINUTE_NS,
    SECOND_NS,
    make_rate,
    rate_spec,
    take_all,
)

if TYPE_CHECKING:
    from callgate.model import RateSpec

MAX_COUNT = 1_000_000_000
"""The most that a policy can state."""

counts = st.integers(1, 1_000)
periods = st.sampled_from([7, 1_000, SECOND_NS, MINUTE_NS, DAY_NS])
specs = st.builds(rate_spec, counts, periods, st.integers(1, 50))
starts = st.integers(0, 2**62)


def gaps(spec: RateSpec) -> st.SearchStrategy[int]:
    """Time between two calls; the edges of an interval and of a whole burst come up often."""
    interval_ns = spec.interval_ns
    return st.one_of(
        st.just(0),
        st.integers(0, 3 * interval_ns),
        st.integers(-1, 1).map(lambda off: max(0, interval_ns + off)),
        st.integers(-1, 1).map(lambda off: max(0, spec.burst * interval_ns + off)),
    )


@st.composite
def traffic(draw: st.DrawFn) -> tuple[RateSpec, list[int]]:
    """A rate, and times at which calls arrive."""
    spec = draw(specs)
    steps = draw(st.lists(gaps(spec), max_size=60))
    return spec, list(accumulate(steps, initial=draw(starts)))


def admitted_times(rate: Rate, times: list[int]) -> list[int]:
    admitted = []
    for now_ns in times:
        if not rate.wait_ns(now_ns):
            rate.take(now_ns)
            admitted.append(now_ns)
    return admitted


def token_bucket(spec: RateSpec, times: list[int]) -> list[int]:
    """The textbook's bucket of tokens in exact fractions, which `Rate` must equal."""
    tokens, last_ns, admitted = Fraction(spec.burst), times[0], []
    for now_ns in times:
        tokens = min(Fraction(spec.burst), tokens + Fraction(now_ns - last_ns, spec.interval_ns))
        last_ns = now_ns
        if tokens >= 1:
            tokens -= 1
            admitted.append(now_ns)
    return admitted


@given(traffic())
def test_waiting_exactly_as_told_admits_and_a_nanosecond_less_does_not(
    case: tuple[RateSpec, list[int]],
) -> None:
    spec, times = case
    rate = Rate(spec)
    for now_ns in times:
        wait_ns = rate.wait_ns(now_ns)
        if wait_ns:
            assert rate.wait_ns(now_ns + wait_ns) == 0
            assert rate.wait_ns(now_ns + wait_ns - 1) == 1
        else:
            rate.take(now_ns)


@given(traffic())
def test_in_no_window_pass_more_than_rate_times_time_plus_burst(
    case: tuple[RateSpec, list[int]],
) -> None:
    spec, times = case

    admitted = admitted_times(Rate(spec), times)

    for first, start_ns in enumerate(admitted):
        for last, end_ns in enumerate(admitted[first:], first):
            beyond_burst = last - first + 1 - spec.burst
            assert beyond_burst * spec.period_ns <= (end_ns - start_ns) * spec.count


@given(traffic())
def test_it_admits_exactly_what_a_bucket_of_tokens_in_fractions_admits(
    case: tuple[RateSpec, list[int]],
) -> None:
    spec, times = case

    assert admitted_times(Rate(spec), times) == token_bucket(spec, times)


@given(specs, starts)
def test_a_new_bucket_holds_its_burst_and_no_more(spec: RateSpec, now_ns: int) -> None:
    assert take_all(Rate(spec), now_ns) == spec.burst


@given(traffic())
def test_saved_is_the_number_of_calls_that_fit_now(case: tuple[RateSpec, list[int]]) -> None:
    spec, times = case
    rate = Rate(spec)
    admitted_times(rate, times)

    saved = rate.saved(times[-1])

    assert take_all(rate, times[-1]) == saved


@given(traffic(), st.data())
def test_a_bucket_that_is_full_answers_like_a_new_one(
    case: tuple[RateSpec, list[int]], data: st.DataObject
) -> None:
    spec, times = case
    rate = Rate(spec)
    admitted_times(rate, times)
    now_ns = max(times[-1], rate.paid_until_ns)
    assert rate.is_full(now_ns)
    later = list(accumulate(data.draw(st.lists(gaps(spec), max_size=20)), initial=now_ns))

    assert admitted_times(rate, later) == admitted_times(Rate(spec), later)


def test_a_bucket_that_owes_a_nanosecond_is_not_full() -> None:
    rate = make_rate(1)
    rate.take(0)

    assert not rate.is_full(SECOND_NS - 1)
    assert rate.is_full(SECOND_NS)


@given(traffic())
def test_a_call_that_is_given_back_leaves_no_trace(case: tuple[RateSpec, list[int]]) -> None:
    spec, times = case
    rate, other = Rate(spec), Rate(spec)
    for now_ns in times:
        if not rate.wait_ns(now_ns):
            rate.take(now_ns)
            rate.refund()
            rate.take(now_ns)
            other.take(now_ns)
        assert rate.wait_ns(now_ns) == other.wait_ns(now_ns)
        assert rate.saved(now_ns) == other.saved(now_ns)


@given(traffic(), specs)
def test_new_figures_keep_what_was_saved_up_to_the_new_burst(
    case: tuple[RateSpec, list[int]], new: RateSpec
) -> None:
    spec, times = case
    rate = Rate(spec)
    admitted_times(rate, times)
    now_ns = times[-1]
    saved, was_full = rate.saved(now_ns), rate.is_full(now_ns)

    rate.change(new, now_ns)

    assert rate.spec == new
    assert rate.saved(now_ns) == (new.burst if was_full else min(saved, new.burst))


@given(traffic())
def test_the_same_figures_again_change_nothing(case: tuple[RateSpec, list[int]]) -> None:
    spec, times = case
    rate = Rate(spec)
    admitted_times(rate, times)
    owed_ns = max(0, rate.paid_until_ns - times[-1])

    rate.change(spec, times[-1])

    assert max(0, rate.paid_until_ns - times[-1]) == owed_ns


@given(traffic(), specs, st.data())
def test_after_a_change_no_window_exceeds_the_new_figures(
    case: tuple[RateSpec, list[int]], new: RateSpec, data: st.DataObject
) -> None:
    spec, times = case
    rate = Rate(spec)
    admitted_times(rate, times)
    rate.change(new, times[-1])
    later = list(accumulate(data.draw(st.lists(gaps(new), max_size=40)), initial=times[-1]))

    admitted = admitted_times(rate, later)

    for number, now_ns in enumerate(admitted, 1):
        assert (number - new.burst) * new.period_ns <= (now_ns - later[0]) * new.count


def test_a_full_bucket_stays_full_whatever_its_new_size() -> None:
    rate = make_rate(10, burst=10)
    take_all(rate, 0)
    now_ns = SECOND_NS

    rate.change(rate_spec(10, burst=1_000), now_ns)

    assert rate.saved(now_ns) == 1_000


def test_a_shrunk_bucket_is_clamped_to_its_new_burst() -> None:
    rate = make_rate(100, burst=100)
    rate.take(0)

    rate.change(rate_spec(100, burst=10), 0)

    assert take_all(rate, 0) == 10


def test_a_grown_bucket_does_not_forget_what_was_taken() -> None:
    rate = make_rate(10, burst=10)
    take_all(rate, 0)

    rate.change(rate_spec(10, burst=1_000), 0)

    assert rate.saved(0) == 0
    assert rate.wait_ns(0) == SECOND_NS // 10


@given(st.integers(1, MAX_COUNT), periods)
def test_an_interval_is_never_so_short_that_more_than_the_rate_passes(
    count: int, period_ns: int
) -> None:
    assert rate_spec(count, period_ns).interval_ns * count >= period_ns


@pytest.mark.parametrize(
    ("count", "period_ns"), [(MAX_COUNT, SECOND_NS), (1, DAY_NS), (MAX_COUNT, DAY_NS)]
)
def test_the_largest_figures_are_as_exact_as_small_ones(count: int, period_ns: int) -> None:
    rate = Rate(rate_spec(count, period_ns, MAX_COUNT))
    now_ns = 2**63 - 1
    rate.paid_until_ns = now_ns + rate.ahead_ns
    assert rate.saved(now_ns) == 1
    rate.take(now_ns)

    assert rate.wait_ns(now_ns) == rate.interval_ns
    assert rate.wait_ns(now_ns + rate.interval_ns) == 0
