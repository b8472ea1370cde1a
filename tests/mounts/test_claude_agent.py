"""The hooks under the real Claude Code, asked by a scripted model on this machine."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.canary import canaries
from tests.mounts.conftest import PATIENCE_S, until
from tests.mounts.examples import output_of

pytest.importorskip("claude_agent_sdk", reason="claude-agent-sdk is not installed")

from claude_agent_sdk import (
    PermissionResultAllow,
    PermissionResultDeny,
)

from callgate.mounts import hook_calls
from callgate.mounts.claude_agent import callgate_hooks
from tests.mounts.runtimes.claude_agent import (
    HAS_CLAUDE_CODE,
    PREFIX,
    Call,
    Conversation,
)

if TYPE_CHECKING:
    from claude_agent_sdk.types import HookCallback

    from callgate import Router
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
CLAUDES_POLICY = """
version: 1
mode: MODE
callers:
  alice: {rate: 1000/second}
defaults: {rate: 1000/second, concurrency: 64}
agents:
  web:
    tools:
      mcp__web__limited: {rate: 1/hour}
      mcp__web__single: {concurrency: 1}
      "mcp__web__delete_*": deny
audit: {path: PATH}
"""

with_claude_code = pytest.mark.skipif(
    not HAS_CLAUDE_CODE, reason="this build of claude-agent-sdk brings no Claude Code"
)


def call(name: str, **arguments: Any) -> Call:
    return PREFIX + name, arguments


class Scene(AsyncExitStack):
    """A router and a session; all of it bounded."""

    def __init__(self, desk: Desk, tools: Tools, mode: str = "enforce") -> None:
        super().__init__()
        self._desk, self._tools, self._mode = desk, tools, mode
        self.router: Router
        self.session: Conversation

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.enter_async_context(asyncio.timeout(3 * PATIENCE_S))
        made = self._desk.router(self._mode, CLAUDES_POLICY)
        self.router = await self.enter_async_context(made)
        self.session = Conversation(self, self._tools, self.router)
        return self


@with_claude_code
async def test_a_tool_that_takes_too_long_is_noted_and_not_stopped(
    desk: Desk, tools: Tools
) -> None:
    single = "mcp__web__single"
    async with Scene(desk, tools) as scene:
        text = CLAUDES_POLICY.replace("concurrency: 1}", "concurrency: 1, timeout: 50ms}")
        await scene.router.reload(desk.router(text=text).policy)
        running = asyncio.create_task(scene.session.run([call("single"), call("single")]))
        await until(lambda: ("timed_out", single) in desk.events())
        await until(lambda: ("denied", single) in desk.events())
        tools.free.set()
        answer, held_back = await running

    assert answer == "done"
    assert "concurrency limit" in held_back
    assert desk.events().count(("late", single)) == 1
    assert not tools.cancelled.is_set()


@with_claude_code
async def test_a_call_that_somebody_interrupted_gives_its_slot_back(
    desk: Desk, tools: Tools
) -> None:
    async with Scene(desk, tools) as scene:
        _, client = await scene.session.start([call("single")], [call("single")])
        await until(tools.started.is_set)
        await client.interrupt()
        async for _ in client.receive_response():
            pass
        assert tools.cancelled.is_set()  # by the SDK, whose tool it is
        tools.free.set()
        await client.query("again")
        async for _ in client.receive_response():
            pass

    assert [event for event, _ in desk.events()] == [
        "admitted",
        "cancelled",
        "admitted",
        "completed",
    ]


@with_claude_code
async def test_a_call_that_a_human_stopped_gives_its_slot_back(desk: Desk, tools: Tools) -> None:
    asked: list[str] = []

    async def permit(name: str, *_: Any) -> PermissionResultAllow | PermissionResultDeny:
        asked.append(name)
        return PermissionResultDeny(message="no") if len(asked) == 1 else PermissionResultAllow()

    tools.free.set()
    async with Scene(desk, tools) as scene:
        stopped, answer = await scene.session.run(
            [call("single")], [call("single")], allowed_tools=[], can_use_tool=permit
        )

    assert stopped == "no"
    assert answer == "done"
    assert [event for event, _ in desk.events()] == [
        "admitted",
        "cancelled",
        "admitted",
        "completed",
    ]


@with_claude_code
async def test_a_hook_that_cannot_answer_blocks_the_tool(desk: Desk, tools: Tools) -> None:
    async with Scene(desk, tools) as scene:
        hooks = callgate_hooks(scene.router, agent="web")

        async def broken(*_: Any) -> Any:
            raise RuntimeError("this process is gone")

        hooks["PreToolUse"][0].hooks[:] = [broken]
        (refused,) = await scene.session.run([call("echo", text="x")], hooks=hooks)

    assert "hook" in refused
    assert tools.calls == []


@with_claude_code
async def test_claude_code_does_not_ask_for_tools_that_are_not_there(
    desk: Desk, tools: Tools
) -> None:
    async with Scene(desk, tools) as scene:
        (answer,) = await scene.session.run([(SECRET.secret.encode().hex(), {})])

    assert "No such tool available" in answer
    assert desk.records() == []


SIZED = CLAUDES_POLICY.replace("tools:\n", "tools:\n      Bash: {max_output_bytes: 2048}\n")


@with_claude_code
@pytest.mark.parametrize("times", [1, 9_000])
async def test_an_answer_of_claude_codes_own_tool_can_be_withheld(
    desk: Desk, tools: Tools, times: int
) -> None:
    async with Scene(desk, tools) as scene:
        await scene.router.reload(desk.router(text=SIZED).policy)
        command = f"head -c {times} /dev/zero | tr '\\0' y"
        (answer,) = await scene.session.run(
            [("Bash", {"command": command})], allowed_tools=["Bash"]
        )

    assert ("at most 2048 are allowed" in answer) == (times > 1)
    assert ("y" * times in answer) == (times == 1)
    assert desk.events()[-1] == ("failed" if times > 1 else "completed", "Bash")


# The rest asks the hooks themselves, as the SDK does.


class Asked:
    """The hooks, with the SDK's inputs."""

    def __init__(self, router: Router, **options: Any) -> None:
        self._hooks = callgate_hooks(router, agent="web", **options)

    def hook(self, event: Any) -> HookCallback:
        (matcher,) = self._hooks[event]
        (hook,) = matcher.hooks
        return hook

    async def ask(self, event: Any, name: str, id_: str = "1", **more: Any) -> Any:
        data: Any = {
            "hook_event_name": event,
            "session_id": "s",
            "transcript_path": "",
            "cwd": "",
            "tool_name": name,
            "tool_input": {},
            "tool_use_id": id_,
            **more,
        }
        return await self.hook(event)(data, id_, {"signal": None})

    async def reason(self, name: str, id_: str = "1", **more: Any) -> str | None:
        """Why a call is denied."""
        said = await self.ask("PreToolUse", name, id_, **more)
        if said == {}:
            return None
        assert said["hookSpecificOutput"]["permissionDecision"] == "deny"
        return str(said["hookSpecificOutput"]["permissionDecisionReason"])


