"""The engine against a model of it: calls come, wait, end in every way, and time passes.

The model knows of each call only what its owner was told, and what it did itself. After every step
the engine has to agree with it: slots, rates, records, turns in the queue; and once everybody has
left, nothing may be left of them. What is known to be wrong stands in `test_known_faults.py`: a
revoke comes in the very moment of its admission here, and no window of a quota turns meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from callgate import Router, ToolCall
from callgate.audit.events import TERMINAL
from callgate.errors import AuditUnavailable
from callgate.limits.deadlines import FINE_NS
from callgate.router.flight import Ending, Flight
from callgate.router.recorder import Recorder
from tests.conftest import FULL
from tests.router.engine_model import (
    CALLERS,
    ENDINGS,
    KINDS,
    MS,
    QUOTA,
    TOOLS,
    Book,
    Call,
    InOrder,
    Owner,
    RateLog,
    policies,
    policy,
)
from tests.router.helpers import assert_nothing_is_left, used_slots

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from callgate.limits.quota import Quota
    from callgate.router.lanes import Lane

HOUR_NS = 3_600_000_000_000
ENDS = {event.removeprefix("tool.call.") for event in TERMINAL}
MOST_WAKES = 10_000
"""Far more than an hour with a few calls takes: beyond it the timer stands still."""


disks = st.sampled_from(("free",) * 7 + ("full",))


class Gone:
    """The future of a caller that was cancelled in this very moment."""

    def cancelled(self) -> bool:
        return True


class EngineModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self.now_ns = self.woken_ns = 1_000_000 * MS
        for name, module in list(sys.modules.items()):
            if name.startswith("callgate.router"):
                if getattr(module, "monotonic_ns", None) is time.monotonic_ns:
                    self._patch.setattr(module, "monotonic_ns", lambda: self.now_ns)
                if getattr(module, "time_ns", None) is time.time_ns:
                    self._patch.setattr(module, "time_ns", self.wall_ns)
        self.calls: list[Call] = []
        self.rates: dict[int, RateLog] = {}
        self.reserved: dict[tuple[str, int], int] = {}
        """What the store of quotas has written off, by caller and window."""
        self.passed_by: dict[tuple[str, str], dict[str, int]] = {}
        """Caller and tool that wait → how often others entered for the same since it last did."""

    def wall_ns(self) -> int:
        return 490_000 * HOUR_NS + self.now_ns

    @initialize(number=policies())
    def begin_with(self, number: int) -> None:
        self.router = Router(policy(number), state_dir=tempfile.gettempdir())
        self.engine = self.router.engine
        self.book = Book()
        recorder = Recorder(self.book)  # type: ignore[arg-type]  # as much of a log as is used
        self.engine.recorders[0] = recorder
        self.router._lanes.change(self.router.policy, recorder)
        self.router.list_tools("web", TOOLS)
        self.owner = Owner(self.engine, self.book)
        self.engine.deadlines = InOrder()

    def teardown(self) -> None:
        try:
            if hasattr(self, "router"):
                self.drain()
        finally:
            self._patch.undo()

    # What happens.

    @rule(
        caller=st.sampled_from(CALLERS),
        tool=st.sampled_from(TOOLS),
        kind=st.sampled_from(KINDS),
        timeout_ms=st.sampled_from((None, None, 100, 3_000)),
        disk=disks,
    )
    def ask(self, caller: str, tool: str, kind: str, timeout_ms: int | None, disk: str) -> None:
        self.book.is_full = disk == "full"
        self.begin(caller, tool, kind, timeout_ms)
        self.book.is_full = False

    @rule(
        caller=st.sampled_from(CALLERS),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    )
    def ask_and_revoke(self, caller: str, kinds: list[str]) -> None:
        """A pass whose records cannot be written: what it let in is taken back at once."""
        begun = [self.begin(caller, TOOLS[0], kind) for kind in kinds]
        for call in begun:
            if call is not None and call.state == "running":
                call.flight.lingers = False
                self.engine.revoke(call.flight, AuditUnavailable())
                call.state = "refused"
                self.book.open_calls -= 1  # so does a log that could not write what was staged
                self.book.of[call.flight.request_id].clear()
                for rate in call.flight.lane.rates:
                    self.rates[id(rate)].at_ns.pop()
        self.engine.admit_waiting(self.now_ns)
        self.look_at_entries()

    @precondition(lambda self: self.those("running", "stopping", "given up", "lingering"))
    @rule(
        data=st.data(),
        ending=st.sampled_from(ENDINGS),
        disk=disks,
    )
    def work_ends(self, data: st.DataObject, ending: Ending, disk: str) -> None:
        call = data.draw(
            st.sampled_from(self.those("running", "stopping", "given up", "lingering"))
        )
        self.book.is_full = disk == "full"
        self.owner.end(call, ending)
        self.book.is_full = False
        self.look_at_entries()

    @precondition(lambda self: self.those("queued", "running"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.those("queued", "running")))
        assert self.engine.cancel(call.flight.request_id)
        assert call.state in {"stopping", "lingering", "gone", "refused"}
        self.look_at_entries()

    @precondition(lambda self: self.those("stopping", "given up"))
    @rule(data=st.data())
    def cancel_again(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.those("stopping", "given up")))
        assert not self.engine.cancel(call.flight.request_id)

    @precondition(lambda self: self.those("queued") and self.those("running"))
    @rule(data=st.data())
    def caller_leaves_as_a_slot_comes_free(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.those("queued")))
        call.flight.waiter = Gone()  # type: ignore[assignment]  # as much of it as is asked
        self.owner.end(data.draw(st.sampled_from(self.those("running"))), Ending.COMPLETED)
        mine = call.flight.lane.caller.name  # whose turn it was, though nobody took it
        self.passed_by = {
            key: {} if key[0] == mine else seen for key, seen in self.passed_by.items()
        }
        self.engine.abandon(call.flight)
        call.state = "refused"
        self.look_at_entries()

    @precondition(lambda self: self.those("gone", "refused"))
    @rule(data=st.data(), ending=st.sampled_from(ENDINGS))
    def end_what_is_gone(self, data: st.DataObject, ending: Ending) -> None:
        """A second end does nothing."""
        call = data.draw(st.sampled_from(self.those("gone", "refused")))
        assert self.engine.finish(call.flight, ending) is None
        assert not self.engine.cancel(call.flight.request_id)

    @rule(ms=st.sampled_from((1, 30, 250, 1_000, 2_500, 6_000, 30_000)))
    def time_passes(self, ms: int) -> None:
        """As the router's timer sees it: woken when the engine says so, and never early."""
        until_ns = self.now_ns + ms * MS
        for _ in range(MOST_WAKES):
            wake_ns = self.engine.wake_ns
            if wake_ns > until_ns:
                break
            self.now_ns = max(self.now_ns, wake_ns)
            self.engine.wake(self.now_ns)
            self.look_at_entries()
        else:
            raise AssertionError("the timer does not move on")
        self.now_ns = self.woken_ns = until_ns

    @rule(ms=st.sampled_from((30, 400)))
    def the_loop_is_late(self, ms: int) -> None:
        """Time passes, and the timer has not rung yet."""
        self.now_ns += ms * MS

    @rule(number=policies())
    def reload(self, number: int) -> None:
        self.rates.clear()  # what is saved is converted, which no bound of either policy tells
        _at_once(self.router.reload(policy(number)))
        self.look_at_entries()

    # What has to be true after each step.

    @invariant()
    def slots_are_held_by_those_who_hold_them(self) -> None:
        held: dict[int, int] = {}
        for call in self.calls:
            assert call.flight.holds_slots == call.holds, (call.state, call.kind)
            for slot in call.flight.lane.slots if call.holds else ():
                held[id(slot)] = held.get(id(slot), 0) + 1
        _, shared = self.router._counters.shared()
        own = [slot for one in self.router._counters._callers.values() for slot in one.slots]
        assert {id(slot): slot.used for slot in (*shared, *own) if slot.used} == held

    @invariant()
    def every_admitted_call_has_one_end(self) -> None:
        for call in self.calls:
            events = self.book.of[call.flight.request_id]
            ends = [event for event in events if event in ENDS]
            is_over = call.was_admitted and call.state in {"lingering", "gone"}
            assert events.count("admitted") == (call.was_admitted and call.state != "refused")
            assert len(ends) == (is_over and not call.is_unwritten), (call.state, events)
            assert events.count("late") == call.late
            assert call.was_admitted or events.count("denied") <= 1

    @invariant()
    def the_gauges_are_right(self) -> None:
        stats = self.router._lanes.stats()
        running = self.those("running", "stopping", "given up")
        assert sum(one.in_flight for one in stats) == len(running)
        assert sum(one.queued for one in stats) == len(self.those("queued"))
        assert len(self.engine.flights) == len(running) + len(self.those("queued"))

    @invariant()
    def nobody_runs_or_waits_beyond_its_deadline(self) -> None:
        for call in self.those("queued", "running"):
            assert self.woken_ns < call.flight.deadline_ns + 2 * FINE_NS

    @invariant()
    def no_quota_is_overspent(self) -> None:
        spent: dict[tuple[str, int], int] = {}
        for call in self.calls:
            window = call.flight.quota_window
            if window is not None and call.was_admitted and call.state != "refused":
                key = call.flight.lane.caller.name, window
                spent[key] = spent.get(key, 0) + 1
        assert all(count <= QUOTA for count in spent.values())

    def drain(self) -> None:
        """Everybody leaves."""
        while waiting := self.those("queued"):
            self.engine.cancel(waiting[0].flight.request_id)
        for call in self.those("running", "stopping", "given up", "lingering"):
            self.owner.end(call, Ending.COMPLETED)
        self.look_at_entries()
        self.every_admitted_call_has_one_end()
        assert_nothing_is_left(self.router)
        assert used_slots(self.router) == {}
        assert self.book.open_calls == 0
        assert [one.pins for one in self.engine.recorders] == [self.forgotten()]

    # How it is done.

    def those(self, *states: str) -> list[Call]:
        return [call for call in self.calls if call.state in states]

    def forgotten(self) -> int:
        """Work that outlived the grace on a wire or between hooks, of which nobody heard again."""
        return sum(call.is_forgotten for call in self.calls)

    def begin(
        self, caller: str, tool: str, kind: str, timeout_ms: int | None = None
    ) -> Call | None:
        lane = self.router.lane(caller, "web", tool, self.now_ns)
        if lane.quota is not None:
            self.fetch(lane, lane.quota)
        asked = ToolCall("web", tool, {}, caller, timeout_ms)
        begun = self.engine.begin(lane, asked, self.owner, None, self.now_ns)
        self.look_at_entries()
        if not isinstance(begun, Flight):
            return None
        call = Call(begun, kind, len(self.calls))
        self.calls.append(call)
        self.owner.calls[begun] = call
        begun.lingers = kind == "hook" or (kind == "thread" and not begun.queued)
        if begun.queued:
            call.state = "queued"
            self.passed_by.setdefault((caller, tool), {})
        else:
            call.state = "running"
            call.was_admitted = True
            self.check_overtaking(call)
            self.count(call)
        return call

    def check_overtaking(self, call: Call) -> None:
        """Nobody enters past those who wait for the same; old lanes are a known fault."""
        waiting = self.those("queued")
        revision = self.router.policy.revision
        if all(one.flight.lane.spec.policy == revision for one in waiting):
            assert [one for one in waiting if one.counters == call.counters] == []

    def fetch(self, lane: Lane, quota: Quota) -> None:
        """As the store does it: a block is written off before it is spent."""
        wall_ns = self.wall_ns()
        if quota.available(wall_ns) or quota.spent(wall_ns):
            return
        window = quota.window_at(wall_ns)
        key = lane.caller.name, window
        granted = min(quota.block, quota.spec.limit - self.reserved.get(key, 0))
        self.reserved[key] = self.reserved.get(key, 0) + granted
        quota.give(window, granted, wall_ns)

    def count(self, call: Call) -> None:
        """A call was admitted: no limit may have been passed by it."""
        lane = call.flight.lane
        for slot in lane.slots:
            assert slot.used <= slot.limit
        for rate in lane.rates:
            log = self.rates.get(id(rate))
            if log is None or log.spec != rate.spec:
                log = self.rates[id(rate)] = RateLog(rate, rate.spec)
            log.at_ns.append(self.now_ns)
            log.check()

    def look_at_entries(self) -> None:
        """Those who entered from the queue: in whose turn, and over whose head?"""
        entered, self.owner.entered_now = self.owner.entered_now, []
        for call in entered:
            self.count(call)
            caller, tool = call.flight.lane.caller.name, call.flight.lane.spec.tool_key
            waiting = self.those("queued")
            in_line = [one for one in waiting if one.flight.lane.caller.name == caller]
            before = [one.number for one in in_line if one.flight.lane.spec.tool_key == tool]
            assert call.number < min(before, default=len(self.calls)), (
                "a line is first in first out"
            )
            self.passed_by = {
                key: {} if key[0] == caller else seen for key, seen in self.passed_by.items()
            }
            self._note_passed(call, waiting, caller)
        still = {
            (one.flight.lane.caller.name, one.flight.lane.spec.tool_key)
            for one in self.those("queued")
        }
        self.passed_by = {key: seen for key, seen in self.passed_by.items() if key in still}

    def _note_passed(self, call: Call, waiting: list[Call], caller: str) -> None:
        """Whoever waits for the same is passed by each other caller once, not twice."""
        passed = {
            (one.flight.lane.caller.name, one.flight.lane.spec.tool_key)
            for one in waiting
            if one.flight.lane.caller.name != caller and one.counters == call.counters
        }
        for key in passed:
            seen = self.passed_by.setdefault(key, {})
            seen[caller] = seen.get(caller, 0) + 1
            assert seen[caller] <= 1, f"{caller} entered twice while {key} waited for the same"


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run what awaits nothing, as there is no loop here."""
    with pytest.raises(StopIteration):
        work.send(None)


def test_the_engine_agrees_with_its_model_after_every_step() -> None:
    run_state_machine_as_test(
        EngineModel,
        settings=settings(
            max_examples=3_000 if FULL else 200,
            stateful_step_count=60 if FULL else 50,
            derandomize=not FULL,  # the everyday run is always the same, the full one looks on
            database=None,
        ),
    )
