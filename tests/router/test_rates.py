"""Rates and slots through the router: never too many, nothing charged in vain, told when."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callgate import CallgateError, RateLimited, Router, ToolCall
from callgate.errors import LimitInfo
from tests.conftest import FULL
from tests.router.helpers import (
    MS,
    Clock,
    Gate,
    assert_nothing_is_left,
    call,
    echo,
    policy,
    rates_left,
    running,
    turns,
    used_slots,
    within,
)

if TYPE_CHECKING:
    from pathlib import Path

DENIED = 10_000

SCOPES = """
version: 1
global: {rate: 50/second}
callers: {"*": {rate: 20/second}}
defaults: {concurrency: unlimited}
agents:
  web:
    rate: {limit: 30/second, burst: 10}
    tools:
      narrow: {rate: {limit: 7/second, burst: 3}}
      split: {rate: {limit: 5/second, burst: 2, per: caller}}
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def tools() -> dict[str, Any]:
    return {"web/echo": echo, "web/narrow": echo, "web/split": echo}


async def attempt(router: Router, made: ToolCall) -> CallgateError | None:
    try:
        await router.call(made)
    except CallgateError as error:
        return error
    return None


# Each scope bites.


@pytest.mark.parametrize(
    ("tool", "admitted", "scope", "limit"),
    [
        ("web/echo", 10, "agent:web", "30/second"),
        ("web/narrow", 3, "tool:web/narrow", "7/second"),
        ("web/split", 2, "tool:web/split@alice", "5/second"),
        ("far/echo", 20, "caller:alice", "20/second"),
    ],
)
@pytest.mark.usefixtures("clock")
async def test_the_tightest_scope_refuses_first_and_says_so(
    tmp_path: Path, tool: str, admitted: int, scope: str, limit: str
) -> None:
    made = policy(SCOPES.replace('"*"', "alice"))
    async with running(made, tmp_path, {**tools(), "far/echo": echo}) as router:
        for _ in range(admitted):
            assert await attempt(router, call(tool)) is None

        error = await attempt(router, call(tool))

        assert isinstance(error, RateLimited)
        assert error.limit == LimitInfo("rate", scope, limit, admitted)


@pytest.mark.usefixtures("clock")
async def test_a_rate_per_caller_is_each_callers_own(tmp_path: Path) -> None:
    async with running(policy(SCOPES), tmp_path, tools()) as router:
        for caller in ("alice", "bob"):
            outcomes = [await attempt(router, call("web/split", caller)) for _ in range(3)]
            assert [error is None for error in outcomes] == [True, True, False]


@pytest.mark.usefixtures("clock")
async def test_a_callers_template_gives_each_unnamed_caller_its_own(tmp_path: Path) -> None:
    made = policy('version: 1\ncallers: {"*": {rate: 2/hour}}\ndefaults: {rate: unlimited}\n')
    async with running(made, tmp_path) as router:
        for caller in ("alice", "bob", None):
            outcomes = [await attempt(router, call("web/echo", caller)) for _ in range(3)]
            assert [error is None for error in outcomes] == [True, True, False]


# Told when.


async def test_waiting_exactly_as_told_admits_if_nobody_else_took(
    tmp_path: Path, clock: Clock
) -> None:
    pick = random.Random(3)  # noqa: S311  # not a secret
    told = 0
    async with running(policy(SCOPES), tmp_path, tools()) as router:
        while told < 1_000:
            made = call(pick.choice(list(tools())), pick.choice(("alice", "bob")))
            error = await attempt(router, made)
            if error is None:
                clock.now_ns += pick.randrange(5 * MS)
                continue
            assert error.retry_after_ms is not None
            clock.now_ns += error.retry_after_ms * MS

            assert await attempt(router, made) is None
            told += 1


async def test_waiting_a_millisecond_less_is_too_early(tmp_path: Path, clock: Clock) -> None:
    async with running(policy(SCOPES), tmp_path, tools()) as router:
        for _ in range(200):
            error = await attempt(router, call("web/narrow"))
            if error is not None:
                clock.now_ns += ((error.retry_after_ms or 0) - 1) * MS
                assert await attempt(router, call("web/narrow")) is not None
                clock.now_ns += MS


async def test_on_the_real_clock_waiting_as_told_admits(tmp_path: Path) -> None:
    made = policy("version: 1\nagents: {web: {rate: {limit: 20/second, burst: 1}}}\n")
    waited = 0
    async with asyncio.timeout(60), running(made, tmp_path) as router:
        while waited < 5:
            try:
                await router.call(call())  # admitted at once where the machine is slower than that
            except RateLimited as error:
                await asyncio.sleep((error.retry_after_ms or 0) / 1000)
                await router.call(call())
                waited += 1


# Nothing charged in vain.