def test_only_a_hook_that_blocks_on_failure_asks(desk: Desk) -> None:
    hooks = callgate_hooks(desk.router(), agent="web")

    (matcher,) = hooks["PreToolUse"]
    assert matcher.on_failure == "block"
    assert matcher.matcher is None


async def test_a_call_that_timed_out_still_holds_its_slot(desk: Desk) -> None:
    async with desk.router() as router:
        asked = Asked(router)
        await asked.reason("slow_sync", "1")
        await until(lambda: ("timed_out", "slow_sync") in desk.events())
        refused = await asked.reason("slow_sync", "2")
        await asked.ask("PostToolUse", "slow_sync", "1", tool_response="y")
        admitted = await asked.reason("slow_sync", "3")

    assert refused is not None
    assert refused.startswith("concurrency limit of tool web/slow_sync")
    assert admitted is None


async def test_the_slot_of_a_call_that_never_comes_back_is_given_back(desk: Desk) -> None:
    async with desk.router() as router:
        asked = Asked(router, hold_s=0.1)
        await asked.reason("slow_sync", "1")
        await until(lambda: ("timed_out", "slow_sync") in desk.events())

        assert await retried(asked, "slow_sync")
        said = await asked.ask("PostToolUse", "slow_sync", "1", tool_response="too late")

    assert said == {}
    assert ("late", "slow_sync") not in desk.events()


async def test_a_call_without_a_timeout_is_held_for_so_long_and_no_longer(desk: Desk) -> None:
    policy = (
        "version: 1\n"
        "defaults: {timeout: unlimited, max_timeout: unlimited, concurrency: 1}\n"
        "audit: {path: PATH}\n"
    )
    async with desk.router(text=policy) as router:
        asked = Asked(router, hold_s=0.05)
        await asked.reason("x", "1")
        refused = await asked.reason("x", "2")
        await until(lambda: "timed_out" in [event for event, _ in desk.events()])

        assert await retried(asked, "x")
    assert refused is not None
    assert refused.startswith("concurrency limit")


async def retried(asked: Asked, name: str) -> bool:
    """Ask until it is let in; bounded."""
    async with asyncio.timeout(PATIENCE_S):
        number = 10
        while await asked.reason(name, str(number)) is not None:
            number += 1
            await asyncio.sleep(0.01)
    return True


