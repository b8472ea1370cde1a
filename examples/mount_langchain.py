"""LangChain under a gate: the second call of a tool is refused, and the model reads why.

python examples/mount_langchain.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from callgate import Policy, Router
from callgate.mounts.langchain import CallgateMiddleware

POLICY = "version: 1\nagents: {web: {tools: {search: {rate: 1/hour, timeout: 2s}}}}"


class Scripted(GenericFakeChatModel):
    """Stands for a model: calls the tool twice, then ends."""

    def bind_tools(self, *_: Any, **__: Any) -> Scripted:
        """The script has its tool calls already."""
        return self


@tool
async def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


async def main() -> None:
    """Run an agent that calls a tool more often than its policy allows."""
    calls = [{"name": "search", "args": {"query": "owls"}, "id": id_} for id_ in "ab"]
    turns = [AIMessage("", tool_calls=[call]) for call in calls]
    model = Scripted(messages=iter([*turns, AIMessage("done")]))
    async with Router(Policy.parse(POLICY)) as router:
        gate = CallgateMiddleware(router, agent="web")
        agent = create_agent(model, [search], middleware=[gate])
        state = await agent.ainvoke({"messages": [{"role": "user", "content": "go"}]})
    for message in state["messages"]:
        if message.type != "human" and message.content:
            print(message.content)


if __name__ == "__main__":
    asyncio.run(main())
