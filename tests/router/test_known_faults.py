"""What the engine is known to do wrong today. Each test states what must hold instead.

They are `xfail(strict=True)`: whoever repairs one has to take its mark away, and none can be
repaired, or come back, unnoticed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from callgate import Policy, Router
from callgate.errors import AuditUnavailable, StateUnavailable
from callgate.mounts.hook_calls import HookCalls
from callgate.mounts.threads import RuntimeMount
from callgate.router.flight import Ending, Flight
from callgate.stores.sqlite import QuotaStore
from tests.limits.helpers import HOUR_NS
from tests.peers import helpers as wire
from tests.router.helpers import (
    MS,
    call,
    call_events,
    policy,
    refused,
    running,
    turns,
    until,
    used_slots,
    within,
)
from tests.work_contract.workers import Clock

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from callgate.errors import CallgateError
    from callgate.router.lanes import Lane

HOUR = 490_000
"""Some hour since 1970."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Bystander:
    """An `Owner` whose work the test does itself."""

    def entered(self, flight: Flight) -> None:
        pass

    def turned_away(self, flight: Flight) -> None:
        pass

    def interrupt(self, flight: Flight) -> None:
        pass

    def ignored(self, flight: Flight) -> None:
        pass


def begun(router: Router, lane: Lane, now_ns: int) -> Flight | CallgateError:
    return router.engine.begin(lane, call(), Bystander(), None, now_ns)


class Wall:
    """The wall clock, which may turn to the next hour after so many readings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._hour = HOUR
        self.turns_after: int | None = None
        for name, module in list(sys.modules.items()):
            ours = name.startswith(("callgate.router", "callgate.peers", "callgate.mounts"))
            if ours and getattr(module, "time_ns", None) is time.time_ns:
                monkeypatch.setattr(module, "time_ns", self.read)

    def read(self) -> int:
        if self.turns_after == 0:
            self._hour, self.turns_after = self._hour + 1, None
        elif self.turns_after is not None:
            self.turns_after -= 1
        return self._hour * HOUR_NS + 1_000_000_000


QUOTA = """
version: 1
defaults: {timeout: 100ms, rate: unlimited, concurrency: unlimited}
callers:
  "*": {quota: 900/hour}
agents: {web: {}}
"""


class SlowStore:
    """A quota's store that does not answer before it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_answer = threading.Event()
        reserve = QuotaStore.reserve

        def slowly(store: QuotaStore, *args: Any) -> int:
            assert self.may_answer.wait(20)
            return reserve(store, *args)

        monkeypatch.setattr(QuotaStore, "reserve", slowly)


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    return SlowStore(monkeypatch)


async def _asked(way: str, router: Router) -> str:
    """The code of what a call by one way in ends with."""
    if way == "hooks":
        holder: HookCalls[str] = HookCalls(RuntimeMount(router, "web"), 10)
        error = await holder.enter("a", "echo", {}, None)
        return "ok" if error is None else error.code

    async def nothing() -> None:
        pass

    asking: Awaitable[Any]
    if way == "call":
        asking = router.call(call())
    elif way == "guard":
        asking = router.guard(call(), nothing)
    else:
        asking = router.submit(call())
    return (await refused(asking)).code


@pytest.mark.parametrize(
    "way",
    [
        "call",
        "guard",
        "submit",
        pytest.param(
            "hooks",
            marks=pytest.mark.xfail(
                strict=True,
                raises=AssertionError,
                reason="waiting for a quota is written five times, and this one has no deadline",
            ),
        ),
    ],
)
async def test_no_way_in_waits_longer_for_a_quota_than_the_call_may_take(
    tmp_path: Path, slow_store: SlowStore, way: str
) -> None:
    async with running(policy(QUOTA), tmp_path) as router:
        asked = asyncio.create_task(_asked(way, router))
        try:
            done, _ = await asyncio.wait([asked], timeout=1.5)
            assert done == {asked}
            assert asked.result() == "state.unavailable"
        finally:
            slow_store.may_answer.set()
            await asyncio.wait([asked])


async def test_a_call_that_waited_for_its_quota_obeys_the_policy_in_force(
    tmp_path: Path, slow_store: SlowStore
) -> None:
    async with running(policy(QUOTA.replace("100ms", "10s")), tmp_path) as router:
        asked = asyncio.create_task(_asked("hooks", router))
        await turns()
        denying = QUOTA.replace("agents: {web: {}}", "agents: {web: {tools: {echo: deny}}}")
        await router.reload(policy(denying))

        slow_store.may_answer.set()

        assert await within(asked) == "policy.denied"


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a call in the queue holds a part of its caller's quota",
)
async def test_a_call_that_waits_holds_nothing_of_a_quota(tmp_path: Path, clock: Clock) -> None:
    made = policy(QUOTA.replace("agents: {web: {}}", "agents: {web: {concurrency: 1, queue: 9}}"))
    async with running(made, tmp_path) as router:
        lane = router.lane("alice", "web", "echo", clock.now_ns)
        await router.fetch_quota(lane)
        assert lane.quota is not None
        assert lane.quota.in_hand == 9
        asked = [begun(router, lane, clock.now_ns) for _ in range(5)]
        assert [one.queued for one in asked if isinstance(one, Flight)] == [False, *[True] * 4]

        left = lane.quota.in_hand

        for one in asked:
            assert isinstance(one, Flight)
            router.engine.abandon(one)
        assert left == 8


