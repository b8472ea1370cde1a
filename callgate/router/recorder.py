"""What the router writes down of calls, and what it does when that fails.

The audit log may be absent. A refusal is never let through because its record failed: the
call stays refused. Floods of refusals in one lane are merged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.audit import events
from callgate.audit.merge import RecordThrottle
from callgate.errors import AuditUnavailable, CallgateError, LimitInfo
from callgate.router.flight import Ending

if TYPE_CHECKING:
    from callgate.audit import AuditLog, Event
    from callgate.router.flight import Flight
    from callgate.router.lanes import Lane

MERGE_WINDOW_NS = 1_000_000_000
MAX_MERGED = 256
"""Records of merged refusals in one second; an agent may list four thousand tools."""
MANY_LANES = ("", "")
"""Stands for all lanes and codes beyond that; their record is the latest one's."""
_COMPLETED = Ending.COMPLETED


class Merged:
    """What a flood comes to: one error of it, how many, when the first and the last came."""

    __slots__ = ("count", "error", "event", "first_ns", "lane", "last_ns")

    def __init__(
        self, event: events.Refusal, lane: Lane, error: CallgateError, now_ns: int
    ) -> None:
        self.event = event
        self.lane = lane
        self.error = error
        self.count = 0
        self.first_ns = self.last_ns = now_ns


