"""The life of a call, without the call's work: admission, queue, deadline, settlement.

Synchronous, and ignorant of how a tool runs: `begin` lets a call in, queues or refuses it;
`finish` ends it; the flight's owner (the local runner, or a peer on a wire) does the work in
between and is told when a waiting call enters and when a running one must stop. Deadlines,
refills and merged records share one timer, which the router arms when `wake_ns` moves.

Every path out of here leaves the counters as if the call had not been, or holds them in a
flight that `finish` or `work_ended` gives back.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING

from callgate.errors import AuditUnavailable, CallCanceled, CallgateError
from callgate.limits.admission import admit, refund, release
from callgate.limits.deadlines import NEVER, Deadlines
from callgate.router import refusals, screen
from callgate.router.flight import Ending, Flight, identify, is_identified
from callgate.router.queues import Queues, deadline_of, no_room

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.audit import Event
    from callgate.model import RequestIds, ToolCall
    from callgate.router.flight import Owner
    from callgate.router.lanes import Lane
    from callgate.router.recorder import Recorder
    from callgate.router.timer import TimedCallback
    from callgate.telemetry.spans import Spans


class Engine:
    """Lets calls in and out."""

    __slots__ = (
        "_queues",
        "_rearm",
        "armed_ns",
        "deadlines",
        "flights",
        "new_id",
        "on_drained",
        "recorders",
        "spans",
    )

    def __init__(self, ids: RequestIds, spans: Spans, rearm: Callable[[], None]) -> None:
        self.flights: dict[str, Flight] = {}
        """Calls that wait or run, by request id."""
        self.deadlines: Deadlines[Flight | TimedCallback] = Deadlines()
        self.recorders: list[Recorder] = []
        """The current policy's first, then those that calls in flight still need."""
        self.spans = spans
        self.armed_ns = NEVER
        """When the router's timer will fire; kept by the router."""
        self.new_id = ids.next
        self.on_drained: Callable[[], None] | None = None
        """Told when the last call has ended, while somebody waits for that."""
        self._rearm = rearm
        self._queues = Queues()

    @property
    def wake_ns(self) -> int:
        """When `wake` has something to do."""
        times = [recorder.flush_ns for recorder in self.recorders]
        if self._queues.agents:
            times.append(self._queues.refill_ns)
        wake_ns = self.deadlines.wake_ns
        return min((time for time in times if time is not None and time < wake_ns), default=wake_ns)

    def begin(  # noqa: C901, PLR0912  # the way in, read in one piece; a call costs less than a helper
        self,
        lane: Lane,
        call: ToolCall,
        owner: Owner,
        parent: Flight | None,
        now_ns: int,
        bytes_in: int | None = None,
        asked_ns: int | None = None,
        request_id: str | None = None,
    ) -> Flight | CallgateError:
        """Let a call in (then it is recorded), queue it (`queued` is set), or say why not.

        `bytes_in` is the size of the arguments where it is known; else they are measured if a
        limit asks for it. `asked_ns` and `request_id` are for a call that had to wait before.
        """
        if request_id is None:
            request_id = self.new_id()
        if asked_ns is None:
            asked_ns = now_ns
        deadline_ns = asked_ns + lane.default_ns
        if call.timeout_ms is not None or parent is not None:
            found = deadline_of(lane, request_id, call.timeout_ms, parent, asked_ns)
            if not isinstance(found, int):
                return self.refuse_call(lane, found, call, parent, now_ns)
            deadline_ns = found
        if lane.screened:
            if bytes_in is None and lane.spec.max_input_bytes is not None:
                bytes_in = screen.measure(call.arguments)
            refused = screen.refuse_early(lane, request_id, bytes_in, time_ns())
            if refused is not None:
                return self.refuse_call(lane, refused, call, parent, now_ns)
        if self._queues.agents:
            self.admit_waiting(now_ns)  # then none of those who wait could use what this one takes
        enters = admit(lane.rates, lane.slots, now_ns)
        if not enters:
            refused = no_room(lane, request_id, parent, now_ns, deadline_ns)
            if refused is not None:
                return self.refuse_call(lane, refused, call, parent, now_ns)
        flight = Flight(lane, request_id, owner, parent, asked_ns, deadline_ns, deadline_ns)
        if call.timeout_ms is not None:
            flight.timeout_ms = call.timeout_ms
        if bytes_in is not None:
            flight.bytes_in = bytes_in
        if lane.quota is not None:
            flight.quota_window = screen.take_quota(lane.quota)
        if parent is not None or self.spans.enabled or is_identified(call):
            ids, flight.span = identify(lane, request_id, call, self.spans, parent, self.new_id)
            flight.correlation_id, flight.ids = ids
        return (self._start(flight, now_ns) if enters else self._wait(flight, now_ns)) or flight

    def finish(self, flight: Flight, ending: Ending) -> AuditUnavailable | None:
        """Settle, give the places back and write the end; returns why it could not be written.

        If the work lingers, the places stay taken until `work_ended`, or for the grace. Does
        nothing the second time.
        """
        if self.flights.pop(flight.request_id, None) is None:
            return None
        if flight.ending is None:
            flight.ending = ending
        else:
            ending = flight.ending
        lane = flight.lane
        now_ns = monotonic_ns()
        duration_ns = now_ns - flight.asked_ns
        bucket = flight.deadline_bucket
        if bucket is not None:
            bucket.discard(flight)
            flight.deadline_bucket = None
        lane.stats.ended(ending.code, duration_ns)
        lingers = flight.lingers
        if lingers:
            lane.recorder.pins += 1
            if flight.grace_ns is not None:
                flight.check_at_ns = now_ns + flight.grace_ns
                self.watch(flight)
        if flight.span is not None:
            self.spans.end(flight.span, ending.code)
        if self.on_drained is not None and not self.flights:
            self.on_drained()
        failure = None
        try:
            lane.recorder.ended(flight, duration_ns)
        except AuditUnavailable as error:
            failure = refusals.named(error, lane, flight.request_id)
        if not lingers:  # after the record, so that the log never shows more than the limit
            self._release(flight, now_ns)
        return failure

    def work_ended(self, flight: Flight, *, answered: bool) -> None:
        """Lingering work came to its end: release what it held, note an answer as late."""
        lingered, flight.lingers = flight.lingers, False
        if flight.ending is None or flight.request_id in self.flights:
            return  # it ended in time; `finish` follows
        now_ns = monotonic_ns()
        self.deadlines.discard(flight)
        self._release(flight, now_ns)
        if answered:
            self.late(flight)
        if lingered:
            flight.lane.recorder.unpin()

    def late(self, flight: Flight) -> None:
        """An answer came after its call had been settled."""
        flight.lane.stats.late += 1
        flight.lane.recorder.late(flight, monotonic_ns() - flight.asked_ns)

    def cancel(self, request_id: str) -> bool:
        """End a call for its caller; False if it is not in flight."""
        flight = self.flights.get(request_id)
        if flight is None:
            return False
        if flight.queued:
            self.turn_away(flight, refusals.plain(CallCanceled, flight.lane, request_id))
            return True
        if not flight.settle(Ending.CANCELLED):
            return False
        self._interrupt(flight, monotonic_ns())
        return True

    def turn_away(self, flight: Flight, error: CallgateError) -> None:
        """Refuse a call that waits."""
        now_ns = monotonic_ns()
        self._queues.remove(flight, now_ns)
        self._turn_away(flight, error, now_ns)
        flight.owner.turned_away(flight)

    def abandon(self, flight: Flight) -> None:
        """The caller of a call that waits, or has just been let in, went away."""
        if flight.queued:
            now_ns = monotonic_ns()
            self._queues.remove(flight, now_ns)
            error = refusals.plain(CallCanceled, flight.lane, flight.request_id)
            self._turn_away(flight, error, now_ns)
        else:  # also one whose places went back already, by the grace: it still has no end
            self.finish(flight, Ending.CANCELLED)

    def refuse(self, lane: Lane, error: CallgateError, now_ns: int, ids: str = "") -> CallgateError:
        """Count and write down a refusal."""
        lane.stats.refused(error.code, refusals.scope_kind(error))
        recorder = lane.recorder
        if recorder.log is not None:
            recorder.refused(lane, error, ids, now_ns)
            self._flush_in_time(recorder)
        return error

    def note(self, event: Event) -> None:
        """Write down an event that is not a call's and that a peer may cause."""
        recorder = self.recorders[0]
        recorder.note(event, monotonic_ns())
        self._flush_in_time(recorder)

    def _flush_in_time(self, recorder: Recorder) -> None:
        if recorder.flush_ns is not None and recorder.flush_ns < self.armed_ns:
            self._rearm()

    def revoke(self, flight: Flight, error: CallgateError) -> CallgateError:
        """Undo an admission whose record could not be written; its work has not begun."""
        lane = flight.lane
        lane.stats.in_flight -= 1
        flight.holds_slots = False
        release(lane.shadow_slots)
        refund(lane.rates, lane.slots)
        refusals.named(error, lane, flight.request_id)
        return self._turn_away(flight, error, monotonic_ns())

    def would_deny(self, flight: Flight, error: CallgateError, now_ns: int | None = None) -> None:
        """Record that a limit in shadow mode would have refused or ended a call that passes."""
        lane = flight.lane
        lane.stats.shadow(error.code, refusals.scope_kind(error))
        recorder = lane.recorder
        if recorder.log is not None:
            now_ns = monotonic_ns() if now_ns is None else now_ns
            recorder.would_deny(lane, error, flight.ids, now_ns)
            if recorder.flush_ns is not None and recorder.flush_ns < self.armed_ns:
                self._rearm()

    def refuse_call(
        self, lane: Lane, error: CallgateError, call: ToolCall, parent: Flight | None, now_ns: int
    ) -> CallgateError:
        """Refuse a call that has no flight, with the ids and the span that it would have had."""
        if parent is None and not self.spans.enabled and not is_identified(call):
            return self.refuse(lane, error, now_ns)
        ids, span = identify(lane, error.request_id or "", call, self.spans, parent, self.new_id)
        self.spans.end(span, error.code)
        return self.refuse(lane, error, now_ns, ids.text)

    def admit_waiting(self, now_ns: int) -> None:
        """Let waiting calls in, as far as there is room."""
        self._queues.admit_waiting(now_ns, lambda flight: self._enter(flight, now_ns))
        if self.wake_ns < self.armed_ns:
            self._rearm()

    def wake(self, now_ns: int) -> None:
        """Do what is due: end calls, let paced calls in, write merged refusals."""
        for due in self.deadlines.due(now_ns):
            if isinstance(due, Flight):
                self._expire(due, now_ns)
            else:
                due.callback(now_ns)
        if self._queues.agents:
            self.admit_waiting(now_ns)
        for recorder in self.recorders:
            if recorder.flush_ns is not None and recorder.flush_ns <= now_ns:
                recorder.flush_merged()

    def _start(self, flight: Flight, now_ns: int) -> CallgateError | None:
        """Record an admitted call and watch its deadline; on failure it never was."""
        lane = flight.lane
        flight.holds_slots = True
        if not lane.plain:
            wall_ns = time_ns() if lane.screened else 0
            for hidden in screen.charge(flight, now_ns, wall_ns):
                self.would_deny(flight, hidden, now_ns)
            if flight.deadline_bucket is not None and flight.check_at_ns != flight.deadline_ns:
                self.deadlines.discard(flight)
        try:
            lane.recorder.admitted(flight, now_ns - flight.asked_ns)
        except AuditUnavailable as error:
            release(lane.shadow_slots)
            refund(lane.rates, lane.slots)
            flight.holds_slots = False
            refusals.named(error, lane, flight.request_id)
            return self._turn_away(flight, error, now_ns)
        lane.stats.in_flight += 1
        self.flights[flight.request_id] = flight
        if flight.deadline_bucket is None and flight.check_at_ns < NEVER:
            deadlines = self.deadlines
            deadlines.add(flight)
            if deadlines.wake_ns < self.armed_ns:
                self._rearm()
        return None

    def _enter(self, flight: Flight, now_ns: int) -> None:
        waiter = flight.waiter
        if waiter is not None and waiter.cancelled():  # its caller has gone in this very moment
            lane = flight.lane
            refund(lane.rates, lane.slots)
            self._turn_away(flight, refusals.plain(CallCanceled, lane, flight.request_id), now_ns)
        elif self._start(flight, now_ns) is None:
            flight.owner.entered(flight)
        else:
            flight.owner.turned_away(flight)

    def _wait(self, flight: Flight, now_ns: int) -> CallgateError | None:
        """Put a call into its agent's queue; others may leave it for that, or this one at once."""
        self._queues.add(flight, now_ns)
        self.flights[flight.request_id] = flight
        self.watch(flight)
        self.admit_waiting(now_ns)
        return flight.refused

    def _turn_away(self, flight: Flight, error: CallgateError, now_ns: int) -> CallgateError:
        """A call that has a flight is refused after all: it is charged nothing."""
        self.deadlines.discard(flight)
        self.flights.pop(flight.request_id, None)
        quota = flight.lane.quota
        if quota is not None and flight.quota_window is not None:
            quota.refund(flight.quota_window, time_ns())
        if flight.span is not None:
            self.spans.end(flight.span, error.code)
        flight.refused = error
        return self.refuse(flight.lane, error, now_ns, flight.ids)

    def _expire(self, flight: Flight, now_ns: int) -> None:
        if flight.queued:
            self._queues.remove(flight, now_ns)
            self._turn_away(flight, refusals.expired(flight, now_ns), now_ns)
            flight.owner.turned_away(flight)
        elif not flight.holds_slots:
            return  # it ended in this very pass, with one that was due before it
        elif flight.ending is not None:
            self._release(flight, now_ns)
            flight.owner.ignored(flight)
        elif now_ns < flight.deadline_ns:
            self._shadow_timeout(flight, now_ns)
        elif flight.settle(Ending.TIMED_OUT):
            self._interrupt(flight, now_ns)

    def _interrupt(self, flight: Flight, now_ns: int) -> None:
        """Stop the work of a call that was settled; its places wait for that, or for the grace."""
        self.deadlines.discard(flight)
        if not flight.lingers:  # else `finish` sees to it, which is soon
            flight.check_at_ns = now_ns + flight.lane.spec.cancel_grace_ns
            self.watch(flight)
        flight.owner.interrupt(flight)

    def _shadow_timeout(self, flight: Flight, now_ns: int) -> None:
        shadow_ns = flight.check_at_ns - flight.asked_ns
        error = refusals.timed_out(flight.lane, flight.request_id, shadow_ns)
        self.would_deny(flight, error, now_ns)
        flight.check_at_ns = flight.deadline_ns
        self.watch(flight)

    def watch(self, item: Flight | TimedCallback) -> None:
        """Look at it again at its `deadline_ns`; `deadlines.discard` takes that back."""
        if item.check_at_ns < NEVER:
            self.deadlines.add(item)
            if self.deadlines.wake_ns < self.armed_ns:
                self._rearm()

    def _release(self, flight: Flight, now_ns: int) -> None:
        """Give the places back, once; calls that wait for them enter."""
        if not flight.holds_slots:
            return
        flight.holds_slots = False
        lane = flight.lane
        for slot in lane.slots:
            slot.used -= 1
        if lane.shadow_slots:
            release(lane.shadow_slots)
        if self._queues.agents:
            self.admit_waiting(now_ns)
