"""Calls from threads that have no loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent import futures
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from callgate.mounts import pool, threads
from callgate.mounts.common import Unreachable
from callgate.mounts.threads import RuntimeMount, on_loop
from tests.mounts.conftest import PATIENCE_S, is_idle, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.errors import CallgateError
    from tests.mounts.conftest import Desk, Tools

WHO: ContextVar[str] = ContextVar("who", default="nobody")


def code(error: CallgateError) -> str:
    return error.code


async def called(mount: RuntimeMount, tool: str, work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(mount.run_sync, tool, {}, None, work, code)


async def test_the_context_of_the_caller_reaches_the_work(desk: Desk) -> None:
    async with desk.router() as router:
        WHO.set("me")
        answer = await called(RuntimeMount(router, "web"), "quick", WHO.get)

    assert answer == "me"


async def test_isolated_work_in_a_thread_keeps_its_slot_beyond_the_grace(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        mount = RuntimeMount(router, "web")
        first = await called(mount, "isolated_sync", tools.isolated_sync)
        router.engine.wake(time.monotonic_ns() + 3600 * 10**9)
        second = await called(mount, "isolated_sync", tools.isolated_sync)
        tools.thread_free.set()
        await until(lambda: is_idle(router))

    assert (first, second) == ("limit.timeout", "limit.concurrency")
    assert [event for event, _ in desk.events()] == ["admitted", "timed_out", "denied"]


async def test_a_call_whose_time_is_up_before_it_has_a_thread_never_runs(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MAX_THREADS", 1)
    policy = """
version: 1
agents: {web: {tools: {brief: {timeout: 20ms, concurrency: 1}}}}
"""
    async with desk.router(text=policy) as router:
        mount = RuntimeMount(router, "web")
        holder = asyncio.create_task(called(mount, "slow_sync", tools.slow_sync))
        await until(lambda: tools.calls == ["slow_sync"])
        late = [await called(mount, "brief", partial(tools.calls.append, "x")) for _ in "12"]
        tools.thread_free.set()
        assert await holder == "done"
        again = await called(mount, "brief", lambda: "done")

    assert late == ["limit.timeout", "limit.timeout"]
    assert again == "done"
    assert tools.calls == ["slow_sync"]


async def test_work_for_which_there_is_no_thread_never_runs(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    async with desk.router() as router:
        mount = RuntimeMount(router, "web")
        with monkeypatch.context() as patch:
            patch.setattr(pool, "Thread", partial(SimpleNamespace, start=partial(no_thread, 0)))
            with pytest.raises(RuntimeError, match="new thread"):
                await called(mount, "quick", partial(tools.calls.append, "quick"))
        answer = await called(mount, "quick", lambda: "done")

    assert answer == "done"
    assert tools.calls == []


def test_a_thread_is_used_again_and_let_go_when_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.05)
    threads_of = pool.Pool(2)

    first = threads_of.submit(threading.current_thread).result(PATIENCE_S)
    first.join(PATIENCE_S)
    second = threads_of.submit(threading.current_thread).result(PATIENCE_S)

    assert not first.is_alive()
    assert second is not first


def test_no_more_threads_than_allowed_and_none_that_is_not_needed() -> None:
    threads_of = pool.Pool(2)
    hold = threading.Event()

    waiting = [threads_of.submit(hold.wait) for _ in range(3)]
    last = threads_of.submit(threading.current_thread)
    taken_back = threads_of.submit(threading.current_thread)
    assert taken_back.cancel()
    assert not last.running()
    hold.set()
    assert [one.result(PATIENCE_S) for one in waiting] == [True] * 3
    users = {threads_of.submit(threading.current_thread).result(PATIENCE_S) for _ in range(9)}

    assert len(users | {last.result(PATIENCE_S)}) <= 2


ENDLESS = """
import threading
from callgate.mounts.pool import Pool
begun = threading.Event()
Pool(1).submit(lambda: (begun.set(), threading.Event().wait()))
assert begun.wait(20)
print("ends")
"""


def test_a_tool_that_never_ends_keeps_no_program_from_ending() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDLESS], capture_output=True, timeout=PATIENCE_S, check=True
    )

    assert ended.stdout == b"ends\n"


async def test_a_thread_learns_that_its_call_was_cancelled_with_the_loop(desk: Desk) -> None:
    async def wait() -> None:
        begun.set_result(asyncio.current_task())
        await asyncio.Event().wait()

    begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    async with desk.router() as router:
        with futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(on_loop, router, wait)
            (await begun).cancel()
            await until(waiting.done)

    assert isinstance(waiting.exception(), futures.CancelledError)


async def test_a_thread_learns_that_its_call_was_cancelled_before_it_began(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def note() -> None:
        tools.calls.append("begun")

    monkeypatch.setattr(threads, "LOOK_S", 0.02)
    async with desk.router() as router:
        with futures.ThreadPoolExecutor(1) as pool:
            tasks = asyncio.all_tasks()
            waiting = pool.submit(on_loop, router, note)
            while not (asked := asyncio.all_tasks() - tasks):  # noqa: ASYNC110  # turn by turn
                await asyncio.sleep(0)  # what is asked in this one begins in the next
            asked.pop().cancel()
            await until(waiting.done)

    assert isinstance(waiting.exception(), futures.CancelledError)
    assert tools.calls == []


async def test_what_is_asked_of_a_loop_in_vain_is_not_done_later(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def note() -> None:
        tools.calls.append("late")

    def ask() -> None:
        with pytest.raises(Unreachable, match="blocked"):
            on_loop(router, note)

    monkeypatch.setattr(threads, "START_S", 0.02)
    async with desk.router() as router:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(PATIENCE_S)  # and so blocks the loop
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert tools.calls == []
