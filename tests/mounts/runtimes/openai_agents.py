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
    agent: Agent[Any] = Agent(name="web", model=model, tools=made)
    return guard_agent(router, agent, **options)


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

    async def offered(self) -> set[str]:
        model = scripted()
        await run(self._agent(model))
        return offered(model)[-1]


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[AgentSession]:
    yield AgentSession(router, tools, **gate)
