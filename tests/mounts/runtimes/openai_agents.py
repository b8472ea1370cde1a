"""The OpenAI Agents SDK: a guarded agent whose model is scripted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from callgate.mounts.openai_agents import guard_agent
from tests.mounts.conftest import PATIENCE_S, Tools, functions_of
from tests.mounts.runtimes import TaskSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router

CONFIG = RunConfig(tracing_disabled=True, tool_not_found_behavior="return_error_to_model")

Call = tuple[str, dict[str, Any]]


def step(calls: list[Call], turn: int = 0) -> list[Any]:
    return [
        function_call(name, arguments, call_id=f"call-{turn}-{number}")
        for number, (name, arguments) in enumerate(calls)
    ]


def scripted(*turns: list[Call]) -> ScriptedModel:
    steps = [step(calls, turn) for turn, calls in enumerate(turns)]
    return ScriptedModel([*steps, [assistant_message("done")]])


def function_tools(tools: Tools) -> list[Any]:
    # Without a failure function errors are raised, which is what some claims are about.
    return [function_tool(each, failure_error_function=None) for each in functions_of(tools)]


def agent_of(
    tools: Tools | list[Any], router: Router, model: ScriptedModel, **options: Any
) -> Agent[Any]:
    made = tools if isinstance(tools, list) else function_tools(tools)
    second = options.pop("second", None)
    agent = guard_agent(router, Agent(name="web", model=model, tools=made), **options)
    return agent if second is None else guard_agent(second, agent, **options)


async def run(agent: Agent[Any], **options: Any) -> list[str]:
    """What the model read of each call, in order."""
    options.setdefault("run_config", CONFIG)
    async with asyncio.timeout(PATIENCE_S):
        result = await Runner.run(agent, "go", **options)
    items = result.to_input_list()
    return [item["output"] for item in items if item.get("type") == "function_call_output"]  # type: ignore[misc,typeddict-item]


def offered(model: ScriptedModel) -> list[set[str]]:
    return [{tool.name for tool in call.tools} for call in model.calls]


class AgentSession(TaskSession):
    """Agents under one policy, one for each call."""

    def __init__(self, router: Router, tools: Tools, **gate: Any) -> None:
        self._agent: Any = partial(agent_of, tools, router, **gate)

    async def call(self, tool: str, /, **arguments: Any) -> str:
        (answer,) = await run(self._agent(scripted([(tool, arguments)])))
        return str(answer)

    async def suspend(self) -> None:
        """Ask another agent, as a tool, whose own tool needs an approval."""

        async def buy() -> str:
            return "a person says yes"

        answer = [assistant_message("a person says yes")]
        model = ScriptedModel([step([("buy", {})]), answer])
        inner: Agent[Any] = Agent(
            name="inner", model=model, tools=[function_tool(buy, needs_approval=True)]
        )
        asking = inner.as_tool("ask", "Ask a person.", run_config=CONFIG)
        self._asking = self._agent.func(
            [asking],
            *self._agent.args[1:],
            scripted([("ask", {"input": "go"})]),
            **self._agent.keywords,
        )
        self._paused = await Runner.run(self._asking, "go", run_config=CONFIG)
        assert len(self._paused.interruptions) == 1

    async def resume(self) -> str:
        state = self._paused.to_state()
        state.approve(self._paused.interruptions[0])
        resumed = await Runner.run(self._asking, state, run_config=CONFIG)
        return str(resumed.to_input_list())

    async def offered(self) -> set[str]:
        model = scripted()
        await run(self._agent(model))
        return offered(model)[-1]


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[AgentSession]:
    yield AgentSession(router, tools, **gate)
