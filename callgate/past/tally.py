"""What a span of time adds up to: calls, refusals by limit, durations, busiest tools and callers.

Pure, in bounded memory however many records there are: durations are counted in buckets of three
digits, and beyond `MAX_NAMES` tools, callers or limits the rest is counted as one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from callgate.past.rows import DENIED, ENDS, WOULD_DENY

if TYPE_CHECKING:
    from callgate.past.rows import Row

MAX_NAMES: Final = 10_000
OTHERS: Final = "(others)"
_EXACT_MS: Final = 1000
MAX_SLOTS: Final = 24 * 366
"""Hours of a year: what is older than that is not in the plot."""
COUNTED: Final = ENDS | {WOULD_DENY}


class Durations:
    """How long calls took, exact below a second and to three digits above."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0

    def add(self, ms: int) -> None:
        """Count one call."""
        if ms >= _EXACT_MS:
            unit = 10 ** (len(str(ms)) - 3)
            ms -= ms % unit
        self._counts[ms] += 1
        self.count += 1

    def percentile(self, percent: int) -> int | None:
        """Return the time within which `percent` of 100 calls ended; None of no calls."""
        left = -(-self.count * percent // 100)
        for ms, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return ms
        return None


@dataclass(slots=True)
class Line:
    """Of one tool or caller."""

    calls: int = 0
    refused: int = 0
    failed: int = 0
    durations: Durations = field(default_factory=Durations)


class Tally:
    """Adds up records of the events `COUNTED`."""

    def __init__(self) -> None:
        self.calls = 0
        """Calls that ended or were refused."""
        self.results: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """By limit, or by code where no limit spoke."""
        self.would_refuse: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        """Of admitted calls that did not end well."""
        self.tools: dict[str, Line] = {}
        self.callers: dict[str, Line] = {}
        self.durations = Durations()
        self.hours: Counter[str] = Counter()
        """Calls by the hour, `2026-11-20T08`, in UTC."""
        self.first: str | None = None
        self.last: str | None = None

    def add(self, row: Row) -> None:
        """Count one record."""
        times = row.times
        self.first = row.ts if self.first is None else min(self.first, row.ts)
        self.last = row.ts if self.last is None else max(self.last, row.ts)
        if row.event == WOULD_DENY:
            _count(self.would_refuse, row.limit or row.code or "unknown", times)
            return
        self.calls += times
        result = row.result
        self.results[result if len(self.results) < MAX_NAMES else OTHERS] += times
        hour = row.ts[:13]
        if hour in self.hours or len(self.hours) < MAX_SLOTS:
            self.hours[hour] += times
        tool = f"{row.agent or '?'}/{row.tool or '?'}"
        for line in (_line(self.tools, tool), _line(self.callers, row.caller or "?")):
            line.calls += times
            if row.event == DENIED:
                line.refused += times
            elif result != "ok":
                line.failed += times
            if row.event != DENIED and row.duration_ms is not None:
                line.durations.add(row.duration_ms)
        if row.event == DENIED:
            _count(self.refused, row.limit or row.code or "unknown", times)
            return
        if row.code is not None:
            _count(self.codes, row.code, times)
        if row.duration_ms is not None:
            self.durations.add(row.duration_ms)

    def hourly(self) -> list[int]:
        """Return the calls of each hour from the first to the last, hours without any included."""
        if not self.hours:
            return []
        moments = {hour: datetime.fromisoformat(f"{hour}:00+00:00") for hour in self.hours}
        last = max(moments.values())
        count = int((last - min(moments.values())).total_seconds()) // 3600 + 1
        found = [0] * min(count, MAX_SLOTS)
        for hour, moment in moments.items():
            ago = int((last - moment).total_seconds()) // 3600
            if ago < len(found):
                found[-1 - ago] = self.hours[hour]
        return found


def busiest(lines: dict[str, Line], limit: int) -> list[tuple[str, Line]]:
    """Return the names with most calls, those of equal numbers by name."""
    return sorted(lines.items(), key=lambda entry: (-entry[1].calls, entry[0]))[:limit]


def _count(counter: Counter[str], name: str, times: int) -> None:
    counter[name if name in counter or len(counter) < MAX_NAMES else OTHERS] += times


def _line(lines: dict[str, Line], name: str) -> Line:
    if name not in lines:
        if len(lines) >= MAX_NAMES:
            name = OTHERS
        lines.setdefault(name, Line())
    return lines[name]
