"""What the router remembers is bounded by the policy, never by what peers send."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from callgate import CallgateError, Router, ToolCall
from callgate.router import lanes
from tests.conftest import FULL
from tests.router.helpers import Clock, assert_nothing_is_left, echo, policy, running

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LANES = 100_000 if FULL else 4_000
CALLS = 1_000_000 if FULL else 20_000
NAMES = 1_000_000 if FULL else 20_000
KIB = 1_024

LIMITED = """
version: 1
global: {rate: 1000000/second, concurrency: 1000}
callers: {"*": {rate: 100/day, concurrency: 32}}
agents: {web: {rate: 1000000/second, concurrency: 1000, timeout: 15s}}
"""


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def used_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def make(router: Router, calls: Iterable[ToolCall]) -> int:
    """Make the calls, whatever comes of them; the bytes that they leave behind."""
    before = used_bytes()
    for one in calls:
        with suppress(CallgateError):
            await router.call(one)
        del one
    return used_bytes() - before


@pytest.mark.usefixtures("traced")
async def test_a_lane_costs_less_than_a_kibibyte(tmp_path: Path) -> None:
    tools = {f"web/tool{number}": echo for number in range(20)}
    names = [f"caller{number}" for number in range(LANES // 20)]
    async with running(policy(LIMITED), tmp_path, tools) as router:
        grown = await make(
            router, (ToolCall("web", name[4:], {}, caller) for caller in names for name in tools)
        )

        assert len(router._known) == LANES
    assert grown / LANES < KIB


@pytest.mark.usefixtures("traced")
async def test_calls_of_one_lane_leave_nothing_behind(tmp_path: Path) -> None:
    made = policy(LIMITED.replace("100/day", "unlimited"), audit=tmp_path / "audit")
    async with running(made, tmp_path) as router:
        one = ToolCall("web", "echo", {"value": 1}, "alice", 5_000)
        await make(router, [one] * 2_000)

        # The interpreter rebuilds its table of interned names once in a while, 2 MB of it; what
        # calls leave behind they leave behind in both halves.
        grown = [await make(router, [one] * (CALLS // 2)) for _ in range(2)]

        assert_nothing_is_left(router)
    assert min(grown) < 32 * KIB


@pytest.mark.usefixtures("traced")
async def test_callers_that_nobody_knows_are_forgotten_or_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(policy(LIMITED), tmp_path) as router:
        monkeypatch.setattr(router._counters, "_max_live", 1_000)
        await make(router, (ToolCall("web", "echo", {}, f"early {n}") for n in range(2_000)))

        grown = await make(router, (ToolCall("web", "echo", {}, f"{n}") for n in range(NAMES)))

        assert router.snapshot()["callers"] <= 1_001
    assert grown < 64 * KIB


async def test_a_caller_whose_budget_is_whole_again_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with running(policy(LIMITED), tmp_path) as router:
        monkeypatch.setattr(router._counters, "_max_live", 100)
        await make_all(router, "old", 150)
        assert router._counters.caller("old 149") is None, "beyond the bound they share"
        clock.now_ns += 24 * 3_600 * 1_000_000_000

        await make_all(router, "new", 90)

        assert router._counters.caller("old 0") is None
        assert router._counters.caller("new 89") is not None
        assert len([key for key in router._known if key[0].startswith("old")]) == 0


async def make_all(router: Router, name: str, count: int) -> None:
    for number in range(count):
        await router.call(ToolCall("web", "echo", {}, f"{name} {number}"))


@pytest.mark.usefixtures("traced")
async def test_tools_and_agents_that_nobody_has_become_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MAX_ALIASES", 500)
    made = policy(LIMITED.replace("100/day", "unlimited"))
    async with running(made, tmp_path) as router:
        hostile = (
            ToolCall(f"agent {n}" if n % 3 else "web", f"tool {n}", {}, "alice") for n in range(600)
        )
        await make(router, hostile)

        hostile = (
            ToolCall(f"a {n}" if n % 3 else "web", f"t {n}", {}, "alice") for n in range(NAMES)
        )
        grown = await make(router, hostile)

        assert len(router._known) <= 500 + 2
        assert len(router._lanes._stats) == 2
        assert set(router._lanes.agents) == {"web"}
    assert grown < 64 * KIB


@pytest.mark.usefixtures("traced")
async def test_names_of_a_megabyte_are_not_kept(tmp_path: Path) -> None:
    async with running(policy(LIMITED), tmp_path) as router:
        large = "x" * (KIB * KIB)
        await make(router, [ToolCall("web", "echo", {}, "small")])

        grown = await make(
            router,
            (
                ToolCall(f"{large}{n}" if n % 2 else "web", f"{n}{large}", {}, f"{n}{large}")
                for n in range(20)
            ),
        )

    assert grown < 64 * KIB
