"""What holds for a call whoever does its work: one end, one answer, every slot back.

Each test is run against each kind of worker. What a kind has no way to do is skipped with the
reason that its adapter declares; there is no other skip.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from callgate import Policy
from tests.router.helpers import (
    assert_each_admitted_call_ends_once,
    assert_nothing_is_left,
    audit_lines,
    call_events,
    used_slots,
)
from tests.work_contract.workers import GRACE_MS, HOLD_MS, KINDS, TIMEOUT_MS, Clock, Isolated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.work_contract.workers import Worker

POLICY = f"""
version: 1
defaults: {{timeout: {TIMEOUT_MS}ms, max_timeout: 60s, rate: unlimited, concurrency: unlimited}}
agents:
  web: {{concurrency: 1, queue: QUEUE, cancel_grace: {GRACE_MS}ms, tools: {{work: TOOL}}}}
audit: {{path: PATH}}
"""
ENDS = {"completed", "failed", "timed_out", "cancelled", "crashed", "lost"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Contract:
    """One worker, and what has to be true of it once all is over."""

    def __init__(self, kind: str, tmp_path: Path, clock: Clock, queue: int) -> None:
        self._kind = kind
        self._audit = tmp_path / "audit"
        self.ends: list[str] = []
        """How the calls that were admitted must have ended, by the audit."""
        self.worker: Worker = KINDS[kind](self.policy(queue), tmp_path, clock)

    def policy(self, queue: int, *, denied: bool = False) -> Policy:
        isolated = "{isolate: task}" if KINDS[self._kind] is Isolated else "{}"
        text = POLICY.replace("TOOL", "deny" if denied else isolated)
        return Policy.parse(text.replace("QUEUE", str(queue)).replace("PATH", str(self._audit)))

    @property
    def events(self) -> list[str]:
        return call_events(self._audit)

    def told(self, outcome: str, more: str = "") -> list[str]:
        """What this kind's caller is told in the end."""
        told = self.worker.TOLD
        return told.get(f"{outcome} {more}", told[outcome])

    def in_flight(self) -> tuple[int, int]:
        """Running and queued, as the gauges say."""
        tools = self.worker.router.snapshot()["tools"]
        return sum(one["in_flight"] for one in tools), sum(one["queued"] for one in tools)

    def late(self) -> int:
        return sum(one["late"] for one in self.worker.router.snapshot()["tools"])

    def records(self, event: str) -> list[str]:
        """The policies under which records of one kind stand."""
        lines = audit_lines(self._audit)
        return [line["policy"] for line in lines if line["event"] == f"tool.call.{event}"]


@asynccontextmanager
async def contract(
    kind: str, tmp_path: Path, clock: Clock, *ends: str, needs: str = "", queue: int = 5
) -> AsyncIterator[Contract]:
    """A worker at work. Afterwards nothing is left, and the admitted calls ended as `ends` says."""
    reason = KINDS[kind].CANNOT.get(needs)
    if reason is not None:
        pytest.skip(f"{kind}: {reason}")
    made = Contract(kind, tmp_path, clock, queue)
    made.ends += ends
    await made.worker.open()
    closed = False
    try:
        yield made
        if made.worker.router._loop is None:
            closed = True
        assert_nothing_is_left(made.worker.router)
    finally:
        made.worker.release_all()
        if not closed:
            await made.worker.close()
    assert_each_admitted_call_ends_once(tmp_path / "audit")
    assert Counter(event for event in made.events if event in ENDS) == Counter(made.ends)


async def test_a_call_is_answered(kind: str, tmp_path: Path, clock: Clock) -> None:
    async with contract(kind, tmp_path, clock, "completed") as held:
        await held.worker.ask("a")
        await held.worker.started("a")
        assert (held.in_flight(), sum(used_slots(held.worker.router).values())) == ((1, 0), 1)

        await held.worker.answer("a")

        assert held.worker.told("a") == held.told("answered")


