"""LangChain 1: an agent of `create_agent` whose model is scripted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callgate.mounts.langchain import CallgateMiddleware
from tests.mounts.conftest import PATIENCE_S, Tools, functions_of
from tests.mounts.runtimes import TaskSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from callgate import Router

Call = tuple[str, dict[str, Any]]

THREAD: Any = {"configurable": {"thread_id": "1"}}
START_MESSAGE = {"messages": [{"role": "user", "content": "go"}]}


class Scripted(GenericFakeChatModel):
    """Says what it is told to, and remembers which tools it was offered."""

    offered: list[set[str]] = []  # noqa: RUF012  # pydantic copies it

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Scripted:
        self.offered.append({tool.name for tool in tools})
        return self


def scripted(*turns: list[Call]) -> Scripted:
    def messages() -> Iterator[AIMessage]:
        number = 0
        for turn in turns:
            calls = []
            for name, args in turn:
                number += 1
                calls.append({"name": name, "args": args, "id": f"call-{number}"})
            yield AIMessage(content="", tool_calls=calls)
        yield AIMessage(content="done")

    return Scripted(messages=messages())


def langchain_tools(tools: Tools) -> list[BaseTool]:
    made: list[BaseTool] = []
    for function in functions_of(tools):
        if asyncio.iscoroutinefunction(function):
            made.append(StructuredTool.from_function(coroutine=function))
        else:
            made.append(StructuredTool.from_function(function))
    return made


def agent_of(
    tools: Tools | list[BaseTool], router: Router, *turns: list[Call], **options: Any
) -> tuple[Any, Scripted]:
    model = scripted(*turns)
    checkpointer = options.pop("checkpointer", None)
    context_schema = options.pop("context_schema", None)
    second = options.pop("second", None)
    gates = [CallgateMiddleware(router, agent="web", **options)]
    if second is not None:
        gates.append(CallgateMiddleware(second, agent="web", name="second", **options))
    made = tools if isinstance(tools, list) else langchain_tools(tools)
    agent = create_agent(
        model, made, middleware=gates, checkpointer=checkpointer, context_schema=context_schema
    )
    return agent, model


async def answers(agent: Any, **options: Any) -> list[ToolMessage]:
    async with asyncio.timeout(PATIENCE_S):
        state = await agent.ainvoke(START_MESSAGE, **options)
    return tool_messages(state)


def tool_messages(state: Any) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


class AgentSession(TaskSession):
    """Agents under one policy, one for each call."""

    def __init__(self, router: Router, tools: Tools, **gate: Any) -> None:
        self._agent: Any = partial(agent_of, tools, router, **gate)

    async def call(self, tool: str, /, **arguments: Any) -> str:
        agent, _ = self._agent([(tool, arguments)])
        (answer,) = await answers(agent)
        return str(answer.content)

    async def suspend(self) -> None:
        def ask() -> str:
            """Ask a person."""
            return f"a person says {interrupt('may I?')}"

        tool = StructuredTool.from_function(func=ask)
        self._asking, _ = self._agent.func(
            [tool],
            *self._agent.args[1:],
            [("ask", {})],
            checkpointer=InMemorySaver(),
            **self._agent.keywords,
        )
        paused = await self._asking.ainvoke(START_MESSAGE, THREAD)
        assert paused["__interrupt__"][0].value == "may I?"

    async def resume(self) -> str:
        state = await self._asking.ainvoke(Command(resume="yes"), THREAD)
        return str(tool_messages(state)[0].content)

    async def offered(self) -> set[str]:
        agent, model = self._agent()
        await answers(agent)
        return model.offered[-1] if model.offered else set()


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[AgentSession]:
    yield AgentSession(router, tools, **gate)