class Recorder:
    """Writes calls into the audit log, if there is one."""

    __slots__ = (
        "_merged_events",
        "_merging",
        "_record",
        "_throttle",
        "batched",
        "flush_ns",
        "log",
        "pins",
        "retired",
    )

    def __init__(self, log: AuditLog | None = None, *, batched: bool = False) -> None:
        """`batched` leaves the writing to `flush`, for whoever handles many calls at once."""
        self.log = log
        self.batched = batched
        self._record = None if log is None else log.stage if batched else log.record
        self._throttle = RecordThrottle()
        """Of all that a peer can cause; it outlives lanes, which a peer can have made anew."""
        self._merging: dict[tuple[str, str, str], Merged] = {}
        """Refusals, and what shadow let pass, counted and not yet written: by event, lane, code."""
        self._merged_events: dict[tuple[str | None, str, str | None], tuple[Event, int, int, int]]
        """The same of events that are no call's, by agent, event and code."""
        self._merged_events = {}
        self.pins = 0
        """Calls that wait, and work that outlived its call: they may have more to write."""
        self.retired = False
        """Its policy was replaced: it closes with the last call that it has to write."""
        self.flush_ns: int | None = None
        """When to call `flush_merged` next."""

    @property
    def key(self) -> bytes | None:
        """The install's key for pseudonyms, if there is a log."""
        return None if self.log is None else self.log.key

    @property
    def dropped(self) -> int:
        """Records that could not be written and were let go."""
        return 0 if self.log is None else self.log.dropped

    @property
    def is_done(self) -> bool:
        """Whether nothing more will be written: there never was a log, or it is closed."""
        return self.log is None or self.log.closed

    def snapshot(self) -> dict[str, Any] | None:
        """Counters of the log."""
        return None if self.log is None else self.log.snapshot()

    def write(self, event: Event) -> None:
        """Write an event that is not a call's; a failure shows at the next call."""
        if self.log is not None:
            with suppress(AuditUnavailable):
                if self.log.has_staged:  # in the middle of a pass, whose end flushes it
                    self.log.stage(event.body())
                else:
                    self.log.write(event)

    def note(self, event: Event, now_ns: int) -> None:
        """Write an event that a peer may cause as often as it likes; in a flood, count it."""
        key = event.agent, event.event, event.code
        if self.log is None or self._throttle.allow(key, now_ns):
            self.write(event)
            return
        _, count, first_ns, _ = self._merged_events.get(key, (event, 0, now_ns, now_ns))
        self._merged_events[key] = event, count + 1, first_ns, now_ns
        self._flush_soon(now_ns)

    def _flush_soon(self, now_ns: int) -> None:
        if self.flush_ns is None:
            self.flush_ns = now_ns + MERGE_WINDOW_NS

    def retire(self) -> None:
        """Write the rest of the calls in flight, then close."""
        self.retired = True
        self._close_if_idle()

    def close(self) -> None:
        """Write what is only counted so far, and close the log; from then on it refuses calls."""
        self.flush_merged()
        if self.log is not None:
            with suppress(AuditUnavailable):
                self.log.close()

    def flush(self) -> None:
        """Write what is batched; raises `AuditUnavailable` if none of it could be written."""
        if self.log is not None:
            try:
                self.log.flush()
            finally:
                if self.retired:
                    self._close_if_idle()

    def admitted(self, flight: Flight, queue_ns: int) -> None:
        """A call enters; raises `AuditUnavailable` if that cannot be written."""
        record, log = self._record, self.log
        if record is not None and log is not None:
            record(
                events.admitted(
                    flight.lane.fragment,
                    flight.request_id,
                    flight.ids,
                    queue_ns // 1_000_000,
                    log.wall_us(flight.asked_ns),
                    flight.timeout_ms,
                ),
                1,
                flight.request_id,
            )

    def ended(self, flight: Flight, duration_ns: int) -> None:
        """An admitted call ended; raises `AuditUnavailable` if that cannot be written."""
        record = self._record
        ending = flight.ending
        if record is None or ending is None:
            return
        if ending is _COMPLETED:
            body = events.completed(
                flight.lane.fragment,
                flight.request_id,
                flight.ids,
                duration_ns // 1_000_000,
                flight.bytes_in,
                flight.bytes_out,
            )
        else:
            body = _ended_otherwise(flight, ending, duration_ns)
        try:
            record(body, -1, flight.request_id)
        finally:
            if self.retired and not self.batched:
                self._close_if_idle()

    def late(self, flight: Flight, duration_ns: int) -> None:
        """Work answered after its call had been settled."""
        record = self._record
        if record is not None:
            with suppress(AuditUnavailable):
                record(
                    events.late(
                        flight.lane.fragment,
                        flight.request_id,
                        flight.ids,
                        duration_ns // 1_000_000,
                    )
                )

    def unpin(self) -> None:
        """Work that outlived its call has ended."""
        self.pins -= 1
        if self.retired and not self.batched:
            self._close_if_idle()

    def refused(self, lane: Lane, error: CallgateError, ids: str, now_ns: int) -> None:
        """A call was refused, and there is a log."""
        self._count_or_write("tool.call.denied", lane, error, ids, now_ns)
        if self.retired and not self.batched:
            self._close_if_idle()

    def _count_or_write(
        self, event: events.Refusal, lane: Lane, error: CallgateError, ids: str, now_ns: int
    ) -> None:
        who = lane.caller.shown, lane.spec.agent_key, f"{event} {error.code}"
        if self._throttle.allow(who, now_ns):
            self._write_refusal(event, lane, error, ids)
            return
        key = event, lane.fragment, error.code
        if key not in self._merging and len(self._merging) >= MAX_MERGED:
            key = event, *MANY_LANES
        merged = self._merging.get(key)
        if merged is None:
            merged = self._merging[key] = Merged(event, lane, error, now_ns)
        if key[1:] == MANY_LANES:
            merged.lane = lane
        elif event == "tool.call.would_deny" and merged.lane is lane:
            lane.floods[error.code] = merged
        merged.error = error
        merged.count += 1
        merged.last_ns = now_ns
        self._flush_soon(now_ns)

    def would_deny(self, lane: Lane, error: CallgateError, ids: str, now_ns: int) -> None:
        """Record that a limit in shadow mode would have refused a call that passes."""
        self._count_or_write("tool.call.would_deny", lane, error, ids, now_ns)

    def flush_merged(self) -> None:
        """Write what was only counted, one record for each event, lane and code."""
        self.flush_ns = None
        merging, self._merging = self._merging, {}
        merged, self._merged_events = self._merged_events, {}
        log = self.log
        if log is not None:
            for event, count, first_ns, last_ns in merged.values():
                first_us, last_us = log.wall_us(first_ns), log.wall_us(last_ns)
                self.write(
                    msgspec.structs.replace(event, count=count, first_us=first_us, last_us=last_us)
                )
        for flood in merging.values():
            flood.lane.floods.clear()
            if log is not None:
                times = log.wall_us(flood.first_ns), log.wall_us(flood.last_ns)
                counted = (flood.count, *times)
                self._write_refusal(flood.event, flood.lane, flood.error, "", counted)

    def _close_if_idle(self) -> None:
        if self.log is None or not (self.log.open_calls or self.pins):
            self.close()

    def _write_refusal(
        self,
        event: events.Refusal,
        lane: Lane,
        error: CallgateError,
        ids: str,
        merged: tuple[int, int, int] | None = None,
    ) -> None:
        record = self._record
        if record is None or error.request_id is None:
            return
        limit = error.limit
        with suppress(AuditUnavailable):
            record(
                events.refused(
                    event,
                    lane.fragment,
                    error.request_id,
                    ids,
                    error.code,
                    "" if limit is None else events.limit_fragment(_describe(limit)),
                    error.retry_after_ms,
                    merged,
                )
            )


def _ended_otherwise(flight: Flight, ending: Ending, duration_ns: int) -> str:
    return events.ended(
        ending.event,
        flight.lane.fragment,
        flight.request_id,
        flight.ids,
        duration_ns // 1_000_000,
        ending.code,
        flight.bytes_in,
        flight.bytes_out,
    )


def _describe(limit: LimitInfo) -> str:
    return f"{limit.type} {limit.scope} {limit.limit}"