async def test_a_refused_call_is_told_so_and_its_work_never_begins(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock, "completed", queue=0) as held:
        await held.worker.ask("a")
        await held.worker.started("a")

        await held.worker.ask("b")

        assert held.worker.told("b") == held.told("full")
        assert not held.worker.has_started("b")
        await held.worker.answer("a")
    assert held.events == ["admitted", "denied", "completed"]


async def test_a_call_that_waits_begins_when_a_slot_is_free(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock, "completed", "completed") as held:
        await held.worker.ask("a")
        await held.worker.started("a")
        await held.worker.ask("b")
        assert held.in_flight() == (1, 1)
        assert not held.worker.has_started("b")

        await held.worker.answer("a")
        await held.worker.started("b")

        assert held.in_flight() == (1, 0)
        await held.worker.answer("b")
        assert held.worker.told("b") == held.told("answered")


async def test_a_call_is_cancelled_while_it_waits(kind: str, tmp_path: Path, clock: Clock) -> None:
    async with contract(kind, tmp_path, clock, "completed") as held:
        await held.worker.ask("a")
        await held.worker.started("a")
        await held.worker.ask("b")

        await held.worker.cancel("b")

        assert held.in_flight() == (1, 0)
        assert held.worker.told("b") == held.told("cancelled", "in the queue")
        await held.worker.answer("a")
        assert not held.worker.has_started("b")
        assert held.worker.told("b") == held.told("cancelled", "in the queue")


async def test_a_call_is_cancelled_while_it_runs(kind: str, tmp_path: Path, clock: Clock) -> None:
    async with contract(kind, tmp_path, clock, "cancelled") as held:
        await held.worker.ask("a")
        await held.worker.started("a")

        await held.worker.cancel("a")
        await held.worker.let_go("a")

        assert held.worker.told("a") == held.told("cancelled")
        assert "stop" in held.worker.CANNOT or held.worker.was_stopped("a")


async def test_an_answer_and_a_cancel_in_the_same_moment_are_one_end(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock) as held:
        await held.worker.ask("a")
        await held.worker.started("a")

        held.worker.answer_soon("a")
        held.worker.cancel_soon("a")
        await held.worker.settled()

        told = held.worker.told("a")
        held.ends = ["completed" if told == held.told("answered") else "cancelled"]
        assert told in (held.told("answered"), held.told("cancelled"))


async def test_a_call_times_out_and_its_work_is_told_to_stop(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock, "timed_out") as held:
        await held.worker.ask("a")
        await held.worker.started("a")
        await held.worker.pass_ms(TIMEOUT_MS - 100)
        assert held.in_flight() == (1, 0)

        await held.worker.pass_ms(200)

        assert held.worker.told("a") == held.told("timed out")
        assert held.in_flight() == (0, 0)
        assert "stop" in held.worker.CANNOT or held.worker.was_stopped("a")
        await held.worker.let_go("a")
        assert held.worker.told("a") == held.told("timed out")


async def test_a_call_that_waits_times_out_and_never_begins(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock, "timed_out") as held:
        await held.worker.ask("a", stubborn=True)
        await held.worker.started("a")
        await held.worker.pass_ms(GRACE_MS / 2)
        await held.worker.ask("b")
        await held.worker.pass_ms(TIMEOUT_MS - GRACE_MS / 2)
        assert held.in_flight()[1] == 1  # the slot is still held by what goes on

        await held.worker.pass_ms(GRACE_MS / 2)

        assert held.worker.told("b") == ["limit.concurrency"]
        assert held.in_flight()[1] == 0
        await held.worker.answer("a")
        assert not held.worker.has_started("b")
        assert held.worker.told("b") == ["limit.concurrency"]


async def test_the_death_of_a_worker_ends_what_runs_and_what_waits(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock, "crashed", needs="die") as held:
        await held.worker.ask("a")
        await held.worker.started("a")
        await held.worker.ask("b")

        held.worker.die()

        assert held.worker.told("a") == held.told("died")
        assert held.worker.told("b") == ["agent.unavailable"]
        assert not held.worker.has_started("b")