@pytest.mark.usefixtures("clock")
async def test_refused_calls_charge_nothing_anywhere(tmp_path: Path) -> None:
    gate = Gate()
    made = policy("""
version: 1
global: {rate: 1000/hour, concurrency: 100}
callers: {"*": {rate: 900/hour, concurrency: 50}}
agents:
  web:
    rate: 800/hour
    concurrency: 2
    queue: 0
    tools: {spent: {rate: 1/hour}}
""")
    functions = {"web/gate": gate, "web/echo": echo, "web/spent": echo}
    async with running(made, tmp_path, functions) as router:
        await router.call(call("web/spent"))
        holders = [asyncio.create_task(router.call(call("web/gate"))) for _ in range(2)]
        await gate.entered(2)
        (alice,) = router._counters._callers.values()
        before = rates_left(router), used_slots(router), [r.paid_until_ns for r in alice.rates]
        refusals = Counter[str]()

        for number in range(DENIED):
            error = await attempt(router, call("web/spent" if number % 2 else "web/echo"))
            assert error is not None
            refusals[error.code] += 1

        assert refusals == {"limit.concurrency": DENIED}
        gate.open(2)
        await within(asyncio.gather(*holders))
        for _ in range(100):
            error = await attempt(router, call("web/spent"))
            assert error is not None
            assert error.code == "limit.rate"
        after = rates_left(router), used_slots(router), [r.paid_until_ns for r in alice.rates]
        assert before[0] == after[0]
        assert before[2] == after[2]
        assert after[1] == {}


# Never too many.


@settings(
    max_examples=200 if FULL else 25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 400),
            st.sampled_from(["web/echo", "web/narrow", "web/split"]),
            st.sampled_from(["alice", "bob", "carol"]),
        ),
        min_size=1,
        max_size=120,
    )
)
def test_no_window_admits_more_than_rate_times_time_and_burst(
    tmp_path: Path, steps: list[tuple[int, str, str]]
) -> None:
    """Over every window between two admissions, for every scope."""
    limits = {"global": (50, 50), "agent": (30, 10), "web/narrow": (7, 3)}
    limits |= {f"caller {name}": (20, 20) for name in ("alice", "bob", "carol")}
    limits |= {f"web/split {name}": (5, 2) for name in ("alice", "bob", "carol")}
    entered: dict[str, list[int]] = {scope: [] for scope in limits}

    async def play(clock: Clock) -> None:
        async with running(policy(SCOPES), tmp_path, tools()) as router:
            for pause_ms, tool, caller in steps:
                clock.now_ns += pause_ms * MS // 4
                for _ in range(3):
                    if await attempt(router, call(tool, caller)) is None:
                        scopes = ["global", "agent", f"caller {caller}", tool, f"{tool} {caller}"]
                        for scope in scopes:
                            if scope in entered:
                                entered[scope].append(clock.now_ns)

    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(play(Clock(patch)))
    for scope, (per_second, burst) in limits.items():
        times = entered[scope]
        for first in range(len(times)):
            for last in range(first, len(times)):
                allowed = (times[last] - times[first]) * per_second / 1e9 + burst
                assert last - first + 1 <= allowed + 1e-6, scope


async def test_no_more_are_inside_than_each_scope_allows(tmp_path: Path) -> None:
    made = policy("""
version: 1
global: {concurrency: 9}
callers: {"*": {concurrency: 4}}
defaults: {rate: unlimited}
agents:
  web: {concurrency: 6, queue: 500, tools: {narrow: {concurrency: 2}}}
  far: {concurrency: unlimited, queue: 500}
""")
    inside: Counter[str] = Counter()
    most: Counter[str] = Counter()
    pick = random.Random(5)  # noqa: S311  # not a secret

    async def tool(scopes: tuple[str, ...], steps: int) -> None:
        for scope in scopes:
            inside[scope] += 1
            most[scope] = max(most[scope], inside[scope])
        for _ in range(steps):
            await asyncio.sleep(0)
        for scope in scopes:
            inside[scope] -= 1

    async with running(
        made, tmp_path, {"web/wide": tool, "web/narrow": tool, "far/wide": tool}
    ) as router:
        calls = []
        for _ in range(600):
            agent, name = pick.choice((("web", "wide"), ("web", "narrow"), ("far", "wide")))
            caller = pick.choice(("alice", "bob", "carol"))
            scopes = ("global", caller, agent, f"{agent}/{name}")
            arguments = {"scopes": scopes, "steps": pick.randrange(4)}
            calls.append(router.call(ToolCall(agent, name, arguments, caller)))
        await within(asyncio.gather(*calls))
        await turns()
        assert_nothing_is_left(router)

    assert most["global"] == 9
    assert most["web"] == 6
    assert most["web/narrow"] == 2
    assert {most[name] for name in ("alice", "bob", "carol")} == {4}


@pytest.mark.usefixtures("clock")
async def test_hostile_names_share_what_the_policy_gives_to_anybody(tmp_path: Path) -> None:
    made = policy("version: 1\ndefaults: {rate: 5/hour}\nagents: {web: {rate: 3/hour}}\n")
    async with running(made, tmp_path) as router:
        strangers = [
            await attempt_guard(router, f"agent {number}", f"tool {number}") for number in range(9)
        ]
        known = [await attempt_guard(router, "web", f"tool {number}") for number in range(9)]

        assert strangers.count(None) == 5
        assert known.count(None) == 3
        assert set(rates_left(router)) == {"agent:*", "agent:web"}
        assert len(router._lanes._stats) == 2


async def attempt_guard(router: Router, agent: str, tool: str) -> str | None:
    try:
        await router.guard(ToolCall(agent, tool, caller="alice"), echo)
    except CallgateError as error:
        return error.code
    return None
