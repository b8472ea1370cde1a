"""The hooks under real crews. CrewAI needs MCP 1, so this runs in `make compat`."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import canaries
from tests.docs.reader import play
from tests.mounts.conftest import PATIENCE_S, until
from tests.mounts.examples import output_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # CrewAI warns of itself
    pytest.importorskip("crewai", reason="crewai is not installed; make compat")
    crewai_hooks: Any = pytest.importorskip("crewai.hooks")

from callgate.mounts.crewai import install
from tests.mounts.runtimes.crewai import Call, Crew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from callgate import Router
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
WAYS = pytest.mark.parametrize("native", [True, False], ids=["native", "react"])

pytestmark = pytest.mark.filterwarnings("ignore")  # CrewAI's own; ours are seen by all other tests

BLOCKED = "Tool execution blocked by hook. Tool: "


class Functions:
    """Sync tools, as CrewAI has them."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.started = threading.Event()

    def all(self) -> list[Callable[..., Any]]:
        tools, started = self._tools, self.started

        def echo(text: str) -> str:
            """Say it again."""
            tools.calls.append("echo")
            return f"echo of {text}"

        def limited() -> str:
            """Once an hour."""
            tools.calls.append("limited")
            return "was let in"

        def single() -> str:
            """One at a time."""
            tools.calls.append("single")
            started.set()
            tools.thread_free.wait(PATIENCE_S)
            return "was let in"

        def slow_sync() -> str:
            """Too slow."""
            started.set()
            return tools.slow_sync()

        def delete_all() -> str:
            """Denied."""
            tools.calls.append("delete_all")
            return "was deleted"

        def fail(text: str) -> str:
            """Fail."""
            raise ValueError(text)

        return [echo, limited, single, slow_sync, delete_all, fail]


@pytest.fixture
def functions(tools: Tools) -> Functions:
    return Functions(tools)


@pytest.fixture
def installed() -> Iterator[Callable[..., Callable[[], None]]]:
    undo: list[Callable[[], None]] = []

    def do(router: Router, **options: Any) -> Callable[[], None]:
        undo.append(install(router, agent="web", **options))
        return undo[-1]

    yield do
    for uninstall in undo:
        uninstall()


Installed = Any


@WAYS
async def test_an_admitted_call_is_answered_and_named_in_the_audit(
    desk: Desk, functions: Functions, installed: Installed, *, native: bool
) -> None:
    async with desk.router() as router:
        installed(router)
        read = await Crew(functions.all(), [("echo", '{"text": "x"}')], native=native).run()

    assert "echo of x" in read
    assert desk.events() == [("admitted", "echo"), ("completed", "echo")]
    assert {record["caller"] for record in desk.records()} == {"alice"}


@WAYS
async def test_a_refusal_is_a_result_that_a_model_can_read(
    desk: Desk, tools: Tools, functions: Functions, installed: Installed, *, native: bool
) -> None:
    async with desk.router() as router:
        installed(router)
        turns: list[list[Call]] = [[("limited", "{}")], [("limited", "{}")]]
        read = await Crew(functions.all(), *turns, native=native).run()

    assert "rate limit of tool web/limited reached: 1/hour; try again in" in read
    assert BLOCKED not in read
    assert tools.calls == ["limited"]


async def test_a_tool_that_takes_too_long_is_noted_and_not_stopped(
    desk: Desk, tools: Tools, functions: Functions, installed: Installed
) -> None:
    async with desk.router() as router:
        installed(router)
        running = asyncio.create_task(Crew(functions.all(), [("slow_sync", "{}")]).run())
        await until(lambda: ("timed_out", "slow_sync") in desk.events())
        read_of_another = await Crew(functions.all(), [("slow_sync", "{}")]).run()
        tools.thread_free.set()
        await running

    assert "concurrency limit of tool web/slow_sync reached" in read_of_another
    assert tools.calls == ["slow_sync"]
    assert desk.events()[-1] == ("late", "slow_sync")


async def test_the_slot_of_a_call_that_never_comes_back_is_given_back(
    desk: Desk, functions: Functions, installed: Installed
) -> None:
    async with desk.router() as router:
        installed(router, hold_s=0.1)
        context = crewai_hooks.ToolCallHookContext("slow_sync", {}, functions.all()[3])
        (before,) = crewai_hooks.get_before_tool_call_hooks()
        await asyncio.to_thread(before, context)
        await until(lambda: ("timed_out", "slow_sync") in desk.events())
        await until(lambda: not any(slots_used(router)))


def slots_used(router: Router) -> list[int]:
    lanes = router._lanes.known.values()
    return [slots.used for lane in lanes for slots in lane.slots]


async def test_a_call_that_its_router_cancels_is_over_although_the_tool_is_not(
    desk: Desk, tools: Tools, functions: Functions, installed: Installed
) -> None:
    async with desk.router() as router:
        installed(router)
        running = asyncio.create_task(Crew(functions.all(), [("single", "{}")]).run())
        await until(functions.started.is_set)
        (request_id,) = router.engine.flights
        router.cancel(request_id)
        await until(lambda: desk.events()[-1] == ("cancelled", "single"))
        tools.thread_free.set()
        read = await running

    assert "was let in" in read
    assert desk.events()[-1] == ("late", "single")


