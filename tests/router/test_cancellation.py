"""A cancel reaches the work, hurts nobody else, and is never lost or doubled."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from callgate import CallCanceled, CallTimedOut, Router, ToolCall
from callgate.router.local import CURRENT
from tests.router.helpers import (
    FOREVER_S,
    MS,
    OPEN,
    Clock,
    Gate,
    assert_each_admitted_call_ends_once,
    assert_nothing_is_left,
    call,
    call_events,
    echo,
    flights,
    only_id,
    policy,
    rates_left,
    refused,
    running,
    turns,
    until,
    used_slots,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = """
version: 1
defaults: {rate: 100/minute, max_timeout: 60s}
agents:
  web:
    concurrency: 1
    queue: 5
    timeout: 10s
    cancel_grace: 2s
    tools: {apart: {isolate: task}}
"""
"""One at a time, so that a second call waits."""


async def start(router: Router, made: ToolCall) -> asyncio.Task[Any]:
    """A call in a task of its own, as far as it comes without time passing."""
    task = asyncio.create_task(router.call(made))
    await turns()
    return task


async def ended(task: asyncio.Task[Any]) -> BaseException | Any:
    """How a task ended: its result or what it raised."""
    await asyncio.wait([task], timeout=FOREVER_S)
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()


# By request id.


async def test_a_running_call_is_cancelled_by_its_id(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(ONE), tmp_path, {"web/gate": gate}) as router:
        task = await start(router, call("web/gate"))

        assert router.cancel(only_id(router))

        error = await refused(task)
        assert (error.code, error.retryable) == ("tool.canceled", False)
        assert gate.waiting == []
        assert_nothing_is_left(router)


async def test_a_call_in_the_queue_is_cancelled_and_charged_nothing(tmp_path: Path) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(ONE, audit=audit), tmp_path, {"web/gate": gate}) as router:
        first = await start(router, call("web/gate"))
        left = rates_left(router)
        second = await start(router, call("web/gate"))
        (waiting,) = [flight for flight in flights(router) if flight.queued]

        assert router.cancel(waiting.request_id)

        assert (await refused(second)).code == "tool.canceled"
        assert rates_left(router) == left
        assert gate.names == [""]
        gate.open()
        await within(first)
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "denied", "completed"]


async def test_a_caller_that_leaves_as_its_turn_comes_is_charged_nothing(tmp_path: Path) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(ONE, audit=audit), tmp_path, {"web/gate": gate}) as router:
        first = await start(router, call("web/gate"))
        left = rates_left(router)
        second = await start(router, call("web/gate"))

        gate.open()  # in the next step the first ends and lets the second in,
        second.cancel()  # which has been cancelled by then and does not know it yet

        await within(first)
        assert isinstance(await ended(second), asyncio.CancelledError)
        assert rates_left(router) == left
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "completed", "denied"]


async def test_cancelling_one_call_does_not_hurt_another(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(), tmp_path, {"web/gate": gate}) as router:
        first = await start(router, call("web/gate", name="first"))
        first_id = only_id(router)
        second = await start(router, call("web/gate", name="second"))

        router.cancel(first_id)
        await refused(first)
        gate.open()

        assert await within(second) == "second"


async def test_an_id_that_is_not_in_flight_cannot_be_cancelled(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(), tmp_path, {"web/gate": gate}) as router:
        task = await start(router, call("web/gate"))
        request_id = only_id(router)

        assert not router.cancel("0190b2c3-d4e5-7abc-8def-000000000000")
        assert router.cancel(request_id)
        assert not router.cancel(request_id), "it is cancelled already"
        await refused(task)
        assert not router.cancel(request_id), "it has ended"


@pytest.mark.parametrize("first", ["answer", "cancel"])
async def test_answer_and_cancel_in_one_tick_give_one_outcome(tmp_path: Path, first: str) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(audit=audit), tmp_path, {"web/gate": gate}) as router:
        task = await start(router, call("web/gate"))
        acts: list[Callable[[], object]] = [gate.open, lambda: router.cancel(only_id(router))]

        for act in acts if first == "answer" else reversed(acts):
            act()

        assert (await refused(task)).code == "tool.canceled"
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "cancelled"]


async def test_an_answer_that_was_given_stands(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(ONE), tmp_path, {"web/apart": gate}) as router:
        task = await start(router, call("web/apart", name="answer"))
        request_id = only_id(router)
        gate.open()
        await turns(2)  # the work has ended, its caller does not know yet

        router.cancel(request_id)

        assert await within(task) == "answer"


# By the caller's own task.


async def test_a_cancelled_caller_gets_its_cancel_and_the_tool_too(tmp_path: Path) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(audit=audit), tmp_path, {"web/gate": gate}) as router:
        task = await start(router, call("web/gate"))

        task.cancel()

        assert isinstance(await ended(task), asyncio.CancelledError)
        assert gate.waiting == []
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "cancelled"]


async def test_a_timeout_of_the_callers_own_stays_the_callers(tmp_path: Path) -> None:
    async with running(policy(), tmp_path, {"web/gate": Gate()}) as router:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await router.call(call("web/gate"))
        assert_nothing_is_left(router)


async def test_a_cancel_scope_of_anyio_around_a_call_works(tmp_path: Path) -> None:
    async with running(policy(), tmp_path, {"web/gate": Gate()}) as router:
        with anyio.move_on_after(0.01) as scope:
            await router.call(call("web/gate"))

        assert scope.cancelled_caught
        assert_nothing_is_left(router)


@pytest.mark.parametrize("tool", ["web/steps", "web/apart", "deep/nested"])
async def test_a_caller_may_be_cancelled_at_every_point(tmp_path: Path, tool: str) -> None:
    async def steps() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    made = policy(ONE + "  deep: {concurrency: 3, rate: unlimited}\n", audit=tmp_path / "audit")
    tools: dict[str, Any] = {"web/steps": steps, "web/apart": steps, "web/gate": Gate()}
    completed = 0
    async with running(made, tmp_path, tools) as router:

        async def nested(depth: int = 2) -> None:
            await asyncio.sleep(0)
            if depth:
                await router.call(call("deep/nested", depth=depth - 1))
            await asyncio.sleep(0)

        router.add_tool("deep", "nested", nested)
        for step in range(25):
            # Another call is in the way for a while, so that this one waits first.
            other = await start(router, call("web/steps"))
            task = asyncio.create_task(router.call(call(tool)))
            await turns(step)
            task.cancel()
            outcome = await ended(task)
            completed += outcome is None
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)
            await within(other)
            await turns()
            assert_nothing_is_left(router)
    assert 0 < completed < 25
    assert_each_admitted_call_ends_once(tmp_path / "audit")


# Tools that do strange things with cancels.


async def test_a_tool_may_cancel_its_own_task(tmp_path: Path) -> None:
    async def suicide() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    audit = tmp_path / "audit"
    async with running(policy(audit=audit), tmp_path, {"web/suicide": suicide}) as router:
        task = await start(router, call("web/suicide"))

        assert isinstance(await ended(task), asyncio.CancelledError)
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "cancelled"]


async def test_a_tool_that_raises_a_cancel_has_failed(tmp_path: Path) -> None:
    async def pretend() -> None:
        raise asyncio.CancelledError("made up")

    audit = tmp_path / "audit"
    async with running(policy(audit=audit), tmp_path, {"web/pretend": pretend}) as router:
        with pytest.raises(asyncio.CancelledError, match="made up"):
            await router.call(call("web/pretend"))

        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "failed"]


@pytest.mark.parametrize("then", ["returns", "raises"])
async def test_a_tool_that_cancels_its_own_call_does_not_hit_its_caller(
    tmp_path: Path, then: str
) -> None:
    async with running(policy(), tmp_path) as router:

        async def own() -> None:
            router.cancel(only_id(router))  # and ends without another await
            if then == "raises":
                raise ValueError("no")

        router.add_tool("web", "own", own)

        with pytest.raises(CallCanceled):
            await router.call(call("web/own"))
        await asyncio.sleep(0)  # a cancel that is left over would strike here
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


class Stop(BaseException):
    """As KeyboardInterrupt, which a test cannot raise in a task without ending the loop."""


async def test_what_is_no_exception_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop() -> None:
        try:
            await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            raise Stop from None

    clock = Clock(monkeypatch)
    audit = tmp_path / "audit"
    async with running(policy(audit=audit), tmp_path, {"web/stop": stop}) as router:
        task = await start(router, call("web/stop"))
        clock.expire(router, 10_000)

        assert isinstance(await ended(task), Stop)
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "timed_out"]


class Stubborn:
    """A tool that swallows every cancel until it is told to end."""

    def __init__(self) -> None:
        self.cancels = 0
        self.done = asyncio.Event()

    async def __call__(self) -> str:
        while not self.done.is_set():
            try:
                await self.done.wait()
            except asyncio.CancelledError:
                self.cancels += 1
        return "late"


@pytest.mark.parametrize("by", ["deadline", "cancel"])
async def test_a_tool_that_swallows_its_cancel_delays_its_own_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    clock = Clock(monkeypatch)
    stubborn = Stubborn()
    async with running(policy(ONE), tmp_path, {"web/stubborn": stubborn}) as router:
        task = await start(router, call("web/stubborn"))
        if by == "deadline":
            clock.expire(router, 10_000)
        else:
            router.cancel(only_id(router))
        await turns()
        assert (stubborn.cancels, task.done()) == (1, False)

        stubborn.done.set()

        expected = CallTimedOut if by == "deadline" else CallCanceled
        assert isinstance(await ended(task), expected)
        assert_nothing_is_left(router)


@pytest.mark.parametrize("by", ["deadline", "cancel"])
@pytest.mark.parametrize("tool", ["web/stubborn", "web/apart"])
async def test_work_that_swallows_its_cancel_keeps_its_slot_for_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, by: str
) -> None:
    clock = Clock(monkeypatch)
    stubborn = Stubborn()
    tools = {"web/stubborn": stubborn, "web/apart": stubborn}
    async with running(policy(ONE), tmp_path, tools) as router:
        task = await start(router, call(tool))
        clock.advance(router, 9_000)
        if by == "deadline":
            clock.expire(router, 1_000)
        else:
            router.cancel(only_id(router))
        await turns()

        clock.advance(router, 1_900)  # past the deadline in both cases
        assert used_slots(router) == {"agent:web": 1}
        clock.expire(router, 100)
        assert used_slots(router) == {}

        stubborn.done.set()
        await ended(task)
        await turns()
        assert_nothing_is_left(router)


async def test_a_slot_that_its_grace_gave_back_serves_the_next_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    stubborn = Stubborn()
    tools = {"web/apart": stubborn, "web/echo": echo}
    async with running(policy(ONE), tmp_path, tools) as router:
        await start(router, call("web/apart"))
        router.cancel(only_id(router))
        waiting = await start(router, call("web/echo", value=1))
        assert not waiting.done()

        clock.expire(router, 2_000)

        assert await within(waiting) == 1
        stubborn.done.set()
        await turns()
        assert_nothing_is_left(router)


async def test_a_call_that_is_turned_away_as_its_deadline_passes_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    stubborn = Stubborn()
    tools = {"web/apart": stubborn, "web/echo": echo}
    async with running(policy(ONE), tmp_path, tools) as router:
        await start(router, call("web/apart"))
        router.cancel(only_id(router))
        waiting = await start(router, ToolCall("web", "echo", timeout_ms=2_100))
        waiting.cancel()

        clock.expire(router, 2_200)  # the slot comes back, to nobody; and the deadline passes

        assert_nothing_is_left(router)
        assert isinstance(await ended(waiting), asyncio.CancelledError)
        stubborn.done.set()
        await turns()


async def test_an_isolated_tool_is_answered_at_its_deadline_whatever_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    stubborn = Stubborn()
    audit = tmp_path / "audit"
    async with running(policy(ONE, audit=audit), tmp_path, {"web/apart": stubborn}) as router:
        task = await start(router, call("web/apart"))

        clock.expire(router, 10_000)

        assert (await refused(task)).code == "limit.timeout"
        assert (stubborn.cancels, used_slots(router)) == (1, {"agent:web": 1})
        stubborn.done.set()
        await turns()
        assert_nothing_is_left(router)
        assert router.snapshot()["tools"][0]["late"] == 1
    assert call_events(audit) == ["admitted", "timed_out", "late"]


async def test_an_isolated_tool_that_obeys_gives_its_slot_back_at_once(tmp_path: Path) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(ONE, audit=audit), tmp_path, {"web/apart": gate}) as router:
        task = await start(router, call("web/apart"))

        router.cancel(only_id(router))

        assert (await refused(task)).code == "tool.canceled"
        await turns()
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "cancelled"]


@pytest.mark.parametrize("by", ["deadline", "cancel", "caller"])
async def test_a_thread_keeps_its_slot_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    clock = Clock(monkeypatch)
    began, go_on = threading.Event(), threading.Event()

    def sync() -> str:
        began.set()
        go_on.wait(FOREVER_S)
        return "late"

    async with running(policy(ONE), tmp_path, {"web/sync": sync}) as router:
        task = asyncio.create_task(router.call(call("web/sync")))
        await until(began.is_set)
        if by == "deadline":
            clock.expire(router, 10_000)
        elif by == "cancel":
            router.cancel(only_id(router))
        else:
            task.cancel()
        kinds = {"deadline": CallTimedOut, "cancel": CallCanceled, "caller": asyncio.CancelledError}
        assert isinstance(await ended(task), kinds[by])
        clock.expire(router, 60_000)  # long past any grace
        assert used_slots(router) == {"agent:web": 1}

        go_on.set()

        await until(lambda: used_slots(router) == {})
        assert_nothing_is_left(router)


# Jobs.


async def test_a_job_is_cancelled(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(), tmp_path, {"web/gate": gate}) as router:
        job = router.submit(call("web/gate"))
        await gate.entered()

        assert job.cancel()

        assert (await refused(job)).code == "tool.canceled"
        assert not job.cancel()
        assert_nothing_is_left(router)


@pytest.mark.parametrize("tool", ["web/gate", "web/apart"])
@pytest.mark.parametrize("place", ["running", "queued"])
@pytest.mark.parametrize("by", ["cancel", "deadline", "task"])
async def test_a_job_that_ends_before_its_first_step_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, place: str, by: str
) -> None:
    clock = Clock(monkeypatch)
    gate, holder = Gate(), Gate()
    tools = {"web/gate": gate, "web/apart": gate, "web/holder": holder}
    async with running(policy(ONE), tmp_path, tools) as router:
        if place == "queued":
            await start(router, call("web/holder"))
        agent, _, name = tool.partition("/")
        job = router.submit(ToolCall(agent, name, timeout_ms=1_000))
        if by == "cancel":
            assert job.cancel()
        elif by == "deadline":
            clock.expire(router, 1_000)
        else:
            assert job._task is not None
            job._task.cancel()

        with suppress(asyncio.CancelledError, CallCanceled, CallTimedOut):
            code = (await refused(job)).code
            assert (by, code) in {
                ("cancel", "tool.canceled"),
                ("deadline", "limit.timeout" if place == "running" else "limit.concurrency"),
            }

        await turns()
        assert gate.names == []
        holder.open()
        await turns()
        assert_nothing_is_left(router)


async def test_a_task_that_is_cancelled_while_it_awaits_a_job_cancels_the_job(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with running(policy(), tmp_path, {"web/gate": gate}) as router:
        job = router.submit(call("web/gate"))

        async def wait() -> None:
            await job

        task = asyncio.create_task(wait())
        await gate.entered()
        task.cancel()

        assert isinstance(await ended(task), asyncio.CancelledError)
        assert job.done()
        assert_nothing_is_left(router)


async def test_a_job_that_nobody_awaits_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def explode() -> None:
        raise ValueError("a secret")

    caplog.set_level(logging.DEBUG)
    async with running(policy(), tmp_path, {"web/explode": explode}) as router:
        caplog.clear()
        jobs = [router.submit(call("web/explode")), router.submit(call("web/nothing"))]
        while jobs:
            await until(jobs[-1].done)
            jobs.pop()
        gc.collect()
        await turns()

    assert caplog.records == []


# The end of a coroutine, and of the router.


@pytest.mark.parametrize("tool", ["web/gate", "web/apart"])
@pytest.mark.parametrize("place", ["running", "queued", "settled"])
async def test_a_coroutine_that_is_closed_leaves_nothing(
    tmp_path: Path, tool: str, place: str
) -> None:
    gate, holder = Gate(), Gate()
    audit = tmp_path / "audit"
    tools = {"web/gate": gate, "web/apart": gate, "web/holder": holder}
    async with running(policy(ONE, audit=audit), tmp_path, tools) as router:
        other = await start(router, call("web/holder")) if place == "queued" else None
        coroutine = router.call(call(tool))

        async def drive() -> None:
            coroutine.send(None)
            if place == "settled":
                await turns()
                router.cancel(only_id(router))
            coroutine.close()

        await ended(asyncio.create_task(drive()))
        holder.open()
        if other is not None:
            await within(other)

        await turns()
        assert_nothing_is_left(router)
    assert_each_admitted_call_ends_once(audit)


async def test_a_call_outside_of_any_task_leaves_nothing(tmp_path: Path) -> None:
    async with running(policy(ONE), tmp_path, {"web/gate": Gate()}) as router:
        caught: list[BaseException] = []

        def no_task() -> None:
            coroutine = router.call(call("web/gate"))
            try:
                coroutine.send(None)
            except RuntimeError as error:
                caught.append(error)

        asyncio.get_running_loop().call_soon(no_task)
        await turns()

        assert len(caught) == 1
        assert_nothing_is_left(router)


async def test_the_end_of_the_router_cancels_what_waits_and_runs(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    gate = Gate()
    tools = {"web/gate": gate, "web/apart": gate}
    async with running(policy(ONE, audit=audit), tmp_path, tools) as router:
        tasks = [await start(router, call(name)) for name in ("web/gate", "web/apart")]
        job = router.submit(call("web/gate"))

    assert [type(await ended(task)) for task in tasks] == [CallCanceled, CallCanceled]
    assert (await refused(job)).code == "tool.canceled"
    assert_nothing_is_left(router)
    assert_each_admitted_call_ends_once(audit)


async def test_the_end_of_the_router_does_not_wait_for_who_never_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.router.router.CLOSE_GRACE_S", 0.01)
    audit = tmp_path / "audit"
    stubborn = Stubborn()
    async with running(policy(audit=audit), tmp_path, {"web/stubborn": stubborn}) as router:
        task = await start(router, call("web/stubborn"))

    assert call_events(audit) == ["admitted", "cancelled"]
    stubborn.done.set()
    assert isinstance(await ended(task), CallCanceled)
    assert_nothing_is_left(router)


async def test_a_cancelled_tool_may_clean_up_with_time(tmp_path: Path) -> None:
    cleaned = False

    async def tidy() -> None:
        nonlocal cleaned
        try:
            await asyncio.sleep(FOREVER_S)
        finally:
            await asyncio.sleep(0.01)
            cleaned = True

    async with running(policy(), tmp_path, {"web/tidy": tidy}) as router:
        task = await start(router, call("web/tidy"))

        router.cancel(only_id(router))

        assert (await refused(task)).code == "tool.canceled"
        assert cleaned
        assert CURRENT.get() is None


async def test_cancelling_an_outer_call_ends_the_inner_one(tmp_path: Path) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(OPEN, audit=audit), tmp_path, {"web/gate": gate}) as router:

        async def outer() -> None:
            await router.call(call("web/gate"))

        router.add_tool("web", "outer", outer)
        task = await start(router, call("web/outer"))
        outer_id = flights(router)[0].request_id

        router.cancel(outer_id)

        assert (await refused(task)).code == "tool.canceled"
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "admitted", "cancelled", "cancelled"]


@pytest.mark.parametrize("outer_ms", [50, 100])
async def test_an_inner_deadline_is_the_inner_calls_affair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outer_ms: int
) -> None:
    clock = Clock(monkeypatch)
    seen: list[str] = []
    async with running(policy(), tmp_path, {"web/gate": Gate()}) as router:

        async def outer() -> str:
            inner = ToolCall("web", "gate", timeout_ms=50)
            with suppress(CallTimedOut):
                await router.call(inner)
            seen.append("went on")
            return "outer"

        router.add_tool("web", "outer", outer)
        task = await start(router, ToolCall("web", "outer", timeout_ms=outer_ms))

        clock.now_ns += 50 * MS
        clock.expire(router, 0)  # both at once if they are the same

        if outer_ms == 100:
            assert await within(task) == "outer"
        else:
            assert (await refused(task)).code == "limit.timeout"
            assert seen == []
        assert_nothing_is_left(router)


async def test_a_job_that_never_began_has_an_end_though_its_grace_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    made = policy(ONE, audit=tmp_path / "audit")
    async with running(made, tmp_path, {"web/echo": echo}) as router:
        job = router.submit(call("web/echo"))
        job.cancel()
        clock.expire(router, 2_000)  # its slot has been given back
        assert used_slots(router) == {}
        task = job._task
        assert task is not None

        task.cancel()  # as whoever awaits it does who is cancelled, before its first step

        await turns()
        assert_nothing_is_left(router)
    assert call_events(tmp_path / "audit") == ["admitted", "cancelled"]
