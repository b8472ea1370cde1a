from __future__ import annotations

import re
from fractions import Fraction
from time import perf_counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.policy import units
from callgate.policy.units import UnitError

if TYPE_CHECKING:
    from collections.abc import Callable

NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
SIZES = {"B": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
SIZES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZES |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
PERIODS = {"second": NS["s"], "minute": NS["m"], "hour": NS["h"], "day": NS["d"]}
BANDWIDTHS = {"kbps": 10**3, "Kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9}

fractions = st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,9})?", fullmatch=True)


@given(st.integers(0, 10_000), st.sampled_from(sorted(NS)))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    expected = number * NS[unit]
    if expected <= units.MAX_DURATION_NS:
        assert units.duration_ns(f"{number}{unit}") == expected


@given(fractions, st.sampled_from(["ms", "s", "m"]))
def test_a_fraction_of_a_unit_is_exact_to_the_nanosecond(number: str, unit: str) -> None:
    assert units.duration_ns(f"{number}{unit}") == int(Fraction(number) * NS[unit])


@given(st.integers(0, units.MAX_DURATION_NS))
def test_a_duration_survives_being_spelled(duration_ns: int) -> None:
    assert units.duration_ns(units.duration_text(duration_ns)) == duration_ns


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (250 * NS["ms"], "250ms"),
        (90 * NS["s"], "90s"),
        (2 * NS["h"], "2h"),
        (7 * NS["d"], "7d"),
        (1_500_000, "1.5ms"),
        (1, "0.000001ms"),
        (1_234_567_891, "1234.567891ms"),
    ],
)
def test_a_duration_is_spelled_in_its_largest_whole_unit(duration_ns: int, text: str) -> None:
    assert units.duration_text(duration_ns) == text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "15",
        "15 s",
        " 15s",
        "15s ",
        "-1s",
        "+1s",
        "1e3s",
        ".5s",
        "1.s",
        "15S",
        "15sec",
        "1_000s",
        "15s15s",
        "१s",
        "15s\n",
        "0x1s",
        "inf",
        "nans",
        "1,5s",
        "3651d",
        "9" * 20 + "s",
    ],
)
def test_what_is_no_duration_is_refused(value: str) -> None:
    with pytest.raises(UnitError):
        units.duration_ns(value)


@pytest.mark.parametrize("value", [None, True, False, [], {}, b"15s", 15, 1.5, float("nan")])
def test_a_duration_is_a_text(value: object) -> None:
    with pytest.raises(UnitError):
        units.duration_ns(value)


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        (15, "15s"),
        (1.5, "1.5s"),
        ("15 s", "15s"),
        ("15 sec", "15s"),
        ("2 minutes", "2m"),
        ("1 hour", "1h"),
        ("3 Days", "3d"),
        ("15 parsecs", None),
        ("soon", None),
    ],
)
def test_a_duration_that_can_be_guessed_is_suggested(value: object, suggestion: str) -> None:
    with pytest.raises(UnitError) as caught:
        units.duration_ns(value)

    assert caught.value.suggestion == suggestion
    assert caught.value.expected == units.DURATION_TEXT


@given(st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_a_range_keeps_its_ends(low: int, more: int) -> None:
    text = f"{low}ms..{low + more}ms"

    assert units.duration_range_ns(text) == (low * NS["ms"], (low + more) * NS["ms"])


@pytest.mark.parametrize(
    "value", [None, 1, "", "1s", "..", "1s..", "..1s", "1s...2s", "1s..2s..3s"]
)
def test_what_is_no_range_is_refused(value: object) -> None:
    with pytest.raises(UnitError):
        units.duration_range_ns(value)


def test_a_range_upside_down_is_suggested_the_right_way_up() -> None:
    with pytest.raises(UnitError) as caught:
        units.duration_range_ns("30s..1s")

    assert caught.value.suggestion == "1s..30s"


@given(st.integers(0, 1_000), st.sampled_from(sorted(SIZES)))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert units.size_bytes(f"{number}{unit}") == number * SIZES[unit]


@given(st.integers(0, units.MAX_BYTES))
def test_a_size_survives_being_spelled(count: int) -> None:
    text = units.size_text(count)

    # Without a unit it is a number in the file, not a text.
    assert units.size_bytes(int(text) if text.isdigit() else text) == count


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        "Mi",
        "1 Mi",
        "-1Mi",
        "1mi",
        "1M",
        "1G",
        "1Kib",
        "1e3Ki",
        "1.Ki",
        "8EiB",
        "99999999Ti",
        -1,
        units.MAX_BYTES + 1,
        True,
        None,
        1.5,
        [],
        {},
    ],
)
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(UnitError):
        units.size_bytes(value)


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [("64 ki", "64Ki"), ("1gb", "1GB"), ("5mib", "5MiB"), ("5 elephants", None)],
)
def test_a_size_that_can_be_guessed_is_suggested(value: str, suggestion: str) -> None:
    with pytest.raises(UnitError) as caught:
        units.size_bytes(value)

    assert caught.value.suggestion == suggestion