async def test_a_hook_that_is_given_up_in_the_queue_leaves_it(desk: Desk) -> None:
    policy = "version: 1\ndefaults: {concurrency: 1, queue: 1}\naudit: {path: PATH}\n"
    async with desk.router(text=policy) as router:
        asked = Asked(router)
        await asked.reason("x", "1")
        second = asyncio.create_task(asked.reason("x", "2"))
        await until(lambda: len(router.engine.flights) == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second

        assert len(router.engine.flights) == 1
        await asked.ask("PostToolUse", "x", "1", tool_response="y")
        assert await asked.reason("x", "3") is None


async def test_a_call_that_its_router_cancels_is_over_although_the_tool_is_not(
    desk: Desk,
) -> None:
    async with desk.router() as router:
        asked = Asked(router)
        await asked.reason("single", "1")
        (request_id,) = router.engine.flights
        router.cancel(request_id)
        refused = await asked.reason("single", "2")
        await asked.ask("PostToolUse", "single", "1", tool_response="y")
        admitted = await asked.reason("single", "3")

    assert refused is not None
    assert admitted is None
    assert [event for event, _ in desk.events()][:4] == ["admitted", "cancelled", "denied", "late"]


@pytest.mark.parametrize(("event", "whose"), [("Stop", {}), ("SubagentStop", {"agent_id": "sub"})])
async def test_the_end_of_an_agent_ends_its_calls_and_no_others(
    desk: Desk, event: str, whose: dict[str, str]
) -> None:
    async with desk.router() as router:
        asked = Asked(router)
        await asked.reason("echo", "1")
        await asked.reason("echo", "2", agent_id="sub")
        await asked.reason("echo", "3", session_id="other")
        await asked.ask(event, "", **whose)

        assert len(router.engine.flights) == 2
    assert [event for event, _ in desk.events()][3] == "cancelled"


async def test_calls_for_one_prompt_do_not_end_each_other(desk: Desk) -> None:
    async with desk.router() as router:
        asked = Asked(router)
        await asked.reason("echo", "1", prompt_id="p")
        await asked.reason("echo", "2", prompt_id="p")
        await asked.reason("echo", "3", prompt_id="q", agent_id="sub")

        assert len(router.engine.flights) == 3


async def test_a_second_call_with_the_same_id_ends_the_first(desk: Desk) -> None:
    async with desk.router() as router:
        asked = Asked(router)
        await asked.reason("echo", "1")
        await asked.reason("echo", "1")

        assert len(router.engine.flights) == 1


async def test_an_answer_to_a_call_that_was_refused_changes_nothing(desk: Desk) -> None:
    async with desk.router() as router:
        asked = Asked(router)
        await asked.reason("delete_all")
        said = await asked.ask("PostToolUse", "delete_all", tool_response="y")

    assert said == {}
    assert desk.events() == [("denied", "delete_all")]


async def test_more_calls_than_can_be_held_are_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hook_calls, "MAX_HELD", 1)
    async with desk.router() as router:
        asked = Asked(router)
        await asked.reason("echo", "1")
        refused = await asked.reason("echo", "2")

    assert refused is not None
    assert refused.startswith("callgate failed inside and refused the call: ")
    assert "have not come back" in caplog.text


async def test_an_end_that_cannot_be_written_stops_the_agent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "no space")

    async with desk.router() as router:
        asked = Asked(router)
        await asked.reason("echo")
        monkeypatch.setattr("callgate.audit.writer.os_write", full)
        said = await asked.ask("PostToolUse", "echo", tool_response="y")
        refused = await asked.reason("echo", "2")
        monkeypatch.undo()

    assert said["continue_"] is False
    assert said["stopReason"].startswith("the audit log cannot be written")
    assert refused == said["stopReason"]


async def test_the_caller_can_be_told_by_a_function_of_the_hooks_input(desk: Desk) -> None:
    async with desk.router() as router:
        asked = Asked(router, caller=lambda data: data.get("agent_type"))
        await asked.reason("echo", "1", agent_type="alice")
        await asked.reason("echo", "2")

    assert [r["caller"] for r in desk.records() if r["event"] == "tool.call.admitted"] == [
        "alice",
        "anonymous",
    ]


async def test_a_router_that_is_not_running_refuses(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    refused = await Asked(desk.router()).reason("echo")

    assert refused is not None
    assert refused.startswith("callgate failed inside and refused the call: ")
    assert "not running" in caplog.text


def test_a_hold_has_a_bound(desk: Desk) -> None:
    with pytest.raises(ValueError, match="hold_s"):
        callgate_hooks(desk.router(), agent="web", hold_s=0)


@with_claude_code
def test_the_example_runs() -> None:
    first, second, third = output_of("mount_claude_agent")

    assert (first, third) == ("a page about owls", "done")
    assert "rate limit of tool claude/mcp__web__search reached: 1/hour; try again in" in second


@pytest.mark.parametrize(
    "answer",
    [
        {"filenames": [f"{number}.txt" for number in range(1_000)]},
        {"type": "image", "file": {"base64": "b3ds" * 1_000}},
        ["y" * 3] * 1_000,
    ],
)
async def test_an_answer_that_cannot_be_replaced_stops_the_agent(desk: Desk, answer: Any) -> None:
    async with desk.router(text=SIZED) as router:
        asked = Asked(router)
        assert await asked.reason("Bash") is None
        said = await asked.ask("PostToolUse", "Bash", tool_response=answer)

    assert said["continue_"] is False
    assert "at most 2048 are allowed" in said["stopReason"]
