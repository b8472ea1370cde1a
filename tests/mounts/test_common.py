from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest

from callgate import CallgateError, RateLimited, ToolCall
from callgate.mounts import common
from callgate.mounts.common import MAX_DECLARED, Mount, missing_extra
from callgate.router.flight import Ending
from callgate.router.local import Reading
from tests.canary import canaries, leaks
from tests.mounts.conftest import PATIENCE_S, is_idle, until

if TYPE_CHECKING:
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]

SMALL = """
version: 1
agents: {web: {tools: {"*": {max_output_bytes: 64}}}}
audit: {path: PATH}
"""
FAILS = Reading(lambda result: Ending.FAILED if "bad" in result else Ending.COMPLETED)
ISOLATED = pytest.mark.parametrize(
    "policy",
    [SMALL, SMALL.replace("64}", "64, isolate: task}")],
    ids=["in the caller's task", "isolated"],
)


def code(error: CallgateError) -> str:
    return error.code


def broken(_: object) -> str:
    raise ValueError(SECRET.secret)


async def test_a_result_of_the_tool_passes(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web")
        answer = await mount.run("echo", {"text": "x"}, None, lambda: tools.echo("x"), code)

    assert answer == "x"
    assert desk.events() == [("admitted", None), ("completed", None)]


async def test_a_declared_tool_is_named_in_the_audit(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web")
        mount.declare(["echo"])
        await mount.run("echo", {}, None, lambda: tools.echo("x"), code)

    assert desk.events() == [("admitted", "echo"), ("completed", "echo")]


async def test_declaring_a_tool_twice_keeps_its_lane(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web")
        mount.declare(["echo"])
        await mount.run("echo", {}, None, lambda: tools.echo("x"), code)
        lanes = dict(router._lanes.known)
        mount.declare(["echo"])

        assert router._lanes.known == lanes


async def test_no_more_tools_are_declared_than_the_router_lists(desk: Desk) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web")
        mount.declare(f"tool{number}" for number in range(MAX_DECLARED + 1))
        mount.declare(["one_more"])

        assert len(mount._declared) == MAX_DECLARED


@ISOLATED
async def test_an_exception_of_the_tool_passes_as_it_is(desk: Desk, policy: str) -> None:
    failure = ValueError("mine")

    async def fail() -> None:
        raise failure

    async with desk.router(text=policy) as router:
        with pytest.raises(ValueError, match="mine") as raised:
            await Mount(router, "web").run("fail", {}, None, fail, code)

    assert raised.value is failure
    assert desk.records()[-1]["code"] == "tool.failed"


async def test_a_refusal_that_the_tool_met_itself_is_the_tools_own_failure(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        router.add_tool("web", "limited", tools.limited)
        await router.call(ToolCall("web", "limited"))
        with pytest.raises(RateLimited):
            await Mount(router, "web").run(
                "outer", {}, None, lambda: router.call(ToolCall("web", "limited")), code
            )

    assert desk.records()[-1]["code"] == "tool.failed"


@ISOLATED
async def test_a_result_that_reports_a_failure_is_returned_and_audited_as_one(
    desk: Desk, tools: Tools, policy: str
) -> None:
    async with desk.router(text=policy) as router:
        answer = await Mount(router, "web").run(
            "echo", {}, None, lambda: tools.echo("bad"), code, reading=FAILS
        )

    assert answer == "bad"
    assert desk.events()[-1][0] == "failed"


@ISOLATED
async def test_a_fault_in_telling_a_failure_is_ours(desk: Desk, tools: Tools, policy: str) -> None:
    def look(result: Any) -> Ending:
        raise ValueError(result)

    async with desk.router(text=policy) as router:
        answer = await Mount(router, "web").run(
            "echo", {}, None, lambda: tools.echo("x"), code, reading=Reading(look)
        )
        await until(lambda: is_idle(router))

    assert answer == "internal"
    assert desk.events()[-1][0] == "failed"


@ISOLATED
async def test_a_failure_that_is_too_large_is_not_returned(
    desk: Desk, tools: Tools, policy: str
) -> None:
    async with desk.router(text=policy) as router:
        answer = await Mount(router, "web").run(
            "echo", {}, None, lambda: tools.echo("bad" * 64), code, reading=FAILS
        )
        await until(lambda: is_idle(router))

    assert answer == "limit.output_bytes"
    assert desk.records()[-1]["code"] == "limit.output_bytes"


async def test_nothing_is_measured_unless_a_limit_asks_for_it(desk: Desk, tools: Tools) -> None:
    def measure(_: Any) -> int:
        raise AssertionError

    async with desk.router() as router:
        mount = Mount(router, "web")
        reading = Reading(measure=measure)
        answer = await mount.run("echo", {}, None, lambda: tools.echo("x"), code, reading=reading)

    assert answer == "x"


class AskedError(Exception):
    """Raised to ask a person."""


@ISOLATED
async def test_what_asks_a_person_passes_and_its_call_is_suspended(desk: Desk, policy: str) -> None:
    async def ask() -> None:
        raise AskedError

    async with desk.router(text=policy) as router:
        mount = Mount(router, "web")
        mount.declare(["ask"])
        with pytest.raises(AskedError):
            await mount.run("ask", {}, None, ask, code, reading=Reading(suspends=(AskedError,)))
        await until(lambda: is_idle(router))

    assert desk.events() == [("admitted", "ask"), ("suspended", "ask")]
    assert [desk.records()[-1][key] for key in ("severity", "outcome", "code")] == [
        "info",
        "unknown",
        "tool.suspended",
    ]


@ISOLATED
async def test_a_suspended_call_keeps_its_charge(desk: Desk, policy: str) -> None:
    async def ask() -> None:
        raise AskedError

    limited = policy.replace("max_output_bytes: 64", "max_output_bytes: 64, rate: 1/hour")
    reading = Reading(suspends=(AskedError,))
    async with desk.router(text=limited) as router:
        mount = Mount(router, "web")
        with pytest.raises(AskedError):
            await mount.run("ask", {}, None, ask, code, reading=reading)

        assert await mount.run("ask", {}, None, ask, code, reading=reading) == "limit.rate"


async def test_a_decision_of_the_router_goes_to_refuse(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        answer = await Mount(router, "web").run("delete_all", {}, None, tools.delete_all, code)

    assert answer == "policy.denied"
    assert tools.calls == []


@pytest.mark.parametrize("caller", [broken, lambda _: 7], ids=["raises", "gives no string"])
async def test_a_caller_function_that_fails_lets_nothing_through(
    desk: Desk, tools: Tools, caller: Any
) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web", caller)
        answer = await mount.run("echo", {}, None, lambda: tools.echo("x"), code)

    assert answer == "internal"
    assert tools.calls == []


async def test_a_router_that_fails_lets_nothing_through(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.router() as router:
        monkeypatch.setattr(router.engine, "new_id", None, raising=False)
        answer = await Mount(router, "web").run("echo", {}, None, lambda: tools.echo("x"), code)

    assert answer == "internal"
    assert tools.calls == []


async def test_a_router_that_is_not_running_lets_nothing_through(desk: Desk, tools: Tools) -> None:
    router = desk.router()

    assert await Mount(router, "web").run("echo", {}, None, tools.limited, code) == "internal"
    assert tools.calls == []


async def test_a_fault_is_logged_by_kind_and_place_and_not_in_its_words(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refused: list[CallgateError] = []
    async with desk.router() as router:
        mount = Mount(router, "web", broken)
        await mount.run("echo", {}, None, lambda: tools.echo("x"), refused.append)

    (record,) = [record for record in caplog.records if record.name == "callgate.mounts"]
    assert "ValueError in tests.mounts.test_common:" in record.getMessage()
    shown = f"{caplog.text} {refused[0]} {refused[0].as_dict()}"
    assert leaks([SECRET], shown.encode() + desk.everything()) == {}
    assert refused[0].__context__ is None


async def test_a_function_of_the_context_says_who_calls(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web", lambda context: context["user"])
        await mount.run("echo", {}, {"user": "alice"}, lambda: tools.echo("x"), code)

    assert desk.records()[-1]["caller"] == "alice"


async def test_only_what_the_policy_denies_is_not_offered(desk: Desk) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web", "alice")

        assert mount.offers("echo", None)
        assert not mount.offers("delete_all", None)


async def test_a_tool_that_is_denied_in_shadow_mode_is_offered(desk: Desk) -> None:
    async with desk.router("shadow") as router:
        assert Mount(router, "web").offers("delete_all", None)


async def test_a_reload_changes_what_is_offered(desk: Desk) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web")
        assert not mount.offers("delete_all", None)
        await router.reload(desk.router("shadow").policy)

        assert mount.offers("delete_all", None)


async def test_nothing_is_offered_to_a_caller_that_cannot_be_told(desk: Desk) -> None:
    async with desk.router() as router:
        assert not Mount(router, "web", broken).offers("echo", None)


async def test_names_of_peers_do_not_fill_what_is_remembered(desk: Desk) -> None:
    async with desk.router() as router:
        mount = Mount(router, "web", lambda name: name)
        for number in range(100):
            mount.offers(f"tool{number}", f"caller{number}")

        assert len(mount._offered) == 1


async def test_a_thread_keeps_its_slot_and_its_caller_is_answered_in_time(
    desk: Desk, tools: Tools
) -> None:
    async def sync_tool() -> str:
        return await anyio.to_thread.run_sync(tools.slow_sync)

    async with desk.router() as router:
        mount = Mount(router, "web")
        first = await mount.run("slow_sync", {}, None, sync_tool, code, thread=True)
        second = await mount.run("slow_sync", {}, None, sync_tool, code, thread=True)
        tools.thread_free.set()
        await until(lambda: is_idle(router))
        third = await mount.run("slow_sync", {}, None, sync_tool, code, thread=True)

    assert (first, second, third) == ("limit.timeout", "limit.concurrency", "done")


async def test_an_isolated_thread_keeps_its_slot_beyond_the_grace(desk: Desk, tools: Tools) -> None:
    async def sync_tool() -> str:
        return await anyio.to_thread.run_sync(tools.isolated_sync)

    async with desk.router() as router:
        mount = Mount(router, "web")
        first = await mount.run("isolated_sync", {}, None, sync_tool, code, thread=True)
        router.engine.wake(time.monotonic_ns() + 3600 * 10**9)
        second = await mount.run("isolated_sync", {}, None, sync_tool, code, thread=True)
        tools.thread_free.set()
        await until(lambda: not mount._working)

    assert (first, second) == ("limit.timeout", "limit.concurrency")


async def test_a_cancel_from_outside_leaves_a_thread_its_slot(desk: Desk, tools: Tools) -> None:
    async def sync_tool() -> str:
        return await anyio.to_thread.run_sync(tools.isolated_sync)

    async with desk.router() as router:
        mount = Mount(router, "web")
        task = asyncio.create_task(mount.run("single", {}, None, sync_tool, code, thread=True))
        await until(lambda: "isolated_sync" in tools.calls)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        refused = await mount.run("single", {}, None, tools.single, code)
        tools.thread_free.set()
        await until(lambda: not mount._working)

    assert refused == "limit.concurrency"
    assert desk.events()[1:] == [
        ("cancelled", "single"),
        ("denied", "single"),
        ("late", "single"),
    ]


async def test_async_work_that_might_have_been_a_thread_is_cancelled(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        answer = await Mount(router, "web").run("slow", {}, None, tools.slow, code, thread=True)
        async with asyncio.timeout(PATIENCE_S):
            await tools.cancelled.wait()
        await until(lambda: is_idle(router))

    assert answer == "limit.timeout"
    assert desk.events() == [("admitted", "slow"), ("timed_out", "slow")]


async def test_waiting_for_a_thread_does_not_spin(desk: Desk, tools: Tools) -> None:
    async def sync_tool() -> str:
        return await anyio.to_thread.run_sync(tools.slow_sync)

    async with desk.router() as router:
        await Mount(router, "web").run("slow_sync", {}, None, sync_tool, code, thread=True)
        before = time.thread_time()
        await asyncio.sleep(0.2)
        spent = time.thread_time() - before
        tools.thread_free.set()

    assert spent < 0.1


async def test_what_a_thread_raises_too_late_reaches_nobody(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        tools.slow_sync()
        raise ValueError(SECRET.secret)

    async with desk.router() as router:
        mount = Mount(router, "web")
        await mount.run(
            "slow_sync", {}, None, lambda: anyio.to_thread.run_sync(fail), code, thread=True
        )
        tools.thread_free.set()
        await until(lambda: not mount._working)
        gc.collect()  # asyncio speaks of a task's exception when the task goes

    assert caplog.records == []
    assert leaks([SECRET], caplog.text.encode() + desk.everything()) == {}


async def test_the_runtime_is_asked_for_its_tools_once(desk: Desk) -> None:
    asked = 0

    async def names() -> list[str]:
        nonlocal asked
        asked += 1
        return ["echo"]

    async with desk.router() as router:
        mount = Mount(router, "web")
        await mount.learn(names)
        await mount.learn(names)

        assert asked == 1
        assert mount._declared == {"echo"}


async def test_a_runtime_that_did_not_list_its_tools_is_asked_again_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def names() -> list[str]:
        nonlocal asked
        asked += 1
        raise ValueError(SECRET.secret)

    async with desk.router() as router:
        mount = Mount(router, "web")
        await mount.learn(names)
        await mount.learn(names)
        at_first = asked
        monkeypatch.setattr(common, "monotonic_ns", lambda: 1 << 62)
        await mount.learn(names)

        assert (at_first, asked) == (1, 2)
        assert mount._declared == set()


def test_a_missing_package_names_its_extra() -> None:
    error = missing_extra("callgate.mounts.x", "x 2", "x")

    assert "pip install --upgrade 'callgate[x]'" in str(error)
