"""CrewAI under a gate: the second call of a tool is refused, and the model reads why.

python examples/mount_crewai.py
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"

from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool

from callgate import Policy, Router
from callgate.mounts.crewai import install

POLICY = "version: 1\nagents: {web: {tools: {search: {rate: 1/hour}}}}"


class Scripted(BaseLLM):
    """Stands for a model: calls the tool twice and says what it read."""

    calls: int = 0

    def call(self, messages: Any, **_: Any) -> Any:
        """Call a tool, or end."""
        if messages[-1]["role"] == "tool":
            print(messages[-1]["content"])
        self.calls += 1
        if self.calls > 2:  # noqa: PLR2004  # two calls, then the end
            return "done"
        function = {"name": "search", "arguments": '{"query": "owls"}'}
        return [{"id": f"call-{self.calls}", "type": "function", "function": function}]

    def supports_function_calling(self) -> bool:
        """It calls tools by itself."""
        return True


@tool("search")
def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


async def main() -> None:
    """Run a crew that calls a tool more often than its policy allows, in a thread of its own."""
    finder = Agent(
        role="finder", goal="find", backstory="-", llm=Scripted(model="-"), tools=[search]
    )
    task = Task(description="go", expected_output="pages", agent=finder)
    crew = Crew(agents=[finder], tasks=[task], cache=False)
    async with Router(Policy.parse(POLICY)) as router:
        uninstall = install(router, agent="web")
        print(await asyncio.to_thread(crew.kickoff))
        uninstall()


if __name__ == "__main__":
    asyncio.run(main())
