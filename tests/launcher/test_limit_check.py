from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.errors import LimitInfo
from callgate.launcher.local.limit_check import WATCHED, Bounds, Checked, Sample, check_usage
from callgate.launcher.protocol import LIMIT_REASONS
from callgate.model import ResourceLimits, Usage

NONE = ResourceLimits()
EVERYTHING = ResourceLimits(memory_bytes=100, pids=100, disk_bytes=100, files=100, connections=100)


def bounds(
    limits: ResourceLimits = NONE,
    shadow: ResourceLimits = NONE,
    kernel: frozenset[str] = frozenset(),
) -> Bounds:
    return Bounds("agent:web", limits, shadow, kernel)


def memory(used: int | None) -> Sample:
    return Sample(Usage(memory_bytes=used))


MEMORY = bounds(ResourceLimits(memory_bytes=100))


def info(kind: str, usage: int | None, limit: int = 100) -> LimitInfo:
    return LimitInfo(kind, "agent:web", limit, usage)


def test_below_ninety_percent_there_is_nothing_to_say() -> None:
    assert check_usage((), memory(89), MEMORY) == Checked(frozenset())


def test_ninety_percent_is_a_warning_and_no_end() -> None:
    checked = check_usage((), memory(90), MEMORY)

    assert checked.warnings == (info("memory", 90),)
    assert checked.end is None


def test_a_usage_that_trembles_at_the_mark_is_one_warning() -> None:
    warnings, near = 0, frozenset[str]()
    for used in [90, 89, 91, 81, 95]:
        checked = check_usage(near, memory(used), MEMORY)
        warnings, near = warnings + len(checked.warnings), checked.near

    assert warnings == 1


def test_after_it_was_far_below_it_warns_again() -> None:
    warnings, near = 0, frozenset[str]()
    for used in [95, 79, 95]:
        checked = check_usage(near, memory(used), MEMORY)
        warnings, near = warnings + len(checked.warnings), checked.near

    assert warnings == 2


def test_a_sample_that_saw_nothing_does_not_warn_again() -> None:
    near = check_usage((), memory(95), MEMORY).near
    near = check_usage(near, memory(None), MEMORY).near

    assert check_usage(near, memory(95), MEMORY).warnings == ()


def test_all_of_a_limit_may_be_used() -> None:
    assert check_usage((), memory(100), MEMORY).end is None


@pytest.mark.parametrize("kind", sorted(WATCHED))
def test_above_its_limit_a_run_must_end(kind: str) -> None:
    sample = Sample(Usage(**{WATCHED[kind]: 101}))

    checked = check_usage((), sample, bounds(EVERYTHING))

    assert checked.end == info(kind, 101)
    assert kind in LIMIT_REASONS


@pytest.mark.parametrize("kind", sorted(WATCHED))
def test_what_the_kernel_holds_is_not_ended_by_us_but_warned_of(kind: str) -> None:
    sample = Sample(Usage(**{WATCHED[kind]: 101}))

    checked = check_usage((), sample, bounds(EVERYTHING, kernel=frozenset({kind})))

    assert checked.end is None
    assert checked.warnings == (info(kind, 101),)


def test_what_cannot_be_counted_counts_as_exceeded() -> None:
    sample = Sample(Usage(), frozenset({"disk", "files"}))

    checked = check_usage((), sample, bounds(ResourceLimits(files=100)))

    assert checked.end == info("files", None)


def test_what_cannot_be_counted_and_has_no_limit_is_no_matter() -> None:
    sample = Sample(Usage(), frozenset({"disk", "files"}))

    assert check_usage((), sample, MEMORY) == Checked(frozenset())


def test_a_limit_in_shadow_mode_warns_when_it_is_reached_and_never_ends() -> None:
    shadow = bounds(shadow=ResourceLimits(memory_bytes=100))
    assert check_usage((), memory(99), shadow).warnings == ()

    checked = check_usage((), memory(1000), shadow)

    assert checked.end is None
    assert checked.warnings == (info("memory", 1000),)
    assert check_usage(checked.near, memory(1000), shadow).warnings == ()


def test_a_busy_processor_is_never_an_end() -> None:
    sample = Sample(Usage(cpu_ns=10**18))

    checked = check_usage((), sample, bounds(ResourceLimits(cpu_millicores=1, cpu_time_ns=1)))

    assert checked == Checked(frozenset())


USES = st.lists(st.one_of(st.none(), st.integers(0, 200)), max_size=50)


@given(USES)
def test_between_two_warnings_it_was_far_below(uses: list[int | None]) -> None:
    near = frozenset[str]()
    kernel = bounds(ResourceLimits(memory_bytes=100), kernel=frozenset({"memory"}))
    lowest = 0
    for used in uses:
        checked = check_usage(near, memory(used), kernel)
        near = checked.near
        if used is not None:
            lowest = min(lowest, used)
        if checked.warnings:
            assert lowest < 80
            lowest = 200
