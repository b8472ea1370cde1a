"""CrewAI: a crew of one agent whose model is scripted. It runs in `make compat`."""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from contextlib import ExitStack, asynccontextmanager
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.mounts.conftest import PATIENCE_S, functions_of

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # CrewAI warns of itself
    crewai: Any = import_module("crewai")
    crewai_tools: Any = import_module("crewai.tools")

from callgate.mounts.crewai import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Future

    from callgate import Router
    from tests.mounts.conftest import Tools

Call = tuple[str, str]


class Scripted(crewai.BaseLLM):  # type: ignore[misc]  # not there where types are checked
    """Says what it is told to, and remembers what it read."""

    native: bool = True
    turns: list[list[Call]]
    read: list[str] = []  # noqa: RUF012  # pydantic copies it
    answers: list[str] = []  # noqa: RUF012

    def call(self, messages: Any, **_: Any) -> Any:
        self.read = [str(message["content"]) for message in messages]
        self.answers = [
            str(message["content"]) for message in messages if message["role"] == "tool"
        ]
        if not self.turns:
            return "Thought: I now know the final answer\nFinal Answer: done"
        calls = self.turns.pop(0)
        if not self.native:
            ((name, arguments),) = calls
            return f"Thought: go on\nAction: {name}\nAction Input: {arguments}"
        return [
            {
                "id": f"call-{number}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments) in enumerate(calls)
        ]

    def supports_function_calling(self) -> bool:
        return self.native


class Crew:
    """A crew of one agent whose model is scripted."""

    def __init__(
        self,
        functions: list[Callable[..., Any]],
        *turns: list[Call],
        native: bool = True,
        role: str = "alice",
    ) -> None:
        self.model = Scripted(model="scripted", native=native, turns=list(turns))
        made = [crewai_tools.tool(function.__name__)(function) for function in functions]
        finder = crewai.Agent(
            role=role, goal="g", backstory="b", llm=self.model, tools=made, cache=False
        )
        task = crewai.Task(description="go", expected_output="x", agent=finder)
        self.crew = crewai.Crew(agents=[finder], tasks=[task], cache=False)

    async def run(self) -> str:
        """What the model read in the end, all of it."""
        async with asyncio.timeout(3 * PATIENCE_S):
            await asyncio.to_thread(self.crew.kickoff)
        return "\n".join(self.model.read)


class CrewSession:
    """Crews under one policy, one for each call; their tools work on the router's loop."""

    def __init__(self, tools: Tools) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: set[Future[Any]] = set()
        self._tools = [self._sync(each) for each in functions_of(tools)]

    async def call(self, tool: str, /, **arguments: Any) -> str:
        crew = Crew(self._tools, [(tool, json.dumps(arguments))])
        await crew.run()
        return "\n".join(crew.model.answers)

    async def offered(self) -> set[str]:
        return {tool.__name__ for tool in self._tools}

    async def cancel(self, call: asyncio.Task[str]) -> None:
        call.cancel()  # a crew in a thread has no other

    def close(self) -> None:
        """End what would never end, or its thread would keep the test."""
        for work in self._work:
            work.cancel()

    def _sync(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not asyncio.iscoroutinefunction(function):
            return function

        @wraps(function)
        def call(**arguments: Any) -> Any:
            work = asyncio.run_coroutine_threadsafe(function(**arguments), self._loop)
            self._work.add(work)
            return work.result(PATIENCE_S)

        return call


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[CrewSession]:
    second = gate.pop("second", None)
    session = CrewSession(tools)
    with ExitStack() as stack:
        for each in [router] if second is None else [router, second]:
            stack.callback(install(each, agent="web", **gate))
        stack.callback(session.close)
        yield session
