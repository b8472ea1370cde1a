"""Pydantic AI under a gate: the second call of a tool is refused, and the model reads why.

python examples/mount_pydantic_ai.py
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from callgate import Policy, Router
from callgate.mounts.pydantic_ai import CallgateCapability

POLICY = "version: 1\nagents: {web: {tools: {search: {rate: 1/hour, timeout: 2s}}}}"


def scripted(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Stands for a model: calls the tool twice and says what it read."""
    answers = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    for answer in answers:
        print(answer.content)
    enough = sum(message.kind == "response" for message in messages) > 1
    part = TextPart("done") if enough else ToolCallPart("search", {"query": "owls"})
    return ModelResponse(parts=[part])


async def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


async def main() -> None:
    """Run an agent that calls a tool more often than its policy allows."""
    async with Router(Policy.parse(POLICY)) as router:
        gate: CallgateCapability[None] = CallgateCapability(router, agent="web")
        agent = Agent(FunctionModel(scripted), tools=[search], capabilities=[gate])
        print((await agent.run("go")).output)


if __name__ == "__main__":
    asyncio.run(main())
