"""Human units to integers: nanoseconds, bytes, millicores, bits a second, and back.

Pure. Integers only, so that limits compare exactly and two spellings of one limit are
equal. A number without its unit is refused rather than guessed (15 what?), except for
bytes, where a plain integer has one meaning. Numbers are bounded: what cannot fit a
kernel's or a database's 64-bit field is refused where it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable  # msgspec reads a field's type
from fractions import Fraction
from typing import Any

import msgspec

UNLIMITED = "unlimited"
"""The word that switches a limit off."""

SECOND_NS = 1_000_000_000
_MINUTE_NS = 60 * SECOND_NS
_HOUR_NS = 60 * _MINUTE_NS
_DAY_NS = 24 * _HOUR_NS

MAX_DURATION_NS = 3650 * _DAY_NS
"""Ten years: far beyond any use, and far below 2**63 when added to a clock."""
MAX_BYTES = 2**62
MAX_COUNT = 1_000_000_000
"""Calls per period. One more digit and the interval of a `/second` rate is below 1 ns."""
MAX_MILLICORES = 1_000_000

_DURATIONS = {
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": _MINUTE_NS,
    "h": _HOUR_NS,
    "d": _DAY_NS,
}
_PERIODS = {"second": SECOND_NS, "minute": _MINUTE_NS, "hour": _HOUR_NS, "day": _DAY_NS}
_SIZES = {
    "B": 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_BANDWIDTHS = {"kbps": 10**3, "Kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9}

# Digits are bounded so that no text, however long, becomes a number that is slow to make.
_NUMBER = r"([0-9]{1,19}(?:\.[0-9]{1,9})?)"
DURATION_PATTERN = rf"{_NUMBER}({'|'.join(_DURATIONS)})"
SIZE_PATTERN = rf"{_NUMBER}({'|'.join(_SIZES)})"
BANDWIDTH_PATTERN = rf"{_NUMBER}({'|'.join(_BANDWIDTHS)})"
RATE_PATTERN = rf"([0-9]{{1,19}})/({'|'.join(_PERIODS)})"
CPU_PATTERN = rf"(?:([0-9]{{1,19}})m|{_NUMBER})"
RANGE_PATTERN = rf"({DURATION_PATTERN})\.\.({DURATION_PATTERN})"

DURATION_TEXT = "a duration such as 250ms, 15s, 2m, 1h or 7d"
SIZE_TEXT = "a size such as 64Ki, 512Mi, 1Gi, 8MB or a whole number of bytes"
BANDWIDTH_TEXT = "a bandwidth such as 10Mbps or 1Gbps"
RATE_TEXT = "a rate such as 10/second, 60/minute, 1000/hour or 5000/day"
CPU_TEXT = "a share of processors such as 500m (millicores) or 0.5"
RANGE_TEXT = "a range of durations such as 1s..30s"

_duration = re.compile(DURATION_PATTERN)
_size = re.compile(SIZE_PATTERN)
_bandwidth = re.compile(BANDWIDTH_PATTERN)
_rate = re.compile(RATE_PATTERN)
_cpu = re.compile(CPU_PATTERN)
_number = re.compile(_NUMBER)


class UnitError(ValueError):
    """Raised when a value has no such unit: says what was expected, and never the value."""

    def __init__(self, expected: str, suggestion: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.suggestion = suggestion


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def duration_ns(value: object) -> int:
    """Return `15s` in nanoseconds; zero is left to the caller to judge."""
    if _is_number(value):
        raise UnitError(DURATION_TEXT, f"{value}s")
    match = _duration.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UnitError(DURATION_TEXT, _respell(value, _DURATIONS))
    ns = int(Fraction(match[1]) * _DURATIONS[match[2]])
    if ns > MAX_DURATION_NS:
        raise UnitError("a duration of at most 3650d")
    return ns


def duration_range_ns(value: object) -> tuple[int, int]:
    """Return `1s..30s` as (least, most)."""
    parts = value.split("..") if isinstance(value, str) else []
    if len(parts) != 2:  # noqa: PLR2004  # a range has two ends
        raise UnitError(RANGE_TEXT)
    try:
        low, high = duration_ns(parts[0]), duration_ns(parts[1])
    except UnitError:
        raise UnitError(RANGE_TEXT) from None
    if low > high:
        raise UnitError(f"{RANGE_TEXT}, the smaller first", f"{parts[1]}..{parts[0]}")
    return low, high


def size_bytes(value: object) -> int:
    """Return `512Mi`, `8MB` or a plain integer in bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        match = _size.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise UnitError(SIZE_TEXT, _respell(value, _SIZES))
        count = int(Fraction(match[1]) * _SIZES[match[2]])
    if not 0 <= count <= MAX_BYTES:
        raise UnitError(f"a size from 0 to {MAX_BYTES} bytes")
    return count


