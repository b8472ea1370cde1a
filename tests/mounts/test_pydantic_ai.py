from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import canaries, leaks
from tests.mounts.conftest import CALLERS, PATIENCE_S, until
from tests.mounts.examples import output_of

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from pydantic_ai import Agent, DeferredToolRequests, ModelRetry
from pydantic_ai.capabilities import AbstractCapability, Hooks
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import CombinedToolset, FunctionToolset

from callgate.mounts.pydantic_ai import CallgateCapability, CallgateToolset, CallRefusedError

if TYPE_CHECKING:
    from callgate import Router
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
WAYS = pytest.mark.parametrize("way", ["capability", "toolset", "combined"])

Call = tuple[str, dict[str, Any]]


class Scripted:
    """A model that says what it is told to, and remembers what it was offered and answered."""

    def __init__(self, *turns: list[Call]) -> None:
        self._turns = list(turns)
        self.offered: list[set[str]] = []
        self.answers: list[ToolReturnPart] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.offered.append({tool.name for tool in info.function_tools})
        self.answers += [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if not self._turns:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(*call) for call in self._turns.pop(0)])


def agent_of(
    tools: Tools | list[Any],
    router: Router,
    *turns: list[Call],
    way: str = "capability",
    output_type: Any = str,
    **options: Any,
) -> tuple[Agent[Any, Any], Scripted]:
    script = Scripted(*turns)
    model = FunctionModel(script)
    functions = tools if isinstance(tools, list) else functions_of(tools)
    if way == "capability":
        gate: CallgateCapability[Any] = CallgateCapability(router, agent="web", **options)
        agent = Agent(model, tools=functions, capabilities=[gate], output_type=output_type)
        return agent, script
    toolset: Any = FunctionToolset(functions)
    if way == "combined":
        toolset = CombinedToolset([toolset])
    guarded = CallgateToolset(toolset, router, agent="web", **options)
    return Agent(model, toolsets=[guarded], output_type=output_type), script


def functions_of(tools: Tools) -> list[Any]:
    made = [getattr(tools, name) for name in dir(tools) if not name.startswith("_")]
    return [function for function in made if callable(function)]


async def run(agent: Agent[Any, Any], **options: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return (await agent.run("go", **options)).output


def text_of(part: ToolReturnPart) -> str:
    return str(part.content)


@WAYS
async def test_an_admitted_call_is_answered_and_named_in_the_audit(
    desk: Desk, tools: Tools, way: str
) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("echo", {"text": "x"})], way=way)
        assert await run(agent) == "done"

    (answer,) = script.answers
    assert (answer.content, answer.outcome) == ("x", "success")
    assert desk.events() == [("admitted", "echo"), ("completed", "echo")]


@WAYS
async def test_a_refusal_is_a_failure_that_a_model_can_read_and_spends_no_retry(
    desk: Desk, tools: Tools, way: str
) -> None:
    turns: list[list[Call]] = [[("limited", {})]] * 4
    async with desk.router() as router:
        agent, script = agent_of(tools, router, *turns, way=way)
        assert await run(agent) == "done"

    refused = script.answers[1:]
    assert [answer.outcome for answer in refused] == ["failed"] * 3
    assert text_of(refused[0]).startswith("rate limit of tool web/limited reached: 1/hour; try")
    assert tools.calls == ["limited"]


@WAYS
async def test_a_call_too_many_at_once_is_refused(desk: Desk, tools: Tools, way: str) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("single", {}), ("single", {})], way=way)
        running = asyncio.create_task(run(agent))
        await until(tools.started.is_set)
        await until(lambda: ("denied", "single") in desk.events())
        tools.free.set()
        await running

    assert [answer.outcome for answer in script.answers] == ["success", "failed"]
    assert text_of(script.answers[1]).startswith("concurrency limit of tool web/single reached")


@WAYS
async def test_a_call_that_takes_too_long_is_cancelled_and_refused(
    desk: Desk, tools: Tools, way: str
) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("slow", {})], way=way)
        await run(agent)

    assert text_of(script.answers[0]) == "web/slow did not answer in time: 50 ms"
    assert tools.cancelled.is_set()
    assert desk.events()[-1] == ("timed_out", "slow")