@pytest.mark.parametrize("cause", ["timed_out", "cancelled"])
async def test_a_late_answer_is_counted_once_and_delivered_to_nobody(
    kind: str, tmp_path: Path, clock: Clock, cause: str
) -> None:
    async with contract(kind, tmp_path, clock, cause, needs=f"late, {cause}") as held:
        await held.worker.ask("a", stubborn=True)
        await held.worker.started("a")
        if cause == "timed_out":
            await held.worker.pass_ms(TIMEOUT_MS)
        else:
            await held.worker.cancel("a")

        await held.worker.answer("a")

        assert used_slots(held.worker.router) == {}
        assert held.worker.told("a") == held.told(cause.replace("_", " "))
        assert (held.late(), held.events.count("late")) == (1, 1)


async def test_work_that_ignores_its_stop_keeps_its_slots_for_the_grace(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    needs = "give up"
    async with contract(kind, tmp_path, clock, "timed_out", "completed", needs=needs) as held:
        worker = held.worker
        await worker.ask("a", stubborn=True)
        await worker.started("a")
        await worker.pass_ms(TIMEOUT_MS)
        await worker.pass_ms(worker.holds_ms - 100)
        await worker.ask("b")
        assert sum(used_slots(worker.router).values()) == 1
        assert (held.in_flight()[1], worker.has_started("b")) == (1, False)

        await worker.pass_ms(200)

        await worker.started("b")
        assert sum(used_slots(worker.router).values()) == 1
        await worker.answer("a")  # far too late
        assert held.late() == worker.LATE_AFTER_HOLD
        assert sum(used_slots(worker.router).values()) == 1
        await worker.answer("b")


async def test_a_thread_that_ignores_its_deadline_keeps_its_slots_until_it_ends(
    tmp_path: Path, clock: Clock
) -> None:
    async with contract("thread", tmp_path, clock, "timed_out") as held:
        await held.worker.ask("a")
        await held.worker.started("a")
        await held.worker.pass_ms(TIMEOUT_MS)
        await held.worker.pass_ms(100 * GRACE_MS)
        assert held.worker.told("a") == held.told("timed out")
        assert sum(used_slots(held.worker.router).values()) == 1

        await held.worker.answer("a")

        assert held.late() == 1


async def test_work_that_never_comes_back_holds_nothing_for_ever(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock, "timed_out", needs="never") as held:
        await held.worker.ask("a", stubborn=True)
        await held.worker.started("a")

        await held.worker.pass_ms(TIMEOUT_MS)
        await held.worker.pass_ms(HOLD_MS)

        assert_nothing_is_left(held.worker.router)
        assert held.worker.told("a") == held.told("timed out")
        await held.worker.answer("a")  # so that no task outlives the test


async def test_a_call_that_runs_keeps_its_lane_over_a_reload(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock, "completed") as held:
        await held.worker.ask("a")
        await held.worker.started("a")
        before, after = held.worker.router.policy, held.policy(5, denied=True)

        await held.worker.router.reload(after)
        await held.worker.ask("b")

        assert held.worker.told("b") == held.told("denied")
        await held.worker.answer("a")
        assert held.worker.told("a") == held.told("answered")
    revisions = [held.records(event) for event in ("admitted", "completed", "denied")]
    assert revisions == [[before.revision], [before.revision], [after.revision]]


async def test_the_end_of_the_router_ends_what_runs_and_what_waits(
    kind: str, tmp_path: Path, clock: Clock
) -> None:
    async with contract(kind, tmp_path, clock, "cancelled") as held:
        await held.worker.ask("a")
        await held.worker.started("a")
        await held.worker.ask("b")

        await held.worker.close()

        assert held.in_flight() == (0, 0)
        assert held.worker.told("a") == held.told("closed")
        assert held.worker.told("b") == held.told("closed", "in the queue")
        assert not held.worker.has_started("b")
        await held.worker.let_go("a")
