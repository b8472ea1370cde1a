"""Cancels by the thousand, in every order: nothing leaks, nothing is swallowed or doubled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from callgate import CallgateError, Router, ToolCall
from callgate.router.local import CURRENT
from tests.conftest import FULL
from tests.router.helpers import (
    FOREVER_S,
    Clock,
    Gate,
    assert_each_admitted_call_ends_once,
    assert_nothing_is_left,
    call,
    flights,
    policy,
    running,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CANCELS = 100_000 if FULL else 10_000
RACES = 10_000 if FULL else 2_000
OUTER = 10_000 if FULL else 2_000

NARROW = """
version: 1
global: {concurrency: 6}
callers: {"*": {concurrency: 3, rate: unlimited}}
defaults: {rate: unlimited, timeout: 5s, max_timeout: 60s}
agents:
  web:
    concurrency: 4
    queue: 4
    cancel_grace: 1s
    tools:
      steps: {concurrency: 3}
      apart: {isolate: task}
      paced: {rate: {limit: 100000/second, burst: 2, on_limit: wait}}
"""


class Failed(Exception):
    """A tool's own."""


class Storm:
    """Callers that come and go; each records the one way in which its call ended."""

    def __init__(self, router: Router, seed: int) -> None:
        self.router = router
        self.random = random.Random(seed)  # noqa: S311  # not a secret
        self.outcomes: Counter[str] = Counter()
        for name in ("steps", "apart", "paced"):
            router.add_tool("web", name, self.tool)

    async def tool(self, steps: int, fate: str) -> str:
        for _ in range(steps):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if fate == "tidies":
                    await asyncio.sleep(0)
                raise
        if fate == "fails":
            raise Failed
        if fate == "nests":
            with suppress(CallgateError):
                await self.router.call(self.make("answers", timeout_ms=1))
        return "answer"

    def make(self, fate: str, timeout_ms: int | None = None) -> ToolCall:
        pick = self.random
        return ToolCall(
            "web",
            pick.choice(("steps", "apart", "paced")),
            {"steps": pick.randrange(5), "fate": fate},
            pick.choice(("alice", "bob", "carol")),
            # Two that hold a slot and wait for the other's would wait for their deadlines.
            timeout_ms or pick.choice((None, None, 1, 60_000)),
        )

    async def caller(self) -> None:
        fate = self.random.choice(("answers", "answers", "fails", "tidies", "nests"))
        made = self.make(fate)
        try:
            if self.random.random() < 0.3:
                outcome = await self.router.submit(made)
            else:
                outcome = await self.router.call(made)
        except CallgateError as error:
            outcome = error.code
        except Failed:
            outcome = "failed"
        except asyncio.CancelledError:
            self.outcomes["cancelled"] += 1
            raise
        self.outcomes[outcome] += 1

    async def batch(self, size: int) -> int:
        """Some callers at once, and cancels of both kinds among them; how many cancels."""
        pick = self.random
        tasks = []
        cancels = 0
        for _ in range(size):
            tasks.append(asyncio.create_task(self.caller()))
            if pick.random() < 0.7:
                await asyncio.sleep(0)
            cancels += pick.choice(tasks).cancel()
            live = list(self.router.engine.flights)
            if live and pick.random() < 0.5:
                cancels += self.router.cancel(pick.choice(live))
        await asyncio.wait(tasks, timeout=FOREVER_S)
        assert all(task.done() for task in tasks)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        return cancels