@WAYS
async def test_a_failure_of_the_tool_passes_and_is_a_failure_in_the_audit(
    desk: Desk, functions: Functions, installed: Installed, *, native: bool
) -> None:
    async with desk.router() as router:
        installed(router)
        read = await Crew(
            functions.all(), [("fail", '{"text": "its own words"}')], native=native
        ).run()

    assert "its own words" in read
    assert desk.events()[-1] == ("failed", "fail")


async def test_a_call_that_another_hook_stops_is_not_held(
    desk: Desk, tools: Tools, functions: Functions, installed: Installed
) -> None:
    async with desk.router() as router:
        installed(router)

        def veto(_: Any) -> bool:
            return False

        crewai_hooks.register_before_tool_call_hook(veto)
        try:
            read = await Crew(functions.all(), [("echo", '{"text": "x"}')]).run()
        finally:
            crewai_hooks.unregister_before_tool_call_hook(veto)

        assert router.engine.flights == {}
    assert BLOCKED in read
    assert tools.calls == []
    assert desk.events()[-1] == ("cancelled", "echo")


async def test_after_uninstalling_nothing_is_guarded(
    desk: Desk, functions: Functions, installed: Installed
) -> None:
    async with desk.router() as router:
        installed(router)()
        read = await Crew(functions.all(), [("delete_all", "{}")]).run()

    assert "was deleted" in read
    assert desk.records() == []


async def test_the_caller_can_be_told_by_a_function_of_the_context(
    desk: Desk, functions: Functions, installed: Installed
) -> None:
    async with desk.router() as router:
        installed(router, caller=lambda context: context.agent.backstory)
        await Crew(functions.all(), [("echo", '{"text": "x"}')]).run()

    (caller,) = {record["caller"] for record in desk.records()}
    assert caller.startswith("~")


@pytest.mark.parametrize(
    "part", ["callgate.mounts.hook_calls.HookCalls.enter", "callgate.mounts.crewai._Key"]
)
async def test_a_gate_that_fails_lets_nothing_through(
    desk: Desk,
    tools: Tools,
    functions: Functions,
    installed: Installed,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
) -> None:
    async with desk.router() as router:
        installed(router)
        monkeypatch.setattr(part, None)
        read = await Crew(functions.all(), [("echo", '{"text": "x"}')]).run()

    assert "callgate failed inside and refused the call" in read
    assert tools.calls == []


async def test_an_answer_that_cannot_be_written_down_is_withheld(
    desk: Desk,
    tools: Tools,
    functions: Functions,
    installed: Installed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "no space")

    async with desk.router() as router:
        installed(router)
        running = asyncio.create_task(Crew(functions.all(), [("single", "{}")]).run())
        await until(functions.started.is_set)
        monkeypatch.setattr("callgate.audit.writer.os_write", full)
        tools.thread_free.set()
        read = await running
        monkeypatch.undo()

    assert "the audit log cannot be written" in read
    assert "was let in" not in read


async def test_without_a_running_router_nothing_passes(
    desk: Desk,
    tools: Tools,
    functions: Functions,
    installed: Installed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    installed(desk.router())

    read = await Crew(functions.all(), [("echo", '{"text": "x"}')]).run()

    assert "callgate failed inside and refused the call" in read
    assert "not running" in caplog.text
    assert tools.calls == []


async def test_a_hook_on_the_routers_own_loop_refuses_at_once(
    desk: Desk, functions: Functions, installed: Installed, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk.router() as router:
        installed(router)
        context = crewai_hooks.ToolCallHookContext("echo", {}, functions.all()[0])
        (before,) = crewai_hooks.get_before_tool_call_hooks()
        with pytest.raises(Exception, match="callgate failed inside") as raised:
            before(context)

    assert type(raised.value).__name__ == "HookAborted"
    assert "own loop" in caplog.text


@pytest.mark.parametrize("part", ["internal_error", "check_loop"])
async def test_a_fault_in_what_tells_faults_runs_nothing(
    desk: Desk,
    tools: Tools,
    functions: Functions,
    installed: Installed,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError(SECRET.secret)

    async with desk.router() as router:
        installed(router)
        monkeypatch.setattr("callgate.mounts.common.Mount.internal_error", fails)
        monkeypatch.setattr(f"callgate.mounts.common.Mount.{part}", fails)
        monkeypatch.setattr("callgate.mounts.common.Mount.caller_of", fails)
        read = await Crew(functions.all(), [("echo", '{"text": "x"}')]).run()

    assert "callgate failed inside and refused the call" in read
    assert SECRET.secret not in read
    assert tools.calls == []


def test_the_example_runs() -> None:
    said = output_of("mount_crewai", strict=False)

    assert [line for line in said if "token count" not in line] == [
        "a page about owls",
        "rate limit of tool web/search reached: 1/hour; try again in 3600.0 s",
        "done",
    ]


def test_its_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    play("docs/mounts/crewai.md", tmp_path, strict=False)