@given(st.integers(1, units.MAX_COUNT), st.sampled_from(sorted(PERIODS)))
def test_a_rate_survives_being_spelled(count: int, period: str) -> None:
    parsed = units.rate(f"{count}/{period}")

    assert parsed == (count, PERIODS[period])
    assert units.rate_text(*parsed) == f"{count}/{period}"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "60",
        "/minute",
        "60/",
        "60/min",
        "60 / minute",
        "0/minute",
        "-1/minute",
        "1.5/minute",
        "60/minutes",
        "60/week",
        "1000000001/second",
        "9" * 20 + "/day",
        60,
        60.0,
        True,
        None,
        {},
    ],
)
def test_what_is_no_rate_is_refused(value: object) -> None:
    with pytest.raises(UnitError):
        units.rate(value)


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        ("60/min", "60/minute"),
        ("60 / minutes", "60/minute"),
        ("5/s", "5/second"),
        ("5/h", "5/hour"),
        ("60", None),
        ("60/", None),
        ("60/week", None),
        (60, None),
    ],
)
def test_a_rate_that_can_be_guessed_is_suggested(value: object, suggestion: str) -> None:
    with pytest.raises(UnitError) as caught:
        units.rate(value)

    assert caught.value.suggestion == suggestion


@given(st.integers(1, units.MAX_MILLICORES))
def test_millicores_are_what_they_say(cores: int) -> None:
    assert units.millicores(f"{cores}m") == cores


@pytest.mark.parametrize(
    ("value", "cores"),
    [("0.5", 500), (0.5, 500), (2, 2_000), ("1", 1_000), ("0.001", 1), (1000, 1_000_000)],
)
def test_a_share_of_processors_may_be_a_plain_number(value: object, cores: int) -> None:
    assert units.millicores(value) == cores


@pytest.mark.parametrize(
    "value",
    [
        "",
        "m",
        "0",
        "0m",
        "-1m",
        "500 m",
        "0.5m",
        "1c",
        "0.0001",
        0,
        -1,
        1001,
        1e-09,
        float("inf"),
        float("nan"),
        True,
        None,
        [],
        "1000001m",
    ],
)
def test_what_is_no_share_of_processors_is_refused(value: object) -> None:
    with pytest.raises(UnitError):
        units.millicores(value)


@given(st.integers(1, 2**62))
def test_a_bandwidth_survives_being_spelled(bits: int) -> None:
    assert units.bandwidth_bps(units.bandwidth_text(bits)) == bits


@given(st.integers(1, 1_000), st.sampled_from(sorted(BANDWIDTHS)))
def test_a_bandwidth_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert units.bandwidth_bps(f"{number}{unit}") == number * BANDWIDTHS[unit]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "10",
        "10M",
        "10mbps",
        "0Mbps",
        "10 Mbps",
        "-1Mbps",
        "0.0000001kbps",
        "9999999999Gbps",
        10,
        True,
        None,
        [],
    ],
)
def test_what_is_no_bandwidth_is_refused(value: object) -> None:
    with pytest.raises(UnitError):
        units.bandwidth_bps(value)


PARSERS: tuple[Callable[[object], object], ...] = (
    units.duration_ns,
    units.duration_range_ns,
    units.size_bytes,
    units.rate,
    units.millicores,
    units.bandwidth_bps,
)


def refusal(parse: Callable[[object], object], value: object) -> UnitError | None:
    try:
        parse(value)
    except UnitError as error:
        return error
    return None


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.from_regex(r"\A[0-9.]{0,25} ?(ms|s|m|h|d|Ki|MB|kbps|/minute|\.\.)?.{0,3}\Z"),
    st.lists(st.none(), max_size=1),
)


@given(anything)
def test_any_value_is_a_number_of_units_or_a_unit_error(value: object) -> None:
    for parse in PARSERS:
        error = refusal(parse, value)
        assert error is None or error.expected


@given(st.text().map("hunter2".__add__) | st.text().map(lambda end: f"2s{end}hunter2"))
def test_a_unit_error_never_holds_the_value(value: str) -> None:
    for parse in PARSERS:
        error = refusal(parse, value)
        assert "hunter2" not in f"{error} {error and (error.expected, error.suggestion)}"


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("value", ["9" * 1_000_000, "9" * 1_000_000 + "s", "1." + "0" * 1_000_000])
def test_a_very_long_number_is_refused_at_once(
    parse: Callable[[object], object], value: str
) -> None:
    before = perf_counter()

    with pytest.raises(UnitError):
        parse(value)

    assert perf_counter() - before < 1


@pytest.mark.parametrize(
    ("pattern", "parse", "good"),
    [
        (units.DURATION_PATTERN, units.duration_ns, ["15s", "1.5h", "0ms"]),
        (units.SIZE_PATTERN, units.size_bytes, ["64Ki", "8MB", "1.5GiB"]),
        (units.RATE_PATTERN, units.rate, ["60/minute"]),
        (units.CPU_PATTERN, units.millicores, ["500m", "0.5"]),
        (units.BANDWIDTH_PATTERN, units.bandwidth_bps, ["10Mbps"]),
        (units.RANGE_PATTERN, units.duration_range_ns, ["1s..30s"]),
    ],
)
def test_the_pattern_for_editors_accepts_what_is_read(
    pattern: str, parse: Callable[[object], object], good: list[str]
) -> None:
    for text in good:
        parse(text)
        assert re.fullmatch(pattern, text)