def bandwidth_bps(value: object) -> int:
    """Return `10Mbps` in bits a second."""
    match = _bandwidth.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UnitError(BANDWIDTH_TEXT, _respell(value, _BANDWIDTHS))
    bits = int(Fraction(match[1]) * _BANDWIDTHS[match[2]])
    if not 0 < bits <= MAX_BYTES:
        raise UnitError(f"{BANDWIDTH_TEXT}, above zero")
    return bits


def millicores(value: object) -> int:
    """Return `500m` or `0.5` in thousandths of a processor."""
    text = str(value) if _is_number(value) else value
    match = _cpu.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError(CPU_TEXT)
    cores = int(match[1]) if match[1] else int(Fraction(match[2]) * 1000)
    if not 0 < cores <= MAX_MILLICORES:
        raise UnitError(f"{CPU_TEXT}, from 1m to {MAX_MILLICORES}m")
    return cores


def rate(value: object) -> tuple[int, int]:
    """Return `60/minute` as (calls, period in nanoseconds)."""
    match = _rate.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UnitError(RATE_TEXT, _respell_rate(value))
    count = int(match[1])
    if not 0 < count <= MAX_COUNT:
        raise UnitError(f"{RATE_TEXT}, from 1 to {MAX_COUNT} (to allow none, deny the tool)")
    return count, _PERIODS[match[2]]


def duration_text(ns: int) -> str:
    """Return the shortest exact spelling."""
    for unit in ("d", "h", "m", "s", "ms"):
        if ns and ns % _DURATIONS[unit] == 0:
            return f"{ns // _DURATIONS[unit]}{unit}"
    return "0s" if ns == 0 else f"{_decimal(ns, 6)}ms"


def size_text(count: int) -> str:
    """Return the shortest exact spelling."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if count and count % _SIZES[unit] == 0:
            return f"{count // _SIZES[unit]}{unit}"
    return str(count)


def bandwidth_text(bits: int) -> str:
    """Return the shortest exact spelling."""
    for unit in ("Gbps", "Mbps", "kbps"):
        if bits % _BANDWIDTHS[unit] == 0:
            return f"{bits // _BANDWIDTHS[unit]}{unit}"
    return f"{_decimal(bits, 3)}kbps"


def rate_text(count: int, period_ns: int) -> str:
    """Return `60/minute`, as it was written."""
    unit = next(name for name, ns in _PERIODS.items() if ns == period_ns)
    return f"{count}/{unit}"


def _decimal(number: int, digits: int) -> str:
    """Return the number with its point moved to the left, exactly; not for whole numbers."""
    unit = 10**digits
    return f"{number // unit}.{number % unit:0{digits}}".rstrip("0")


def _respell(value: object, units: dict[str, int]) -> str | None:
    """Return the text with the nearest unit's spelling, `15s` for `15 sec`, if there is one."""
    if not isinstance(value, str):
        return None
    match = _number.match(value)
    if match is None:
        return None
    word = value[match.end() :].strip().lower()
    exact = {unit.lower(): unit for unit in units}
    words = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}
    unit = exact.get(word) or words.get(word.removesuffix("s"))
    return f"{match[1]}{unit}" if unit in units else None


def _respell_rate(value: object) -> str | None:
    """Return `60/minute` for `60/min`; None for a bare number, whose period is not obvious."""
    if not isinstance(value, str):
        return None
    count, slash, word = value.partition("/")
    count, word = count.strip(), word.strip().lower()
    word = word.removesuffix("s") or word
    if not slash or not word or re.fullmatch("[0-9]{1,19}", count) is None:
        return None
    period = next((name for name in _PERIODS if name.startswith(word)), None)
    return f"{count}/{period}" if period else None


class Mark(msgspec.Struct, frozen=True):
    """What may stand beside a type in `Annotated` and says nothing to pydantic."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        # Without this pydantic copies the schema and looks for its own constraints in each mark.
        return handler(source)


class Unit(Mark, frozen=True):
    """What a value of the file is: what an author calls it, and how it is shown again."""

    kind: str
    text: Callable[[Any], str]
    expected: str = ""
    """How an author writes it."""
    suffix: str = ""
    """Of the compiled member: `memory` becomes `memory_bytes`."""


DURATION = Unit("duration", duration_text, DURATION_TEXT, "_ns")
SIZE = Unit("size", size_text, SIZE_TEXT, "_bytes")
PROCESSORS = Unit("processors", "{}m".format, CPU_TEXT, "_millicores")
BANDWIDTH = Unit("bandwidth", bandwidth_text, BANDWIDTH_TEXT, "_bps")
RATE = Unit("rate", lambda rate: rate_text(*rate), RATE_TEXT)
RANGE = Unit("range", lambda ends: "..".join(map(duration_text, ends)), RANGE_TEXT)
COUNT = Unit("count", str)
SPELLED = (DURATION, SIZE, PROCESSORS, BANDWIDTH, RATE, RANGE)
"""Units that the reference page explains."""
