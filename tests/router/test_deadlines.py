"""A call ends at its deadline, which is fixed when it arrives and only ever shrinks."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from callgate import CallTimedOut, Router, ToolCall
from callgate.errors import LimitInfo
from callgate.limits.deadlines import FINE_NS
from callgate.router.local import CURRENT
from tests.router.helpers import (
    FOREVER_S,
    MS,
    OPEN,
    Clock,
    Gate,
    assert_nothing_is_left,
    call,
    call_events,
    echo,
    flights,
    policy,
    refused,
    running,
    turns,
    within,
)

if TYPE_CHECKING:
    from pathlib import Path

TIMES = """
version: 1
profile: interactive
defaults: {rate: unlimited, timeout: 2s, max_timeout: 8s}
global: {max_timeout: 7s}
callers:
  hasty: {max_timeout: 1500ms}
  patient: {max_timeout: unlimited}
agents:
  web:
    tools:
      slow: {timeout: 5s}
      quick: {timeout: 500ms, max_timeout: 1s}
  endless: {timeout: unlimited, max_timeout: unlimited}
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def start(router: Router, made: ToolCall) -> asyncio.Task[Any]:
    task = asyncio.create_task(router.call(made))
    await turns()
    return task


@pytest.mark.parametrize(
    ("tool", "caller", "timeout_ms", "expected_ms", "scope"),
    [
        ("echo", None, None, 2_000, "agent:web"),
        ("echo", None, 500, 500, "call"),
        ("echo", None, 4_000, 4_000, "call"),
        ("echo", None, 100_000, 7_000, "global"),
        ("slow", None, None, 5_000, "tool:web/slow"),
        ("slow", None, 100_000, 7_000, "global"),
        ("quick", None, None, 500, "tool:web/quick"),
        ("quick", None, 100_000, 1_000, "tool:web/quick"),
        ("echo", "hasty", None, 1_500, "caller:hasty"),
        ("echo", "hasty", 1, 1, "call"),
        ("slow", "hasty", 4_000, 1_500, "caller:hasty"),
        ("echo", "patient", 7_500, 7_000, "global"),
    ],
)
async def test_a_call_has_the_time_it_asks_for_under_every_ceiling(
    tmp_path: Path,
    clock: Clock,
    tool: str,
    caller: str | None,
    timeout_ms: int | None,
    expected_ms: int,
    scope: str,
) -> None:
    gate = Gate()
    async with running(policy(TIMES), tmp_path, {f"web/{tool}": gate}) as router:
        task = await start(router, ToolCall("web", tool, {}, caller, timeout_ms))

        clock.now_ns += expected_ms * MS - 1
        clock.advance(router, 0)
        await turns()
        assert not task.done()
        clock.expire(router, 0)

        error = await refused(task)
        assert (error.code, error.retryable) == ("limit.timeout", False)
        assert error.limit == LimitInfo("timeout", scope, expected_ms)
        assert_nothing_is_left(router)


async def test_without_a_limit_a_call_may_take_for_ever(tmp_path: Path, clock: Clock) -> None:
    gate = Gate()
    made = policy(TIMES.replace("global: {max_timeout: 7s}", ""))
    async with running(made, tmp_path, {"endless/gate": gate}) as router:
        task = await start(router, call("endless/gate"))

        clock.expire(router, 10 * 365 * 24 * 3_600_000)

        await turns()
        assert not task.done()
        gate.open()
        await within(task)
        assert_nothing_is_left(router)


async def test_the_time_that_a_tool_did_not_use_is_nobodys(tmp_path: Path, clock: Clock) -> None:
    async with running(policy(TIMES), tmp_path) as router:
        assert await router.call(call(value=1)) == 1

        clock.expire(router, 60_000)

        assert_nothing_is_left(router)


async def test_waiting_in_the_queue_spends_the_deadline(tmp_path: Path, clock: Clock) -> None:
    gate = Gate()
    made = policy("version: 1\nagents: {web: {concurrency: 1, queue: 1, timeout: 1s}}\n")
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        first = await start(router, ToolCall("web", "gate", timeout_ms=900))
        second = await start(router, ToolCall("web", "gate"))
        clock.expire(router, 900)
        await refused(first)
        await gate.entered(2)

        clock.expire(router, 100)

        assert (await refused(second)).code == "limit.timeout"
        assert_nothing_is_left(router)


