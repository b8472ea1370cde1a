from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from tests.canary import canaries
from tests.mounts.examples import output_of

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from pydantic_ai import Agent, DeferredToolRequests, ModelRetry
from pydantic_ai.capabilities import AbstractCapability, Hooks
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import BinaryContent, ToolReturn
from pydantic_ai.models.function import FunctionModel

from callgate.mounts.pydantic_ai import CallgateCapability, CallRefusedError
from tests.mounts.conftest import POLICY, functions_of
from tests.mounts.runtimes.pydantic_ai import Call, Scripted, agent_of, run

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        ToolReturnPart,
    )

    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
WAYS = pytest.mark.parametrize("way", ["capability", "toolset", "combined"])


def text_of(part: ToolReturnPart) -> str:
    return str(part.content)


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


class Page(BaseModel):
    title: str


SIZED = POLICY.replace("small: {max_input_bytes: 64}", "sized: {max_output_bytes: 4096}")


@pytest.mark.parametrize("times", [1, 2_000])
@pytest.mark.parametrize("kind", ["model", "image", "answer", "text beside it"])
@WAYS
async def test_a_result_is_measured_as_what_the_runtime_makes_of_it(
    desk: Desk, way: str, kind: str, times: int
) -> None:
    text = "owls" * times
    made = {
        "model": Page(title=text),
        "image": BinaryContent(text.encode(), media_type="image/png"),
        "answer": ToolReturn(Page(title=text)),
        "text beside it": ToolReturn("short", content=text),
    }

    async def sized() -> Any:
        return made[kind]

    async with desk.router(text=SIZED) as router:
        agent, script = agent_of([sized], router, [("sized", {})], way=way)
        await run(agent)

    assert ("at most 4096 are allowed" in text_of(script.answers[0])) == (times > 1)
    code = desk.records()[-1].get("code")
    assert code == (None if times == 1 else "limit.output_bytes")


@WAYS
async def test_a_deferred_call_is_suspended(desk: Desk, way: str) -> None:
    async def later() -> str:
        raise CallDeferred

    async with desk.router() as router:
        output_type: Any = [str, DeferredToolRequests]
        agent, _ = agent_of([later], router, [("later", {})], way=way, output_type=output_type)
        output = await run(agent)

    assert [call.tool_name for call in output.calls] == ["later"]
    assert desk.events() == [("admitted", "later"), ("suspended", "later")]


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
async def test_the_caller_can_be_told_by_a_function_of_the_run_context(
    desk: Desk, tools: Tools, way: str
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(
            tools, router, [("echo", {"text": "x"})], way=way, caller=lambda ctx: ctx.deps
        )
        await run(agent, deps="alice")

    assert {record["caller"] for record in desk.records()} == {"alice"}


@WAYS
async def test_a_run_on_another_loop_is_refused(
    desk: Desk, tools: Tools, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk.router() as router:
        agent, script = agent_of(tools, router, [("echo", {"text": "x"})], way=way)
        await asyncio.to_thread(asyncio.run, run(agent))

    assert "the router runs on another event loop; make a router" in text_of(script.answers[0])
    assert "another event loop" in caplog.text
    assert tools.calls == []


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
