from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.telemetry.names import NO_SCOPE, OK
from callgate.telemetry.stats import DURATION_BOUNDS_NS, ToolStats

MS = 1_000_000


def test_a_call_is_in_flight_from_start_to_end() -> None:
    stats = ToolStats("web", "search")

    stats.in_flight += 1
    stats.in_flight += 1
    stats.ended(OK, 5 * MS)

    assert stats.in_flight == 1
    assert stats.outcomes == {OK: 1}


def test_each_outcome_has_its_own_count() -> None:
    stats = ToolStats("web", "search")

    for code in (OK, "limit.timeout", OK, "tool.failed", "limit.timeout"):
        stats.in_flight += 1
        stats.ended(code, MS)

    assert stats.outcomes == {OK: 2, "limit.timeout": 2, "tool.failed": 1}
    assert stats.duration_count == 5
    assert stats.duration_ns == 5 * MS


@pytest.mark.parametrize(
    ("duration_ns", "bucket"),
    [(0, 0), (10 * MS, 0), (10 * MS + 1, 1), (300_000 * MS, 13), (300_000 * MS + 1, 14)],
)
def test_a_bound_belongs_to_its_bucket(duration_ns: int, bucket: int) -> None:
    stats = ToolStats("web", "search")
    stats.in_flight += 1

    stats.ended(OK, duration_ns)

    assert [index for index, count in enumerate(stats.duration_buckets) if count] == [bucket]


@given(st.lists(st.integers(0, 400_000 * MS), max_size=50))
def test_every_duration_is_in_exactly_one_bucket(durations: list[int]) -> None:
    stats = ToolStats("web", "search")

    for duration_ns in durations:
        stats.in_flight += 1
        stats.ended(OK, duration_ns)

    for index, bound in enumerate(DURATION_BOUNDS_NS):
        assert sum(stats.duration_buckets[: index + 1]) == sum(d <= bound for d in durations)
    assert stats.duration_count == len(durations)
    assert stats.in_flight == 0


def test_refusals_count_by_code_and_kind_of_scope_and_not_as_calls() -> None:
    stats = ToolStats("web", None)

    stats.refused("limit.rate", "agent")
    stats.refused("limit.rate", "agent")
    stats.refused("limit.rate", "caller")
    stats.refused("policy.denied")

    assert stats.refusals == {
        ("limit.rate", "agent"): 2,
        ("limit.rate", "caller"): 1,
        ("policy.denied", NO_SCOPE): 1,
    }
    assert stats.outcomes == {OK: 0}
    assert stats.in_flight == 0


def test_what_a_shadow_would_have_refused_is_not_a_refusal() -> None:
    stats = ToolStats("web", "search")

    stats.shadow("limit.concurrency", "tool")

    assert stats.shadowed == {("limit.concurrency", "tool"): 1}
    assert stats.refusals == {}


def test_waits_add_up() -> None:
    stats = ToolStats("web", "search")

    stats.waited(3 * MS)
    stats.waited(0)

    assert (stats.wait_ns, stats.wait_count) == (3 * MS, 2)
