"""Pydantic AI 2: an agent whose model is scripted, under a capability or a toolset."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext
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

from callgate.mounts.pydantic_ai import CallgateCapability, CallgateToolset
from tests.mounts.conftest import PATIENCE_S, Tools, functions_of
from tests.mounts.runtimes import TaskSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router

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
    second = options.pop("second", None)
    routers = [router] if second is None else [router, second]
    if way == "capability":
        gates: list[Any] = [CallgateCapability(each, agent="web", **options) for each in routers]
        agent = Agent(model, tools=functions, capabilities=gates, output_type=output_type)
        return agent, script
    toolset: Any = FunctionToolset(functions)
    if way == "combined":
        toolset = CombinedToolset([toolset])
    for each in routers:
        toolset = CallgateToolset(toolset, each, agent="web", **options)
    return Agent(model, toolsets=[toolset], output_type=output_type), script


async def run(agent: Agent[Any, Any], **options: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return (await agent.run("go", **options)).output


class AgentSession(TaskSession):
    """Agents under one policy, one for each call."""

    def __init__(self, router: Router, tools: Tools, **gate: Any) -> None:
        self._agent = partial(agent_of, tools, router, **gate)

    async def call(self, tool: str, /, **arguments: Any) -> str:
        agent, script = self._agent([(tool, arguments)])
        await run(agent)
        (answer,) = script.answers
        return str(answer.content)

    async def suspend(self) -> None:
        async def ask(context: RunContext[Any]) -> str:
            if not context.tool_call_approved:
                raise ApprovalRequired
            return "a person says yes"

        self._asking, self._script = self._agent.func(
            [ask],
            *self._agent.args[1:],
            [("ask", {})],
            output_type=[str, DeferredToolRequests],
            **self._agent.keywords,
        )
        self._paused = await self._asking.run("go")
        assert len(self._paused.output.approvals) == 1

    async def resume(self) -> str:
        (call,) = self._paused.output.approvals
        await self._asking.run(
            message_history=self._paused.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals={call.tool_call_id: True}),
        )
        return str(self._script.answers[0].content)

    async def offered(self) -> set[str]:
        agent, script = self._agent()
        await run(agent)
        return script.offered[-1]


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[AgentSession]:
    yield AgentSession(router, tools, **gate)