@pytest.mark.xfail(
    strict=True,
    raises=StateUnavailable,
    reason="a window that turns between the look at a quota and `begin` refuses with budget left",
)
async def test_a_call_with_budget_is_let_in_whenever_the_window_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall(monkeypatch)
    async with running(policy(QUOTA.replace("100ms", "10s")), tmp_path) as router:
        for readings in range(8):
            await within(router.call(call()))  # now there is budget in hand
            wall.turns_after = readings
            await within(router.call(call()))


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a call that timed out over MCP and is never answered keeps a retired log for good",
)
async def test_a_retired_log_closes_once_nothing_can_be_written_to_it(
    tmp_path: Path, clock: Clock
) -> None:
    async with wire.rig(tmp_path, clock) as rig:  # type: ignore[arg-type]  # as it is used
        rig.shake_hands("echo")
        rig.client(wire.call())
        clock.pass_ms(rig.router, 10_000)
        old = rig.router.engine.recorders[0]
        elsewhere = Policy.parse(wire.OPEN + f"audit: {{path: {tmp_path / 'other'}}}\n")
        await rig.router.reload(elsewhere)
        assert rig.router.engine.recorders[0] is not old

        for _ in range(24):
            clock.pass_ms(rig.router, 3_600_000)

        assert old.log is None


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a refund that comes late gives back what time has given back already",
)
def test_no_refund_lets_in_more_than_a_burst(clock: Clock, tmp_path: Path) -> None:
    text = "version: 1\nagents: {web: {rate: {limit: 60/minute, burst: 5}, concurrency: 9}}\n"
    router = Router(Policy.parse(text), state_dir=tmp_path)
    lane = router.lane("alice", "web", "echo", clock.now_ns)
    first = begun(router, lane, clock.now_ns)
    assert isinstance(first, Flight)
    clock.now_ns += 1_000 * MS  # the bucket is full again
    at_once = [begun(router, lane, clock.now_ns) for _ in range(6)]
    assert [isinstance(one, Flight) for one in at_once] == [True] * 5 + [False]

    router.engine.revoke(first, AuditUnavailable())

    assert not isinstance(begun(router, lane, clock.now_ns), Flight)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a tool that swallows its cancel loses its slots by the grace, and has no end yet",
)
async def test_a_call_has_its_end_before_its_slots_are_given_to_others(
    tmp_path: Path, clock: Clock
) -> None:
    go_on = asyncio.Event()

    async def stubborn() -> None:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    text = "version: 1\nagents: {web: {concurrency: 1, timeout: 10s, cancel_grace: 2s}}\n"
    made = policy(text, audit=tmp_path / "audit")
    async with running(made, tmp_path, {"web/stubborn": stubborn}) as router:
        asked = asyncio.create_task(router.call(call("web/stubborn")))
        await until(lambda: used_slots(router) != {})
        clock.pass_ms(router, 10_000)
        await turns()
        clock.pass_ms(router, 2_000)

        given_away = used_slots(router) == {}
        ends = call_events(tmp_path / "audit").count("timed_out")

        go_on.set()
        await refused(asked)
        assert (given_away, ends) != (True, 0)


BOUND = """
version: 1
agents: {web: {RATE, queue: 9, tools: {a: {concurrency: 1}}}}
"""


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a call that waits under an old policy holds back those under the new; others pass them",
)
async def test_after_a_reload_nobody_passes_those_who_wait_for_the_same(
    tmp_path: Path, clock: Clock
) -> None:
    """The model's find: the old policy had a rate for the whole agent, the new one has none."""
    rate = "rate: {limit: 1/minute, burst: 2, on_limit: wait}, timeout: 2m, max_timeout: 5m"
    router = Router(Policy.parse(BOUND.replace("RATE", rate)), state_dir=tmp_path)
    router.list_tools("web", ["a", "b"])

    def ask(caller: str, tool: str) -> Flight:
        lane = router.lane(caller, "web", tool, clock.now_ns)
        found = router.engine.begin(lane, call(), Bystander(), None, clock.now_ns)
        assert isinstance(found, Flight)
        return found

    running = ask("alice", "a")
    ask("alice", "b")
    assert ask("alice", "b").queued  # by the agent's rate
    await router.reload(Policy.parse(BOUND.replace("RATE", "rate: unlimited")))
    first = ask("bob", "a")
    assert first.queued  # by the tool's one slot
    router.engine.finish(running, Ending.COMPLETED)

    second = ask("carol", "a")

    assert (first.queued, second.queued) == (False, True)