@WAYS
async def test_cancelling_the_run_cancels_the_work(desk: Desk, tools: Tools, way: str) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("single", {})], way=way)
        running = asyncio.create_task(run(agent))
        await until(tools.started.is_set)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert tools.cancelled.is_set()
        assert router.engine.flights == {}
    assert desk.events()[-1] == ("cancelled", "single")


async def test_a_denied_tool_is_refused_and_not_offered(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("delete_all", {})])
        await run(agent)

    assert text_of(script.answers[0]) == "the policy does not allow web/delete_all"
    assert all("echo" in names and "delete_all" not in names for names in script.offered)
    assert desk.events() == [("denied", "delete_all")]
    assert tools.calls == []


async def test_a_toolset_does_not_have_a_denied_tool(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("delete_all", {})], way="toolset")
        await run(agent)

    assert text_of(script.answers[0]).startswith("Unknown tool name: 'delete_all'")
    assert all("echo" in names and "delete_all" not in names for names in script.offered)
    assert tools.calls == []


async def test_a_toolset_refuses_what_was_denied_after_it_was_offered(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router("shadow") as router, desk.router() as strict:
        agent, script = agent_of(tools, router, [("delete_all", {})], way="toolset")

        @agent.instructions
        async def tighten() -> str:
            await router.reload(strict.policy)
            return ""

        await run(agent)

    assert text_of(script.answers[0]) == "the policy does not allow web/delete_all"
    assert tools.calls == []


@WAYS
async def test_in_shadow_mode_everything_passes_and_is_noted(
    desk: Desk, tools: Tools, way: str
) -> None:
    async with desk.router("shadow") as router:
        agent, script = agent_of(tools, router, [("delete_all", {})], way=way)
        await run(agent)

    assert text_of(script.answers[0]) == "deleted"
    assert all("delete_all" in names for names in script.offered)
    assert ("would_deny", "delete_all") in desk.events()


@WAYS
async def test_a_sync_tool_holds_its_slot_until_its_thread_ends(
    desk: Desk, tools: Tools, way: str
) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("slow_sync", {})], [("slow_sync", {})], way=way)
        await run(agent)
        tools.thread_free.set()
        await until(lambda: ("late", "slow_sync") in desk.events())

    late, held = map(text_of, script.answers)
    assert late == "web/slow_sync did not answer in time: 50 ms"
    assert held.startswith("concurrency limit of tool web/slow_sync reached")
    assert tools.calls == ["slow_sync"]


@WAYS
async def test_a_failure_of_the_tool_passes_unchanged(desk: Desk, tools: Tools, way: str) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("fail", {"text": "its own words"})], way=way)
        with pytest.raises(ValueError, match="its own words"):
            await run(agent)

    assert desk.records()[-1]["code"] == "tool.failed"


@WAYS
async def test_a_tools_own_retry_reaches_the_model(desk: Desk, way: str) -> None:
    def retry() -> str:
        raise ModelRetry("ask me better")

    async with desk.router() as router:
        agent, script = agent_of([retry], router, [("retry", {})], way=way)
        await run(agent)

    (answer,) = script.answers
    assert (answer.content, answer.outcome) == ("ask me better", "retried")


@WAYS
async def test_a_call_that_needs_approval_is_deferred(desk: Desk, way: str) -> None:
    async def buy() -> str:
        raise ApprovalRequired

    async with desk.router() as router:
        agent, _ = agent_of(
            [buy], router, [("buy", {})], way=way, output_type=[str, DeferredToolRequests]
        )
        output = await run(agent)

    assert [call.tool_name for call in output.approvals] == ["buy"]


@dataclass
class Deps:
    user_id: str


