"""What the model of the engine (`test_engine_model.py`) is made of: a policy, a log, an owner.

The calls here have no work but what the test says of it. An owner acts as the real ones do when
the engine tells it something: the local runner (`task`, `thread`), a mount with hooks (`hook`),
and a peer, whose frame has gone out (`wire`) or can be taken back (`unsent`).
"""

from __future__ import annotations

import functools
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from callgate import Policy
from callgate.errors import AuditUnavailable
from callgate.limits.deadlines import Deadlines
from callgate.router.flight import Ending

if TYPE_CHECKING:
    from callgate.limits.rate import Rate
    from callgate.model import RateSpec
    from callgate.router.engine import Engine
    from callgate.router.flight import Flight

MS = 1_000_000
CALLERS = ("alice", "bob", "carol")
TOOLS = ("a", "b")
KINDS = ("task", "thread", "hook", "wire", "unsent")
ENDINGS = (Ending.COMPLETED, Ending.FAILED, Ending.OVERSIZED, Ending.CRASHED)
TIMEOUT_MS = 5_000
GRACE_MS = 2_000
HOLD_MS = 20_000
QUOTA = 4

SLOTS = ("unlimited", "unlimited", "1", "2", "3")
RATES = (
    "unlimited",
    "unlimited",
    "{limit: 2/second, burst: 3, on_limit: MAY}",
    "{limit: 4/second, burst: 1, on_limit: MAY}",
    "{limit: 30/minute, burst: 5, on_limit: MAY}",
)
POLICIES = 60
"""So many, each made of its number: to draw and to parse one costs as much as ten steps."""


def _text(draw: random.Random) -> str:
    """A policy with limits in every scope, or in few."""

    def limits(*may: str) -> str:
        rate = draw.choice(RATES).replace("MAY", draw.choice(may))
        return f"concurrency: {draw.choice(SLOTS)}, rate: {rate}"

    own = draw.choice(("", "", "concurrency: 1,", "concurrency: 2,"))
    quota = draw.choice(("", f"quota: {QUOTA}/hour,"))
    tools = ", ".join(f"{tool}: {{{limits('deny', 'wait')}}}" for tool in TOOLS)
    queue = draw.choice((0, 2, 8, 8, 8))
    return f"""
version: 1
defaults: {{timeout: {TIMEOUT_MS}ms, max_timeout: 60s, rate: unlimited, concurrency: unlimited}}
global: {{{limits("deny")}}}
callers:
  "*": {{{own} {quota} rate: unlimited}}
agents:
  web:
    {{{limits("deny", "wait")}, queue: {queue}, cancel_grace: {GRACE_MS}ms, tools: {{{tools}}}}}
"""


@functools.cache
def policy(number: int) -> Policy:
    """One of `POLICIES`."""
    return Policy.parse(_text(random.Random(number)))  # noqa: S311  # the same in every run


def policies() -> st.SearchStrategy[int]:
    """The numbers of policies; `policy` makes one of them."""
    return st.integers(0, POLICIES - 1)


class InOrder(Deadlines[Any]):
    """Those due at once in the order in which they asked, and not by where they lie in memory."""

    def due(self, now_ns: int) -> list[Any]:
        return sorted(super().due(now_ns), key=lambda flight: flight.request_id)


class Book:
    """An audit log in memory, whose disk may be full."""

    def __init__(self) -> None:
        self.is_full = False
        self.of: dict[str, list[str]] = defaultdict(list)
        """Records of calls, by request id, without their prefix."""
        self.open_calls = 0
        self.key = None
        self.has_staged = False
        self.dropped = 0
        self.closed = False

    def wall_us(self, monotonic_ns: int) -> int:
        return monotonic_ns // 1000

    def record(self, body: str, opens: int = 0, _call: str | None = None) -> None:
        if self.is_full:
            self.open_calls += min(opens, 0)
            raise AuditUnavailable
        self.open_calls += opens
        line: dict[str, Any] = json.loads("{" + body + "}")
        self.of[line["request_id"]].append(line["event"].removeprefix("tool.call."))

    def write(self, event: Any) -> None:
        """No event of a call."""

    def close(self) -> None:
        """Nothing was opened."""


@dataclass(eq=False)
class Call:
    """One call as the model knows it."""

    flight: Flight
    kind: str
    number: int
    """In which order it asked."""
    state: str = ""
    """queued, running, stopping (told to, and not yet answered for), given up (the same, and its
    slots are back), lingering (answered, and its slots are not back), gone, refused."""
    was_admitted: bool = False
    was_queued: bool = False
    is_unwritten: bool = False
    """Its end could not be written."""
    late: int = 0
    is_forgotten: bool = False
    """Its work outlived the grace, and nobody heard of it again."""

    @property
    def holds(self) -> bool:
        return self.state in {"running", "stopping", "lingering"}

    @property
    def counters(self) -> tuple[int, ...]:
        """Which counters it needs: those with the same wait for the same."""
        lane = self.flight.lane
        return tuple(map(id, (*lane.rates, *lane.slots)))


class Owner:
    """Acts as those who own flights do."""

    def __init__(self, engine: Engine, book: Book) -> None:
        self._engine = engine
        self._book = book
        self.calls: dict[Flight, Call] = {}
        self.entered_now: list[Call] = []
        """From the queue, in their order, since the last look."""

    def entered(self, flight: Flight) -> None:
        call = self.calls[flight]
        assert call.state == "queued"
        call.state = "running"
        call.was_admitted = True
        self.entered_now.append(call)
        if call.kind == "thread":
            flight.lingers = True

    def turned_away(self, flight: Flight) -> None:
        call = self.calls.get(flight)
        if call is not None:  # else `begin` has not even returned it
            assert call.state == "queued"
            call.state = "refused"

    def interrupt(self, flight: Flight) -> None:
        call = self.calls[flight]
        assert call.state == "running"
        if call.kind == "task":
            call.state = "stopping"
            return
        if call.kind == "wire":
            flight.lingers, flight.grace_ns = True, GRACE_MS * MS
        elif call.kind == "hook":
            flight.grace_ns = HOLD_MS * MS
        call.state = "gone" if call.kind == "unsent" else "lingering"
        self._end(call, Ending.CANCELLED)

    def ignored(self, flight: Flight) -> None:
        call = self.calls[flight]
        assert call.state in {"stopping", "lingering"}
        call.is_forgotten = call.state == "lingering"
        call.state = "gone" if call.is_forgotten else "given up"

    def end(self, call: Call, ending: Ending) -> None:
        """The work ends by itself, or because it was told to."""
        flight = call.flight
        if call.state == "lingering":
            call.state = "gone"
            answered = ending is not Ending.CRASHED
            call.late += answered and not self._book.is_full
            self._engine.work_ended(flight, answered=answered)
            return
        call.state = "gone"
        if call.kind == "thread":
            flight.settle(ending)
            self._engine.work_ended(flight, answered=True)
        elif call.kind == "hook":
            flight.lingers = False
        self._end(call, ending)

    def _end(self, call: Call, ending: Ending) -> None:
        failure = self._engine.finish(call.flight, ending)
        call.is_unwritten = failure is not None


@dataclass
class RateLog:
    """When calls were admitted by one rate, under one spec of it."""

    rate: Rate
    spec: RateSpec
    at_ns: list[int] = field(default_factory=list)

    def check(self) -> None:
        """In no stretch of time more than a burst and what was refilled meanwhile."""
        last_ns = self.at_ns[-1]
        for position, first_ns in enumerate(self.at_ns):
            count = len(self.at_ns) - position
            assert count <= self.spec.burst + (last_ns - first_ns) // self.spec.interval_ns
