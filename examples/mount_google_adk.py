"""Google's ADK under a gate: the second call of a tool is refused, and the model reads why.

python examples/mount_google_adk.py
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from callgate import Policy, Router
from callgate.mounts.google_adk import CallgatePlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POLICY = "version: 1\nagents: {web: {tools: {search: {rate: 1/hour, timeout: 2s}}}}"


class Scripted(BaseLlm):
    """Stands for a model: calls the tool twice and says what it read."""

    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: Any, **_: Any
    ) -> AsyncIterator[LlmResponse]:
        """Call a tool, or end."""
        last = llm_request.contents[-1].parts[0].function_response
        if last is not None:
            print(*last.response.values())
        calls = sum(content.role == "model" for content in llm_request.contents)
        call = types.FunctionCall(name="search", args={"query": "owls"})
        part = types.Part(text="done") if calls > 1 else types.Part(function_call=call)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


async def main() -> None:
    """Run an agent that calls a tool more often than its policy allows."""
    agent = LlmAgent(name="web", model=Scripted(), tools=[search])
    async with Router(Policy.parse(POLICY)) as router:
        runner = InMemoryRunner(agent, plugins=[CallgatePlugin(router)])
        session = await runner.session_service.create_session(
            app_name=runner.app_name, user_id="alice"
        )
        message = types.Content(role="user", parts=[types.Part(text="go")])
        async for event in runner.run_async(
            user_id="alice", session_id=session.id, new_message=message
        ):
            if event.is_final_response():
                print(event.content.parts[0].text)


if __name__ == "__main__":
    asyncio.run(main())
