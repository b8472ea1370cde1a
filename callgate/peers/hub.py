"""What the peers of one gate share: the router, the pass, and what they count.

Synchronous. Whoever reads bytes hands them to a peer and calls `flush`; deadlines that the
router looks at end in `flush` too. If the records of a pass cannot be written, what it had
ready to send is put right first: calls that it admitted are refused, answers are withheld.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from callgate.audit import Event
from callgate.audit.merge import Merger
from callgate.errors import AuditUnavailable, CallgateError
from callgate.peers.outbox import Wire
from callgate.router.timer import TimedCallback
from callgate.telemetry import names
from callgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.audit.events import EventName
    from callgate.peers.inflight import Pending
    from callgate.peers.outbox import Outbox
    from callgate.router.lanes import Lane
    from callgate.router.recorder import Recorder
    from callgate.router.router import Router

PASS_FRAMES = 64
"""Of one read in one pass: the other side can begin on them while the rest is handled, and what a
pass costs whatever is in it is next to nothing by then."""
FRAME_TIMEOUT_NS = 30_000_000_000
"""For a frame from its first byte to its last: 16 MiB at 5 Mbit/s."""

METHODS = frozenset(
    {
        "completion/complete",
        "elicitation/create",
        "initialize",
        "logging/setLevel",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "roots/list",
        "sampling/createMessage",
        "server/discover",
        "subscriptions/listen",
        "tools/list",
    }
)
"""Requests that are counted by name; all others are `other`, since a peer may invent names."""


class Frames(Protocol):
    """What a splitter says of the frame that is not complete."""

    @property
    def since_ns(self) -> int | None:
        """When it began."""


class Hub:
    """Shared by the peers of a gate."""

    __slots__ = (
        "_faults",
        "_fetching",
        "_metrics",
        "_timing",
        "_told",
        "engine",
        "on_fault",
        "on_first_rejected",
        "rejected",
        "requests",
        "router",
        "stray",
        "unreadable",
        "wire",
    )

    def __init__(self, router: Router) -> None:
        self.router = router
        self.engine = router.engine
        self.wire = Wire(router.engine.recorders)
        self.requests: Counter[str] = Counter()
        """Requests other than tool calls, by method."""
        self.rejected: Counter[str] = Counter()
        """Frames that could not be read, by reason."""
        self.unreadable = 0
        """How many those are together."""
        self.stray = 0
        """Answers and notifications that belong to nothing in flight."""
        self.on_fault: Callable[[Exception], None] | None = None
        """Told of a fault of ours that one frame met."""
        self.on_first_rejected: Callable[[str, bool], None] | None = None
        """Told why the first frame of either side could not be read, and whether it was the
        client's; of the others there are records."""
        self._told: set[bool] = set()
        self._faults = Merger()
        self._timing: set[Frames] = set()
        """Connections with an incomplete frame, whose time runs."""
        self._fetching: set[asyncio.Task[None]] = set()
        """Keeps the tasks alive. Bounded by the requests that a connection may have in flight."""
        self._metrics = Metrics(
            tuple,
            counters={names.STRAYS: lambda: self.stray},
            tables={
                names.REQUESTS: (names.METHOD_NAME, self.requests.copy),
                names.FRAMES_REJECTED: (names.ERROR_TYPE, self.rejected.copy),
            },
            meter_provider=router.meter_provider,
        )
        router.timer.after_wake = self.flush

    def call_later(self, delay_ns: int, function: Callable[[int], None]) -> TimedCallback:
        """Have `function(now_ns)` called once after `delay_ns`; return what cancels it."""
        timed = TimedCallback(monotonic_ns() + delay_ns, function)
        self.engine.watch(timed)
        return timed

    def cancel_callback(self, timed: TimedCallback | None) -> None:
        """Do not call it, if it has not been called."""
        if timed is not None:
            self.engine.deadlines.discard(timed)

    def record(self, event: EventName, *, agent: str, **members: Any) -> None:
        """Write an event that is not a call's; in a flood of its sort, count it."""
        policy = self.router.policy.revision
        self.engine.note(Event(event=event, agent=agent, policy=policy, **members))

    def count_rejected_frame(
        self, agent: str, reason: str, caller: str | None = None, request_id: str | None = None
    ) -> None:
        """Count and record a frame of the agent, or of this caller, that could not be read.

        `request_id` is what the answer to it says.
        """
        self.rejected[reason] += 1
        self.unreadable += 1
        by_client = caller is not None
        if self.on_first_rejected is not None and by_client not in self._told:
            self._told.add(by_client)
            self.on_first_rejected(reason, by_client)
        self.record(
            "protocol.frame_rejected",
            agent=agent,
            caller=caller,
            code=reason,
            request_id=request_id,
        )

    def count_reserved(self, agent: str) -> None:
        """Count and record a frame in which an agent spoke as a gate; that was taken out."""
        self.rejected["reserved"] += 1
        self.record("security.denied", agent=agent, code="protocol.reserved")

    def fault(self, error: Exception) -> None:
        """A frame met a fault of ours: the others go on."""
        self.rejected["internal"] += 1
        self.unreadable += 1
        if self.on_fault is not None and self._faults.offer(monotonic_ns()):
            self.on_fault(error)

    def start_frame_timeout(self, frames: Frames, count: Callable[[str], None]) -> None:
        """Give an incomplete frame so long to complete; then count it as an error.

        It is not waited for and hurts nobody: what it takes is bounded, and others go on.
        """
        if frames in self._timing:
            return
        self._timing.add(frames)

        def look(now_ns: int) -> None:
            since_ns = frames.since_ns
            left_ns = 0 if since_ns is None else since_ns + FRAME_TIMEOUT_NS - now_ns
            if left_ns > 0:
                self.call_later(left_ns, look)
                return
            self._timing.discard(frames)
            if since_ns is not None:
                count("frame_timeout")

        self.call_later(FRAME_TIMEOUT_NS, look)

    def count(self, method: str) -> None:
        """Count a request other than a tool call."""
        self.requests[method if method in METHODS else "other"] += 1

    def fetch_quota(self, lane: Lane, fetched: Callable[[CallgateError | None], None]) -> None:
        """Fetch a caller's next block, then say so; a pass of its own."""

        async def fetch() -> None:
            try:
                await self.router.fetch_quota(lane)
            except CallgateError as error:
                fetched(error)
            else:
                fetched(None)
            self.flush()

        task = asyncio.get_running_loop().create_task(fetch())
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    def flush(self) -> None:
        """End the pass: records first, then frames."""
        wire = self.wire
        failed = wire.write_down()
        while failed and self._put_right(failed):
            failed = wire.write_down()
        wire.send()

    def _put_right(self, failed: list[Recorder]) -> bool:
        """Undo what these did not write down; False if there is nothing of that left.

        Places that become free let waiting calls in, whose records are to be written next; that
        ends, because each such turn refuses one at least.
        """
        wire = self.wire
        started, wire.started = wire.started, []
        ended, wire.ended = wire.ended, []
        unsent = [one for one in started if _is_of(one, failed) and _is_running(one)]
        for pending in unsent:
            if pending.agent is not None:
                pending.agent.revoke(pending, AuditUnavailable())
        unanswered = [one for one in ended if _is_of(one, failed)]
        withheld: dict[Outbox, dict[int, bytes]] = {}
        for pending in unanswered:
            if pending.caller is not None and pending.answer:
                frame = pending.caller.encode_withheld(pending, AuditUnavailable(tool_ran=True))
                withheld.setdefault(pending.caller.outbox, {})[id(pending.answer)] = frame
        for outbox, frames in withheld.items():
            outbox.replace(frames)
        if unsent:
            self.engine.admit_waiting(monotonic_ns())
        return bool(unsent or unanswered)


def _is_of(pending: Pending, recorders: list[Recorder]) -> bool:
    return pending.flight is not None and pending.flight.lane.recorder in recorders


def _is_running(pending: Pending) -> bool:
    """Not so if it was admitted and cancelled within one pass."""
    return pending.flight is not None and pending.flight.ending is None