async def test_a_deadline_never_fires_early(tmp_path: Path) -> None:
    late_ns: list[int] = []
    async with running(policy(), tmp_path, {"web/gate": Gate()}) as router:
        for timeout_ms in (1, 3, 5, 8, 13, 21, 34, 55):
            began_ns = time.monotonic_ns()
            await refused(router.call(ToolCall("web", "gate", timeout_ms=timeout_ms)))
            late_ns.append(time.monotonic_ns() - began_ns - timeout_ms * MS)

    assert min(late_ns) >= 0


async def test_the_wheel_is_looked_at_within_one_slot_of_the_deadline(
    tmp_path: Path, clock: Clock
) -> None:
    async with running(policy(), tmp_path, {"web/gate": Gate()}) as router:
        clock.advance(router, 5)  # a wheel that was never looked at keeps all in coarse slots
        task = await start(router, ToolCall("web", "gate", timeout_ms=50))

        assert 0 <= router.engine.armed_ns - (clock.now_ns + 50 * MS) <= FINE_NS
        task.cancel()
        await asyncio.wait([task], timeout=FOREVER_S)


async def test_all_calls_share_one_timer(tmp_path: Path) -> None:
    gate = Gate()
    loop: Any = asyncio.get_running_loop()
    async with running(policy(), tmp_path, {"web/gate": gate}) as router:
        before = len([one for one in loop._scheduled if not one.cancelled()])
        tasks = [
            asyncio.create_task(router.call(ToolCall("web", "gate", timeout_ms=5_000 + number)))
            for number in range(300)
        ]
        await gate.entered(300)

        assert len([one for one in loop._scheduled if not one.cancelled()]) == before + 1

        gate.open(300)
        await within(asyncio.gather(*tasks))


async def test_a_tool_that_answers_as_its_time_ends_is_too_late(
    tmp_path: Path, clock: Clock
) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(audit=audit), tmp_path, {"web/gate": gate}) as router:
        task = await start(router, call("web/gate"))
        gate.open()

        clock.expire(router, 10_000)

        assert (await refused(task)).code == "limit.timeout"
    assert call_events(audit) == ["admitted", "timed_out"]


async def test_an_exception_that_comes_after_the_deadline_is_not_the_answer(
    tmp_path: Path, clock: Clock
) -> None:
    async def stumbles() -> None:
        try:
            await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            raise ValueError("a secret") from None

    async with running(policy(), tmp_path, {"web/stumbles": stumbles}) as router:
        task = await start(router, call("web/stumbles"))

        clock.expire(router, 10_000)

        error = await refused(task)
        assert error.code == "limit.timeout"
        assert error.__cause__ is None
        assert error.__suppress_context__


# Nested calls.


async def test_a_nested_call_has_what_is_left_of_its_parents_time(
    tmp_path: Path, clock: Clock
) -> None:
    gate = Gate()
    async with running(policy(), tmp_path, {"web/gate": gate}) as router:

        async def outer() -> None:
            clock.now_ns += 300 * MS
            await router.call(ToolCall("web", "gate", timeout_ms=60_000))

        router.add_tool("web", "outer", outer)
        task = await start(router, ToolCall("web", "outer", timeout_ms=1_000))
        parent, child = flights(router)

        assert child.deadline_ns == parent.deadline_ns
        assert child.remaining_ms(clock.now_ns) == 700
        clock.expire(router, 700)

        error = await refused(task)
        assert (error.code, error.tool) == ("limit.timeout", "outer")
        assert_nothing_is_left(router)


async def test_a_nested_call_may_have_less_time_than_its_parent(
    tmp_path: Path, clock: Clock
) -> None:
    gate = Gate()
    async with running(policy(), tmp_path, {"web/gate": gate}) as router:

        async def outer() -> str:
            try:
                await router.call(ToolCall("web", "gate", timeout_ms=100))
            except CallTimedOut as error:
                return error.code
            return ""

        router.add_tool("web", "outer", outer)
        task = await start(router, ToolCall("web", "outer", timeout_ms=1_000))

        clock.expire(router, 100)

        assert await within(task) == "limit.timeout"


