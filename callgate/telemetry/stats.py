"""What is counted of one tool. Pure: the caller measures, this adds up.

The hot path touches integers only; OpenTelemetry reads them when it collects, perhaps from
another thread, so whoever exports takes `dict.copy()` of the mappings. One object serves
all callers of a tool: a caller is never a label, so their number costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from callgate.telemetry.names import NO_SCOPE, OK

DURATION_BOUNDS_NS: Final = tuple(
    milliseconds * 1_000_000
    for milliseconds in (
        *(10, 20, 50, 100, 200, 500),
        *(1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000),
    )
)
"""Upper bounds, as the MCP conventions give them for `mcp.server.operation.duration`."""


class ToolStats:
    """Counters of one tool; `agent` and `tool` are the names that may be shown, or None."""

    __slots__ = (
        "agent",
        "duration_buckets",
        "duration_ns",
        "in_flight",
        "late",
        "outcomes",
        "queued",
        "refusals",
        "shadowed",
        "tool",
        "wait_count",
        "wait_ns",
    )

    def __init__(self, agent: str | None, tool: str | None) -> None:
        self.agent = agent
        self.tool = tool
        self.in_flight = 0
        self.queued = 0
        """Calls that wait in the queue now; the queue's owner counts it up and down."""
        self.late = 0
        """Answers that came after their call was settled; counted up by who drops them."""
        self.outcomes: dict[str, int] = {OK: 0}
        self.refusals: dict[tuple[str, str], int] = {}
        """By error code and kind of scope."""
        self.shadowed: dict[tuple[str, str], int] = {}
        """What would have been refused: by error code and kind of scope."""
        self.duration_buckets = [0] * (len(DURATION_BOUNDS_NS) + 1)
        """Not cumulative; the last one has no bound."""
        self.duration_ns = 0
        self.wait_ns = 0
        self.wait_count = 0

    @property
    def duration_count(self) -> int:
        """How many calls ended."""
        return sum(self.duration_buckets)

    def ended(self, code: str, duration_ns: int) -> None:
        """An admitted call ended with `OK` or an error's code."""
        self.in_flight -= 1
        self.duration_buckets[bisect_left(DURATION_BOUNDS_NS, duration_ns)] += 1
        self.duration_ns += duration_ns
        try:
            self.outcomes[code] += 1
        except KeyError:
            self.outcomes[code] = 1

    def refused(self, code: str, scope_kind: str | None = None) -> None:
        """A call was not admitted; the kind of scope is that of the limit that spoke."""
        key = (code, scope_kind or NO_SCOPE)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def shadow(self, code: str, scope_kind: str | None = None) -> None:
        """A limit in shadow mode would have refused a call that passed."""
        key = (code, scope_kind or NO_SCOPE)
        self.shadowed[key] = self.shadowed.get(key, 0) + 1

    def waited(self, wait_ns: int) -> None:
        """A call left the queue after `wait_ns`, admitted or not."""
        self.wait_ns += wait_ns
        self.wait_count += 1
