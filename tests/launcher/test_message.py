from __future__ import annotations

import re

import pytest

from callgate.errors import LimitInfo
from callgate.launcher.limit_message import duration, explain, limit_text, size
from callgate.launcher.protocol import LIMIT_REASONS, Stopped
from callgate.model import LaunchSpec, ResourceLimits
from callgate.policy.keys import KEYS

MIB = 2**20


def stopped(kind: str, limit: int | str, usage: int | None) -> Stopped:
    info = LimitInfo(kind, "agent:heavy", limit, usage)
    return Stopped(LIMIT_REASONS[kind], "stopped", limit=info)


def test_it_says_who_which_limit_and_how_much() -> None:
    text = explain("heavy", stopped("memory", 256 * MIB, 512 * MIB))

    assert text is not None
    lines = text.splitlines()
    assert lines[0] == "Agent heavy was ended: it went over its memory limit."
    assert lines[2:4] == ["  used   512 MiB", "  limit  256 MiB"]
    assert "  1. it keeps memory that it no longer needs (a leak)" in lines
    assert lines[-1] == "  - if you trust it, raise `memory` in its containment"


def test_the_most_that_was_used_is_called_a_peak() -> None:
    info = LimitInfo("memory", "agent:heavy", 64 * MIB, 64 * MIB)

    text = explain("heavy", Stopped("oom", "paused", limit=info))

    assert text is not None
    assert text.splitlines()[2:4] == ["  peak   64 MiB", "  limit  64 MiB"]


@pytest.mark.parametrize("kind", sorted(LIMIT_REASONS))
def test_every_limit_that_can_end_a_run_has_its_own_words(kind: str) -> None:
    text = explain("a", stopped(kind, 3, 5))

    assert text is not None
    assert f"raise `{kind}` in its containment" in text


@pytest.mark.parametrize(
    ("kind", "limit", "usage", "expected"),
    [
        (
            "pids",
            64,
            65,
            ["  used   65 processes and threads", "  limit  64 processes and threads"],
        ),
        ("files", 10_000, None, ["  used   not measured", "  limit  10,000 files"]),
        ("cpu_time", 2 * 10**9, 2_100_000_000, ["  used   2.1 s", "  limit  2 s"]),
        ("wall_time", 5 * 10**8, 5 * 10**8, ["  used   500 ms", "  limit  500 ms"]),
        ("disk", "1Gi", 2**31, ["  used   2 GiB", "  limit  1Gi"]),
    ],
)
def test_numbers_have_the_unit_of_their_limit(
    kind: str, limit: int | str, usage: int | None, expected: list[str]
) -> None:
    text = explain("a", stopped(kind, limit, usage))

    assert text is not None
    assert text.splitlines()[2:4] == expected


def test_a_paused_run_can_be_resumed_and_says_so() -> None:
    info = LimitInfo("memory", "agent:a", 1, 2)

    text = explain("a", Stopped("oom", "paused", limit=info))

    assert text is not None
    assert text.splitlines()[-1].startswith("It is paused")


def test_an_end_without_a_limit_has_no_message() -> None:
    assert explain("a", Stopped("exited", "stopped", exit_code=0)) is None
    assert explain("a", Stopped("signal", "crashed", limit=LimitInfo("calls", "g", 1))) is None


def test_sizes_and_times_are_said_as_people_say_them() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 2**30, 2**40)] == [
        "0 bytes",
        "1023 bytes",
        "1 KiB",
        "1.5 KiB",
        "1 GiB",
        "1024 GiB",
    ]
    assert [duration(n) for n in (0, 1_500_000, 10**9, 90 * 10**9)] == [
        "0 ms",
        "1.5 ms",
        "1 s",
        "90 s",
    ]


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("memory", "raise `--memory`"),
        ("cpu_time", "raise `--cpu-time`"),
        ("wall_time", "raise `--timeout`"),
    ],
)
def test_to_somebody_at_a_command_line_it_names_the_option(kind: str, way: str) -> None:
    assert way in (explain("exec", stopped(kind, 3, 5), options=True) or "")
    assert "--" not in (explain("a", stopped(kind, 3, 5)) or "").replace("--agent", "")


@pytest.mark.parametrize(
    ("kind", "limit", "text"),
    [
        ("wall_time", 1_000_000_000, "wall_time 1 s"),
        ("pids", 64, "pids 64"),
        ("something new", 3, "something new 3"),
    ],
)
def test_a_limit_is_told_in_its_unit(kind: str, limit: int, text: str) -> None:
    assert limit_text(kind, limit) == text


def test_what_a_manifest_requested_stands_beside_what_was_used() -> None:
    spec = LaunchSpec("a", ("x",), requested=ResourceLimits(memory_bytes=128 * MIB))

    text = explain("a", stopped("memory", 256 * MIB, 512 * MIB), spec=spec) or ""

    lines = [line.split() for line in text.splitlines()]
    assert ["requested", "128", "MiB"] in lines
    assert ["limit", "256", "MiB"] in lines


def test_a_limit_that_a_manifest_set_is_to_be_raised_there() -> None:
    spec = LaunchSpec("a", ("x",), declared=("memory",))

    text = explain("a", stopped("memory", 5, 3), spec=spec) or ""
    other = explain("a", stopped("disk", 5, 3), spec=spec) or ""

    assert "raise the limit in its manifest" in text
    assert "raise `disk` in its containment" in other


def test_every_key_that_the_advice_names_is_a_key_of_a_policy() -> None:
    for kind in ("memory", "cpu_time", "wall_time", "pids", "disk", "files", "connections"):
        text = explain("a", stopped(kind, 5, 3)) or ""
        (named,) = re.findall("raise `([a-z_]+)` in its containment", text)
        assert f"containment.{named}" in KEYS