async def test_slots_and_queues_survive_random_cancels(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    made = policy(NARROW, audit=audit, audit_more=", max_bytes: unlimited")
    cancels = callers = 0
    async with running(made, tmp_path, {"web/idle": Gate()}) as router:
        storm = Storm(router, seed=7)
        while cancels < CANCELS:
            callers += 50
            cancels += await storm.batch(50)
            await turns(5)
            assert_nothing_is_left(router)
        # A caller that was cancelled before its first step has made no call.
        assert sum(storm.outcomes.values()) <= callers
        assert {"answer", "cancelled", "failed", "tool.canceled"} <= storm.outcomes.keys()
        assert storm.outcomes["limit.concurrency"] > 0
        assert storm.outcomes["internal"] == 0
    assert assert_each_admitted_call_ends_once(audit) > CANCELS / 10


async def test_answer_and_cancel_race_to_one_outcome(tmp_path: Path) -> None:
    pick = random.Random(11)  # noqa: S311  # not a secret
    audit = tmp_path / "audit"
    gate = Gate()
    tools = {"web/steps": gate, "web/apart": gate}
    outcomes: Counter[str] = Counter()
    async with running(policy(NARROW, audit=audit), tmp_path, tools) as router:
        for _ in range(RACES):
            job = router.submit(call(pick.choice(("web/steps", "web/apart"))))
            await turns(pick.randrange(4))
            acts: list[Callable[[], object]] = [gate.open, job.cancel]
            pick.shuffle(acts)
            for act in acts:
                act()
                await turns(pick.randrange(2))
            gate.open()
            while not job.done():
                await asyncio.sleep(0)
                gate.open()
            try:
                await job
                outcomes["answer"] += 1
            except CallgateError as error:
                outcomes[error.code] += 1
            await turns(4)
            assert_nothing_is_left(router)
    assert outcomes.keys() == {"answer", "tool.canceled"}
    assert outcomes.total() == RACES
    assert assert_each_admitted_call_ends_once(audit) <= RACES


def tools_of(router: Router, gate: Gate) -> dict[str, Any]:
    async def tidies() -> None:
        try:
            await gate()
        finally:
            await asyncio.sleep(0)

    async def swallows() -> None:
        with suppress(asyncio.CancelledError):
            await gate()

    async def turns_into_error() -> None:
        try:
            await gate()
        except asyncio.CancelledError:
            raise Failed from None

    async def cancels_itself() -> None:
        await gate()
        flight = CURRENT.get()
        assert flight is not None
        router.cancel(flight.request_id)

    async def nests() -> None:
        await router.call(ToolCall("web", "plain", caller="bob"))

    return {
        "plain": gate,
        "apart": gate,
        "tidies": tidies,
        "swallows": swallows,
        "turns_into_error": turns_into_error,
        "cancels_itself": cancels_itself,
        "nests": nests,
    }


EVENTS = ("outer", "deadline", "cancel", "answer")
ORDERS = [
    order
    for length in range(1, len(EVENTS) + 1)
    for order in permutations(EVENTS, length)
    if "outer" in order
]
"""Every order of every set of events in which the caller's task is cancelled: 49."""
SWALLOWING = {"swallows", "turns_into_error"}
"""Tools that may eat the caller's cancel themselves, as without us."""


async def test_no_cancel_of_a_callers_task_is_ever_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    gate = Gate()
    pick = random.Random(13)  # noqa: S311  # not a secret
    trials: Counter[str] = Counter()
    async with running(policy(NARROW), tmp_path, {"web/idle": gate}) as router:
        for name, function in tools_of(router, gate).items():
            router.add_tool("web", name, function)

        async def caller(tool: str) -> None:
            with suppress(CallgateError, Failed):
                await router.call(ToolCall("web", tool, caller="alice", timeout_ms=1_000))
            await asyncio.sleep(FOREVER_S)  # where a cancel that is late has to strike

        for trial in range(OUTER):
            order = ORDERS[trial % len(ORDERS)]
            tool = pick.choice(("plain", "apart", "tidies", "cancels_itself", "nests"))
            task = asyncio.create_task(caller(tool))
            await turns(1 + pick.randrange(6))
            acts: dict[str, Callable[[], object]] = {
                "outer": task.cancel,
                "deadline": lambda: clock.expire(router, 1_000),
                "cancel": lambda: [router.cancel(one.request_id) for one in flights(router)],
                "answer": lambda: gate.open(9),
            }
            spread = pick.random() < 0.5
            for name in order:
                acts[name]()
                if spread:
                    await turns(pick.randrange(3))

            await asyncio.wait([task], timeout=FOREVER_S)
            assert task.cancelled(), (trial, order, tool, spread)
            trials[tool] += 1
            await turns(4)
            assert_nothing_is_left(router)
    assert min(trials.values()) > OUTER / 10


@pytest.mark.parametrize("tool", sorted(SWALLOWING))
async def test_a_tool_that_eats_cancels_costs_no_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    clock = Clock(monkeypatch)
    gate = Gate()
    async with running(policy(NARROW), tmp_path, {"web/idle": gate}) as router:
        for name, function in tools_of(router, gate).items():
            router.add_tool("web", name, function)
        for order in ORDERS:
            made = ToolCall("web", tool, caller="alice", timeout_ms=1_000)
            task = asyncio.create_task(router.call(made))
            await turns(2)
            for name in order:
                if name == "outer":
                    task.cancel()
                elif name == "deadline":
                    clock.expire(router, 1_000)
                elif name == "cancel":
                    for flight in flights(router):
                        router.cancel(flight.request_id)
                else:
                    gate.open()
            await asyncio.wait([task], timeout=FOREVER_S)
            assert task.cancelled() or task.exception() or tool == "swallows", order
            await turns(4)
            assert_nothing_is_left(router)