async def test_a_tool_whose_time_is_over_may_call_nothing_more(
    tmp_path: Path, clock: Clock
) -> None:
    inner: list[str] = []
    async with running(policy(), tmp_path) as router:

        async def outer() -> None:
            try:
                await asyncio.sleep(FOREVER_S)
            finally:
                error = await refused(router.call(call()))
                inner.append(error.code)

        router.add_tool("web", "outer", outer)
        task = await start(router, call("web/outer"))

        clock.expire(router, 10_000)

        await refused(task)
        assert inner == ["limit.timeout"]
        assert_nothing_is_left(router)


async def test_work_that_ignored_its_deadline_may_call_nothing_more(
    tmp_path: Path, clock: Clock
) -> None:
    made = policy(OPEN + "agents: {web: {tools: {apart: {isolate: task}}}}\n")
    stubborn = asyncio.Event()
    inner: list[str] = []
    async with running(made, tmp_path) as router:

        async def apart() -> None:
            while not stubborn.is_set():
                with suppress(asyncio.CancelledError):
                    await stubborn.wait()
            inner.append((await refused(router.call(call()))).code)

        router.add_tool("web", "apart", apart)
        task = await start(router, call("web/apart"))
        clock.expire(router, 10_000)
        await refused(task)
        clock.expire(router, 60_000)  # its slot has been given back

        stubborn.set()

        await turns()
        assert inner == ["limit.timeout"]
        assert_nothing_is_left(router)


async def test_what_a_tool_left_running_is_not_under_its_deadline(
    tmp_path: Path, clock: Clock
) -> None:
    go_on = asyncio.Event()
    background: list[asyncio.Task[Any]] = []
    async with running(policy(), tmp_path) as router:

        async def worker() -> Any:
            await go_on.wait()
            return await router.call(call(value="still welcome"))

        async def outer() -> None:
            background.append(asyncio.create_task(worker()))

        router.add_tool("web", "outer", outer)
        await router.call(call("web/outer"))
        clock.expire(router, 3_600_000)

        go_on.set()

        assert await within(background[0]) == "still welcome"


async def test_a_chain_of_background_calls_keeps_no_ancestors(tmp_path: Path) -> None:
    done = asyncio.Event()
    tasks: set[asyncio.Task[Any]] = set()
    depths: list[int] = []
    async with running(policy(), tmp_path) as router:

        async def link(number: int) -> None:
            depth, flight = 0, CURRENT.get()
            while flight is not None:
                depth, flight = depth + 1, flight.parent
            depths.append(depth)
            if number:
                following = asyncio.create_task(router.call(call("web/link", number=number - 1)))
                tasks.add(following)
                following.add_done_callback(tasks.discard)
            else:
                done.set()

        router.add_tool("web", "link", link)
        await router.call(call("web/link", number=50))
        await within(done.wait())
        assert depths == [1] + [2] * 50


async def test_a_call_of_another_router_is_nested_too(tmp_path: Path, clock: Clock) -> None:
    gate = Gate()
    async with (
        running(policy(), tmp_path, {"far/gate": gate}) as far,
        running(policy(), tmp_path) as near,
    ):

        async def outer() -> None:
            await far.call(ToolCall("far", "gate", timeout_ms=60_000))

        near.add_tool("web", "outer", outer)
        task = await start(near, ToolCall("web", "outer", timeout_ms=500))

        assert flights(far)[0].deadline_ns == flights(near)[0].deadline_ns
        clock.expire(near, 500)

        assert (await refused(task)).code == "limit.timeout"
        assert_nothing_is_left(far)
        assert_nothing_is_left(near)


async def test_time_that_a_program_lost_between_two_looks_does_no_harm(
    tmp_path: Path, clock: Clock
) -> None:
    gate = Gate()
    async with running(policy(), tmp_path, {"web/gate": gate, "web/echo": echo}) as router:
        task = await start(router, call("web/gate"))

        clock.advance(router, 24 * 3_600_000)  # a suspended laptop

        assert (await refused(task)).code == "limit.timeout"
        assert await router.call(call(value=1)) == 1
        assert_nothing_is_left(router)
