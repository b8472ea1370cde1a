"""When a run that ended is followed by another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.gate.restart import STORM_NS, STORM_STARTS, Again, Down, Restarts
from callgate.launcher.protocol import Stopped
from callgate.model import RestartSpec

SECOND = 1_000_000_000
CRASH = Stopped("exited", "crashed", 1)
END = Stopped("exited", "stopped", 0)
PAUSE = Stopped("oom", "paused")


def waits(restarts: Restarts, ends: list[Stopped], lived_ns: int = 0) -> list[Any]:
    """What follows each end, if every wait is kept and every run lives so long."""
    now_ns, found = 0, []
    for end in ends:
        restarts.started(now_ns)
        now_ns += lived_ns
        answer = restarts.decide(end, now_ns)
        found.append(answer.after_ns // SECOND if isinstance(answer, Again) else "down")
        now_ns += answer.after_ns if isinstance(answer, Again) else 0
    return found


def test_the_wait_doubles_up_to_the_longest_and_then_it_stays_down() -> None:
    spec = RestartSpec("failure", max=6, first_ns=SECOND, longest_ns=10 * SECOND)

    assert waits(Restarts(spec), [CRASH] * 7) == [1, 2, 4, 8, 10, 10, "down"]


def test_a_long_life_is_a_new_beginning() -> None:
    spec = RestartSpec("failure", max=2, first_ns=SECOND, longest_ns=10 * SECOND)

    assert waits(Restarts(spec), [CRASH] * 5, lived_ns=11 * SECOND) == [1] * 5


@pytest.mark.parametrize(
    ("on", "end", "again"),
    [
        ("failure", CRASH, True),
        ("failure", PAUSE, True),
        ("failure", END, False),
        ("always", END, True),
        ("always", CRASH, True),
        ("never", CRASH, False),
        ("never", PAUSE, False),
        ("always", Stopped("stop_requested", "stopped"), False),
        ("always", Stopped("policy_changed", "stopped"), False),
        ("always", Stopped("parent_exit", "stopped"), False),
    ],
)
def test_a_restart_follows_only_what_the_policy_says(on: Any, end: Stopped, again: Any) -> None:
    answer = Restarts(RestartSpec(on)).decide(end, 0)

    assert isinstance(answer, Again) is again


def test_a_maximum_of_zero_never_restarts() -> None:
    assert isinstance(Restarts(RestartSpec("always", max=0)).decide(CRASH, 0), Down)


@given(
    st.lists(st.sampled_from([CRASH, END, PAUSE]), max_size=60),
    st.integers(0, 5 * SECOND),
    st.integers(1, 3 * SECOND),
)
def test_no_more_than_ten_starts_fit_into_a_minute(
    ends: list[Stopped], lived_ns: int, longest_ns: int
) -> None:
    restarts = Restarts(RestartSpec("always", max=1000, first_ns=0, longest_ns=longest_ns))
    now_ns, starts = 0, []
    for end in ends:
        restarts.started(now_ns)
        starts.append(now_ns)
        now_ns += lived_ns
        answer = restarts.decide(end, now_ns)
        assert isinstance(answer, Again)
        now_ns += answer.after_ns

    for first, last in zip(starts, starts[STORM_STARTS:], strict=False):
        assert last - first >= STORM_NS


def test_who_wants_no_backoff_gets_no_brake() -> None:
    spec = RestartSpec("always", max=1_000_000, first_ns=0, longest_ns=0)

    assert waits(Restarts(spec), [CRASH] * 100) == [0] * 100


def test_a_run_that_was_ended_to_be_started_again_is_whatever_the_policy_says() -> None:
    restarts = Restarts(RestartSpec("never"))

    answer = restarts.decide(Stopped("ignored_cancel", "crashed"), 0, wanted=True)

    assert isinstance(answer, Again)


def test_who_fails_at_once_stays_down_in_the_end_also_without_a_backoff() -> None:
    spec = RestartSpec("always", max=3, first_ns=0, longest_ns=0)

    assert waits(Restarts(spec), [CRASH] * 4, lived_ns=SECOND) == [0, 0, 0, "down"]
    assert waits(Restarts(spec), [CRASH] * 4, lived_ns=SECOND + 1) == [0] * 4
