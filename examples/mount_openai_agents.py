"""The OpenAI Agents SDK under a gate: the second call is refused, and the model reads why.

python examples/mount_openai_agents.py
"""

from __future__ import annotations

import asyncio

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call

from callgate import Policy, Router
from callgate.mounts.openai_agents import guard_agent

POLICY = "version: 1\nagents: {web: {tools: {search: {rate: 1/hour, timeout: 2s}}}}"


@function_tool
async def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


async def main() -> None:
    """Run an agent that calls a tool more often than its policy allows."""
    set_tracing_disabled(True)
    calls = [function_call("search", {"query": "owls"}, call_id=id_) for id_ in "ab"]
    model = ScriptedModel([*([call] for call in calls), [assistant_message("done")]])
    async with Router(Policy.parse(POLICY)) as router:
        agent: Agent[None] = Agent(name="web", model=model, tools=[search])
        result = await Runner.run(guard_agent(router, agent), "go")
    for item in result.new_items:
        if isinstance(item, ToolCallOutputItem):
            print(item.output)
    print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main())
