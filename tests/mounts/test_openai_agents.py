from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from tests.canary import canaries, leaks
from tests.mounts.conftest import PATIENCE_S, POLICY, is_idle, until
from tests.mounts.examples import output_of

pytest.importorskip("agents", reason="openai-agents is not installed")

from agents import (
    Agent,
    FunctionTool,
    ModelBehaviorError,
    RunConfig,
    Runner,
    ToolOutputImage,
    WebSearchTool,
    function_tool,
)
from agents.mcp import MCPServerStdio
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext

from callgate.mounts.openai_agents import Refusal, guard_agent, guard_tools
from tests.mounts.runtimes.openai_agents import (
    CONFIG,
    Call,
    agent_of,
    function_tools,
    offered,
    run,
    scripted,
    step,
)

if TYPE_CHECKING:
    from agents.testing import ModelCall

    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]


async def test_tools_are_guarded_without_an_agent(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        guarded = guard_tools(router, function_tools(tools), agent="web")
        model = scripted([("limited", {})], [("limited", {})])
        _, refused = await run(Agent(name="other", model=model, tools=guarded))

    assert refused.startswith("rate limit of tool web/limited")


async def test_a_denied_tool_is_not_offered(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        model = scripted([("delete_all", {})])
        config = RunConfig(tracing_disabled=True, tool_not_found_behavior="return_error_to_model")
        (answer,) = await run(agent_of(tools, router, model), run_config=config)

    assert "delete_all" in answer
    assert "not found" in answer
    assert all("echo" in names and "delete_all" not in names for names in offered(model))
    assert tools.calls == []


async def test_a_tool_that_was_denied_after_it_was_offered_ends_the_run(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router("shadow") as router, desk.router() as strict:

        async def tighten(_: ModelCall) -> Any:
            await router.reload(strict.policy)
            return step([("delete_all", {})])

        model = ScriptedModel([ModelStep.respond(tighten)])
        with pytest.raises(ModelBehaviorError, match="delete_all is currently disabled"):
            await run(agent_of(tools, router, model))

    assert tools.calls == []


async def test_a_tool_that_a_later_policy_denies_is_refused(desk: Desk, tools: Tools) -> None:
    async with desk.router(text="version: 1\n") as router, desk.router() as strict:

        async def tighten(_: ModelCall) -> Any:
            await router.reload(strict.policy)
            return step([("delete_all", {})])

        model = ScriptedModel([ModelStep.respond(tighten), [assistant_message("done")]])
        (refused,) = await run(agent_of(tools, router, model))

    assert refused == "the policy does not allow web/delete_all"
    assert ("denied", "delete_all") in desk.events()


async def test_a_denied_tool_that_is_invoked_all_the_same_is_refused(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        (tool,) = guard_tools(router, [function_tool(tools.delete_all)], agent="web")
        assert isinstance(tool, FunctionTool)
        context = ToolContext(None, tool_name="delete_all", tool_call_id="1", tool_arguments="{}")
        refused = await tool.on_invoke_tool(context, "{}")

    assert refused == "the policy does not allow web/delete_all"
    assert isinstance(refused, Refusal)
    assert refused.error.code == "policy.denied"
    assert desk.events() == [("denied", "delete_all")]
    assert tools.calls == []


async def test_a_failure_that_the_sdk_explains_to_the_model_is_a_failure_in_the_audit(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        agent = agent_of([function_tool(tools.fail)], router, scripted([("fail", {"text": "x"})]))
        (answer,) = await run(agent)

    assert answer.startswith("An error occurred while running the tool")
    assert desk.events() == [("admitted", "fail"), ("failed", "fail")]


async def test_a_tool_made_by_hand_is_guarded_too(desk: Desk) -> None:
    async def invoke(_: ToolContext[Any], arguments: str) -> str:
        return arguments

    by_hand = FunctionTool("limited", "By hand.", {"properties": {}, "type": "object"}, invoke)
    async with desk.router() as router:
        model = scripted([("limited", {})], [("limited", {})])
        answer, refused = await run(agent_of([by_hand], router, model))

    assert answer == "{}"
    assert refused.startswith("rate limit of tool web/limited")


class Page(BaseModel):
    title: str


SIZED = POLICY.replace("small: {max_input_bytes: 64}", "sized: {max_output_bytes: 4096}")


@pytest.mark.parametrize("times", [1, 2_000])
@pytest.mark.parametrize("kind", ["image", "page", "number", "several"])
async def test_an_output_is_measured_as_what_the_model_will_get(
    desk: Desk, kind: str, times: int
) -> None:
    text = "b3ds" * times
    image = ToolOutputImage(image_url=f"data:image/png;base64,{text}")
    made = {"image": image, "page": Page(title=text), "number": [text], "several": [image] * 2}

    @function_tool
    async def sized() -> Any:
        """Draw."""
        return made[kind]

    async with desk.router(text=SIZED) as router:
        (answer,) = await run(agent_of([sized], router, scripted([("sized", {})])))

    assert ("b3ds" in str(answer)) == (times == 1)
    assert ("at most 4096 are allowed" in str(answer)) == (times > 1)


@pytest.mark.parametrize("times", [1, 2_000])
async def test_an_output_with_a_schema_is_measured_as_its_json(desk: Desk, times: int) -> None:
    @function_tool(output_type=Page)
    async def sized() -> Page:
        """Find a page."""
        return Page(title="owl" * times)

    async with desk.router(text=SIZED) as router:
        (answer,) = await run(agent_of([sized], router, scripted([("sized", {})])))

    assert ("owl" in answer) == (times == 1)


async def test_the_sdks_own_timeout_is_one_in_the_audit(desk: Desk, tools: Tools) -> None:
    tool = function_tool(tools.single, timeout=0.05)
    async with desk.router() as router:
        (answer,) = await run(agent_of([tool], router, scripted([("single", {})])))
        await until(lambda: is_idle(router))

    assert "timed out after 0.05 seconds" in answer
    assert tools.cancelled.is_set()
    assert desk.events() == [("admitted", "single"), ("timed_out", "single")]


async def test_a_cancel_before_the_sdks_own_timeout_is_a_cancel(desk: Desk, tools: Tools) -> None:
    tool = function_tool(tools.single, timeout=PATIENCE_S)
    async with desk.router() as router:
        running = asyncio.create_task(run(agent_of([tool], router, scripted([("single", {})]))))
        await until(tools.started.is_set)
        running.cancel()
        await asyncio.wait((running,), timeout=PATIENCE_S)
        await until(lambda: is_idle(router))

    assert desk.events() == [("admitted", "single"), ("cancelled", "single")]


async def test_a_tool_with_an_output_schema_can_be_refused(desk: Desk) -> None:
    @function_tool(output_type=Page)
    async def limited() -> Page:
        """Find a page."""
        return Page(title="owls")

    async with desk.router() as router:
        model = scripted([("limited", {})], [("limited", {})])
        answer, refused = await run(agent_of([limited], router, model))

    assert "owls" in answer
    assert "rate limit of tool web/limited reached" in refused


async def test_an_approval_is_still_asked_for(desk: Desk) -> None:
    asked: list[dict[str, Any]] = []

    async def needs_approval(_: Any, arguments: dict[str, Any], __: str) -> bool:
        asked.append(arguments)
        return bool(arguments["text"] == "dangerous")

    async def echo(text: str, style: str = "plain") -> str:
        """Say it again."""
        return f"{text} {style}"

    tool = function_tool(needs_approval=needs_approval, strict_mode=False)(echo)
    turns: list[list[Call]] = [
        [("echo", {"text": "x", "style": "plain"})],
        [("echo", {"text": "dangerous", "style": "plain"})],
    ]
    async with desk.router() as router:
        agent = agent_of([tool], router, scripted(*turns))
        result = await Runner.run(agent, "go", run_config=CONFIG)
        state = result.to_state()
        state.approve(result.interruptions[0])
        resumed = await Runner.run(agent, state, run_config=CONFIG)

    assert [call["text"] for call in asked[:2]] == ["x", "dangerous"]
    assert resumed.final_output == "done"
    assert desk.events().count(("completed", "echo")) == 2


async def test_what_the_sdk_cannot_inspect_still_needs_approval_by_hand(desk: Desk) -> None:
    """A default that the model did not write: the policy has not seen what would be called."""

    async def harmless(*_: Any) -> bool:
        return False

    async def echo(text: str, style: str = "plain") -> str:
        """Say it again."""
        return f"{text} {style}"

    tool = function_tool(needs_approval=harmless, strict_mode=False)(echo)
    async with desk.router() as router:
        agent = agent_of([tool], router, scripted([("echo", {"text": "x"})]))
        result = await Runner.run(agent, "go", run_config=CONFIG)

    assert len(result.interruptions) == 1
    assert desk.records() == []


async def test_a_tool_that_its_own_switch_disables_stays_disabled(desk: Desk, tools: Tools) -> None:
    async def never(*_: Any) -> bool:
        return False

    hidden = [
        function_tool(tools.limited, is_enabled=False),
        function_tool(tools.single, is_enabled=never),
    ]
    async with desk.router() as router:
        model = scripted()
        await run(agent_of([*hidden, function_tool(tools.echo)], router, model))

    assert offered(model) == [{"echo"}]


async def test_an_agent_as_a_tool_is_guarded_and_so_are_its_own_tools(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        inner = agent_of(tools, router, scripted([("limited", {})], [("limited", {})]))
        asked = inner.as_tool("expert", "An expert.", run_config=CONFIG)
        outer: Agent[Any] = Agent(
            name="boss", model=scripted([("expert", {"input": "go"})]), tools=[asked]
        )
        (answer,) = await run(guard_agent(router, outer))

    assert answer == "done"
    assert ("denied", "limited") in desk.events()
    assert desk.events()[-1] == ("completed", "expert")


async def test_what_cannot_be_guarded_is_named(desk: Desk) -> None:
    async with desk.router() as router:
        with pytest.raises(ValueError, match="WebSearchTool cannot be guarded"):
            guard_tools(router, [WebSearchTool()], agent="web")


async def test_what_cannot_be_guarded_may_stay_if_somebody_says_so(desk: Desk) -> None:
    search = WebSearchTool()
    async with desk.router() as router:
        kept = guard_tools(router, [search], agent="web", allow_unguarded=True)

    assert kept == [search]


async def test_an_agent_with_mcp_servers_is_named(desk: Desk) -> None:
    server = MCPServerStdio({"command": "true"})
    agent: Agent[Any] = Agent(name="web", mcp_servers=[server])
    async with desk.router() as router:
        with pytest.raises(ValueError, match="callgate run"):
            guard_agent(router, agent)

        assert guard_agent(router, agent, allow_unguarded=True).mcp_servers == [server]


async def test_the_agent_that_was_given_is_not_changed(desk: Desk, tools: Tools) -> None:
    given = function_tools(tools)
    before = [tool.on_invoke_tool for tool in given]
    agent: Agent[Any] = Agent(name="web", tools=given)
    async with desk.router() as router:
        guard_agent(router, agent)

    assert [tool.on_invoke_tool for tool in given] == before
    assert agent.tools == given


@dataclass
class Person:
    user_id: str


@pytest.mark.parametrize("context", [Person("alice"), {"user_id": "alice"}])
async def test_the_user_of_the_context_is_the_caller(
    desk: Desk, tools: Tools, context: Any
) -> None:
    async with desk.router() as router:
        agent = agent_of(tools, router, scripted([("echo", {"text": "x"})]))
        await run(agent, context=context)

    assert {record["caller"] for record in desk.records()} == {"alice"}


async def test_the_caller_can_be_told_by_a_function_of_the_context(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        agent = agent_of(
            tools, router, scripted([("echo", {"text": "x"})]), caller=lambda ctx: ctx.context
        )
        await run(agent, context="alice")

    assert {record["caller"] for record in desk.records()} == {"alice"}


async def test_a_caller_that_cannot_be_told_is_refused(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    def who(context: object) -> str:
        if isinstance(context, ToolContext):
            raise TypeError(SECRET.secret)
        return "alice"

    async with desk.router() as router:
        agent = agent_of(tools, router, scripted([("echo", {"text": "x"})]), caller=who)
        (refused,) = await run(agent)

    assert refused == "callgate failed inside and refused the call"
    assert tools.calls == []
    assert leaks([SECRET], refused + caplog.text) == {}


async def test_a_run_on_another_loop_is_refused(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk.router() as router:
        agent = agent_of(tools, router, scripted([("echo", {"text": "x"})]))
        (refused,) = await asyncio.to_thread(asyncio.run, run(agent))

    assert "the router runs on another event loop; make a router" in refused
    assert "another event loop" in caplog.text
    assert tools.calls == []


async def test_arguments_that_are_no_json_are_the_tools_to_report(desk: Desk, tools: Tools) -> None:
    call = function_call("small", "{" * 100, call_id="call-1")
    small = function_tool(tools.echo, name_override="small")
    async with desk.router() as router:
        model = ScriptedModel([[call], [assistant_message("done")]])
        (refused,) = await run(agent_of([small], router, model))

    assert refused.endswith("at most 64 are allowed")


def test_the_example_runs() -> None:
    assert output_of("mount_openai_agents") == [
        "a page about owls",
        "rate limit of tool web/search reached: 1/hour; try again in 3600.0 s",
        "done",
    ]