@WAYS
@pytest.mark.parametrize("deps", [Deps("alice"), {"user_id": "alice"}])
async def test_the_user_of_the_deps_is_the_caller(
    desk: Desk, tools: Tools, way: str, deps: Any
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("echo", {"text": "x"})], way=way)
        await run(agent, deps=deps)

    assert {record["caller"] for record in desk.records()} == {"alice"}


@WAYS
@CALLERS
async def test_a_name_or_a_function_says_who_calls(
    desk: Desk, tools: Tools, way: str, caller: Any
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("echo", {"text": "x"})], way=way, caller=caller)
        await run(agent)

    assert {record["caller"] for record in desk.records()} == {"alice"}


@WAYS
async def test_the_caller_can_be_told_by_a_function_of_the_run_context(
    desk: Desk, tools: Tools, way: str
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(
            tools, router, [("echo", {"text": "x"})], way=way, caller=lambda ctx: ctx.deps
        )
        await run(agent, deps="alice")

    assert {record["caller"] for record in desk.records()} == {"alice"}


async def test_a_caller_that_cannot_be_told_is_refused(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    def who(_: object) -> str:
        raise ValueError(SECRET.secret)

    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("echo", {"text": "x"})], caller=who)
        await run(agent)

    assert text_of(script.answers[0]) == "callgate failed inside and refused the call"
    assert script.offered[0] == set()
    assert tools.calls == []
    assert leaks([SECRET], repr(script.answers) + caplog.text) == {}


@WAYS
async def test_a_gate_that_fails_lets_nothing_through(
    desk: Desk, tools: Tools, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("echo", {"text": "x"})], way=way)
        monkeypatch.setattr(router.engine.__class__, "begin", None)
        await run(agent)

    assert text_of(script.answers[0]) == "callgate failed inside and refused the call"
    assert tools.calls == []


@WAYS
async def test_a_run_on_another_loop_is_refused(
    desk: Desk, tools: Tools, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("echo", {"text": "x"})], way=way)
        await asyncio.to_thread(asyncio.run, run(agent))

    assert text_of(script.answers[0]) == "callgate failed inside and refused the call"
    assert "another loop" in caplog.text
    assert tools.calls == []


@WAYS
async def test_no_secret_reaches_the_audit_or_a_refusal(desk: Desk, tools: Tools, way: str) -> None:
    secret = SECRET.secret

    async def small(text: str) -> str:
        return text

    turns: list[list[Call]] = [[("echo", {"text": secret})], [("small", {"text": secret * 10})]]
    async with desk.router() as router:
        agent, script = agent_of(
            [*functions_of(tools), small], router, *turns, way=way, caller=lambda _: secret
        )
        await run(agent)

    refused = script.answers[1]
    assert text_of(refused).endswith("at most 64 are allowed")
    assert leaks([SECRET], desk.everything() + repr(refused).encode()) == {}


async def test_the_structure_of_a_refusal_is_there_for_hooks(desk: Desk, tools: Tools) -> None:
    seen: list[str] = []
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute
    async def watch(_: Any, *, handler: Any, args: Any, **__: Any) -> Any:
        try:
            return await handler(args)
        except CallRefusedError as refused:
            seen.append(refused.error.code)
            raise

    async with desk.router() as router:
        script = Scripted([("delete_all", {})])
        gate: CallgateCapability[Any] = CallgateCapability(router, agent="web")
        agent = Agent(FunctionModel(script), tools=functions_of(tools), capabilities=[hooks, gate])
        await run(agent)

    assert seen == ["policy.denied"]


async def test_a_policy_that_denies_nothing_needs_no_hook_on_the_model(desk: Desk) -> None:
    async with desk.router(text="version: 1\n") as router:
        gate: CallgateCapability[Any] = CallgateCapability(router, agent="web")

    assert type(gate).before_model_request is AbstractCapability.before_model_request


def test_a_gate_cannot_come_from_a_spec() -> None:
    assert CallgateCapability.get_serialization_name() is None


def test_the_example_runs() -> None:
    assert output_of("mount_pydantic_ai") == [
        "a page about owls",
        "rate limit of tool web/search reached: 1/hour; try again in 3600.0 s",
        "done",
    ]
