"""A call in flight: waiting, running or ending.

One object for the whole life of a call, made when it is admitted or queued. `settle` is the
one place that decides how a call ended: whoever comes first. Everything else that happens to
it afterwards is late.

`identify` says who a call belongs to. Ids from outside are kept only if they are UUIDs; anything
else is replaced by one of ours, so that related records stay related and no text gets in. A
nested call belongs to the call that it is nested in.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from callgate.audit.events import call_ids, safe_trace_id, safe_uuid
from callgate.telemetry.spans import Spans

# msgspec does not resolve a Struct's annotations until it decodes one, and nobody decodes these.
# ruff: noqa: TC004

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable

    from callgate.errors import CallgateError
    from callgate.limits.deadlines import Timed
    from callgate.limits.rate import Rate
    from callgate.limits.slots import Slots
    from callgate.model import ToolCall
    from callgate.router.lanes import Lane
    from callgate.telemetry.tracing import CallSpan


class Ending(enum.Enum):
    """How an admitted call can end: the audit's event, and the code that callers see."""

    COMPLETED = ("tool.call.completed", "ok")
    FAILED = ("tool.call.failed", "tool.failed")
    OVERSIZED = ("tool.call.failed", "limit.output_bytes")
    FRAME_TOO_LARGE = ("tool.call.failed", "limit.frame_bytes")
    UNREADABLE = ("tool.call.failed", "protocol.invalid")
    BROKEN = ("tool.call.failed", "internal")
    TIMED_OUT = ("tool.call.timed_out", "limit.timeout")
    CANCELLED = ("tool.call.cancelled", "tool.canceled")
    SUSPENDED = ("tool.call.suspended", "tool.suspended")  # a person is asked; no failure
    CRASHED = ("tool.call.crashed", "agent.crashed")
    ENDED_BY_LIMIT = ("tool.call.crashed", "resource_limit_exceeded")

    def __init__(self, event: str, code: str) -> None:
        self.event: Any = event
        self.code = code


class Owner(Protocol):
    """Who does the work of flights and answers for them: the local runner, or a peer.

    The first two are called while the engine lets others in: they may not call back into it.
    """

    def entered(self, flight: Flight) -> None:
        """A call that waited has been let in, and recorded."""

    def turned_away(self, flight: Flight) -> None:
        """A call that waited will not be let in; `flight.refused` says why."""

    def interrupt(self, flight: Flight) -> None:
        """A running call was settled from outside: stop its work."""

    def ignored(self, flight: Flight) -> None:
        """The work has not stopped within the grace; its places have been given back."""


class Flight(msgspec.Struct, eq=False):
    """One call, and nothing else: it equals only itself.

    A Struct, because it is made for every call: that costs half of what a class with slots
    and an `__init__` does.
    """

    lane: Lane
    request_id: str
    owner: Owner
    parent: Flight | None
    asked_ns: int
    check_at_ns: int
    """When the engine looks at it next."""
    deadline_ns: int
    """When it must end; later than `check_at_ns` only while a shadowed timeout comes first."""
    bytes_in: int | None = None
    holds_slots: bool = False
    deadline_bucket: set[Timed] | None = None
    """The set in `Deadlines` that holds this call; `slots` are its concurrency limits."""
    timeout_ms: int | None = None
    """The time that the call asked for itself."""
    queued_ns: int = 0
    correlation_id: str | None = None
    ids: str = ""
    """The ids as the audit writes them."""
    ending: Ending | None = None
    lingers: bool = False
    """Its work may outlive its answer (a thread, an isolated task, an agent that was told to
    cancel): the slots wait for it."""
    grace_ns: int | None = None
    """How long they wait at most; None is until the work ends, as a thread's."""
    queued: bool = False
    paced: bool = False
    task: asyncio.Task[Any] | None = None
    base_cancels: int = 0
    waiter: asyncio.Future[Any] | None = None
    """What the caller waits on while it is not in `task`: its turn, or isolated work."""
    span: CallSpan | None = None
    bytes_out: int | None = None
    quota_window: int | None = None
    """Which window of the caller's quota paid for it."""
    refused: CallgateError | None = None
    """Why it was turned away after it had waited."""
    handle: Any = None
    """The owner's own: what it needs to answer and to interrupt."""

    @property
    def caller_key(self) -> Hashable:
        """Whose turn it is in the queue."""
        return self.lane.caller.name

    @property
    def tool_key(self) -> Hashable:
        """Calls for the same tool wait in line."""
        return self.lane.spec.tool_key

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The buckets that it must be admitted by."""
        return self.lane.rates

    @property
    def slots(self) -> tuple[Slots, ...]:
        """The places that it takes."""
        return self.lane.slots

    @property
    def ended_by_itself(self) -> bool:
        """Whether its work is over, so that what it left running is nobody's nested call.

        Work that was told to stop and goes on is still under its deadline.
        """
        ending = self.ending
        return ending is not None and ending not in {Ending.TIMED_OUT, Ending.CANCELLED}

    def settle(self, ending: Ending) -> bool:
        """Say how the call ended; False if somebody was first."""
        if self.ending is not None:
            return False
        self.ending = ending
        return True

    def remaining_ms(self, now_ns: int) -> int:
        """What is left until the deadline."""
        return max(0, self.deadline_ns - now_ns) // 1_000_000


def blocked_by_ancestors(lane: Lane, parent: Flight | None) -> Slots | None:
    """Places that a nested call needs and only the calls it is nested in could give back."""
    for slot in lane.slots:
        if slot.used >= slot.limit and slot.used == _held_by(slot, parent):
            return slot
    return None


def _held_by(slot: Slots, flight: Flight | None) -> int:
    held = 0
    while flight is not None:
        if flight.holds_slots and slot in flight.lane.slots:
            held += 1
        flight = flight.parent
    return held


def is_identified(call: ToolCall) -> bool:
    """Whether a call says of itself what it belongs to."""
    return (
        call.correlation_id is not None or call.causation_id is not None or call.trace is not None
    )


class Ids(NamedTuple):
    """What a call belongs to."""

    correlation_id: str | None
    text: str
    """All ids, as the audit writes them."""


def identify(
    lane: Lane,
    request_id: str,
    call: ToolCall,
    spans: Spans,
    parent: Flight | None,
    new_id: Callable[[], str],
) -> tuple[Ids, CallSpan | None]:
    """The ids and the span of a call."""
    correlation_id = call.correlation_id
    causation_id = call.causation_id
    if correlation_id is not None:
        correlation_id = _uuid(correlation_id) or new_id()
    elif parent is not None:
        correlation_id = parent.correlation_id or parent.request_id
    if causation_id is not None:
        causation_id = _uuid(causation_id) or new_id()
    elif parent is not None:
        causation_id = parent.request_id
    trace = call.trace if isinstance(call.trace, Mapping) else None
    span = None
    if spans.enabled:
        span = spans.start(lane.spec.agent, lane.spec.tool, request_id, trace)
    trace_id = Spans.trace_id(span or trace)
    text = call_ids(
        correlation_id, causation_id, None if trace_id is None else safe_trace_id(trace_id)
    )
    return Ids(correlation_id, text), span


def _uuid(given: Any) -> str | None:
    """Nothing checks the types of a program's `ToolCall`, and a UUID is as good as its text."""
    return safe_uuid(str(given)) if isinstance(given, str | UUID) else None
