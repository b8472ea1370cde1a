"""Google ADK 2: a runner with one agent whose model is scripted. It runs in `make compat`."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.mounts.conftest import PATIENCE_S, Tools, functions_of
from tests.mounts.runtimes import TaskSession

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ADK warns of itself
    agents: Any = import_module("google.adk.agents")
    run_configs: Any = import_module("google.adk.agents.run_config")
    models: Any = import_module("google.adk.models")
    runners: Any = import_module("google.adk.runners")
    tool_contexts: Any = import_module("google.adk.tools.tool_context")
    types: Any = import_module("google.genai.types")

from callgate.mounts.google_adk import CallgatePlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router

Call = tuple[str, dict[str, Any]]


class Scripted(models.BaseLlm):  # type: ignore[misc]  # not there where types are checked
    """Says what it is told to, and remembers what it was offered and answered."""

    model: str = "scripted"
    turns: list[list[Call]]
    offered: list[set[str]] = []  # noqa: RUF012  # pydantic copies it
    answers: list[Any] = []  # noqa: RUF012

    async def generate_content_async(self, llm_request: Any, **_: Any) -> AsyncIterator[Any]:
        declared = [
            each for tool in llm_request.config.tools or [] for each in tool.function_declarations
        ]
        self.offered.append({each.name for each in declared})
        for part in llm_request.contents[-1].parts:
            if part.function_response is not None:
                self.answers.append(part.function_response.response)
        if self.turns:
            parts = [
                types.Part(function_call=types.FunctionCall(name=name, args=arguments))
                for name, arguments in self.turns.pop(0)
            ]
        else:
            parts = [types.Part(text="done")]
        yield models.LlmResponse(content=types.Content(role="model", parts=parts))


class Scene:
    """A runner with one agent whose model is scripted."""

    def __init__(
        self,
        tools: Tools | list[Any],
        router: Router,
        *turns: list[Call],
        more: list[Any] | None = None,
        **options: Any,
    ) -> None:
        self.model = Scripted(turns=list(turns))
        self.asked: Any = None
        """The newest question to a person."""
        made = tools if isinstance(tools, list) else functions_of(tools)
        options.setdefault("agent", "web")
        second = options.pop("second", None)
        self.plugin = CallgatePlugin(router, **options)
        others = list(more or [])
        if second is not None:
            others.append(CallgatePlugin(second, name="second", **options))
        agent = agents.LlmAgent(name="finder", model=self.model, tools=made)
        self.runner = runners.InMemoryRunner(agent, plugins=[self.plugin, *others])

    async def run(self, **config: Any) -> list[Any]:
        """What the model read of each call, in order."""
        async with asyncio.timeout(PATIENCE_S):
            session = await self.runner.session_service.create_session(
                app_name=self.runner.app_name, user_id="alice"
            )
            self._session = session.id
            await self._send(types.Part(text="go"), **config)
        return list(self.model.answers)

    async def confirm(self) -> None:
        """Answer for the person who was asked."""
        answer = types.FunctionResponse(
            id=self.asked.id, name=self.asked.name, response={"confirmed": True}
        )
        await self._send(types.Part(function_response=answer))

    async def _send(self, part: Any, **config: Any) -> None:
        async for event in self.runner.run_async(
            user_id="alice",
            session_id=self._session,
            new_message=types.Content(role="user", parts=[part]),
            run_config=run_configs.RunConfig(**config),
        ):
            for call in event.get_function_calls():
                if call.name == "adk_request_confirmation":
                    self.asked = call


class RunnerSession(TaskSession):
    """Runners under one policy, one for each call."""

    def __init__(self, router: Router, tools: Tools, **gate: Any) -> None:
        self._scene: Any = partial(Scene, tools, router, **gate)

    async def call(self, tool: str, /, **arguments: Any) -> str:
        config = {}
        if tool.endswith("_sync"):  # else ADK runs them on the event loop itself
            config["tool_thread_pool_config"] = run_configs.ToolThreadPoolConfig()
        (answer,) = await self._scene([(tool, arguments)]).run(**config)
        (text,) = answer.values()
        return str(text)

    async def suspend(self) -> None:
        async def ask(tool_context: Any) -> str:
            """Ask a person."""
            if tool_context.tool_confirmation is None:
                tool_context.request_confirmation(hint="may I?")
                return "asked"
            return "a person says yes"

        ask.__annotations__["tool_context"] = tool_contexts.ToolContext
        self._asking = self._scene.func(
            [ask], *self._scene.args[1:], [("ask", {})], **self._scene.keywords
        )
        await self._asking.run()
        assert self._asking.asked is not None

    async def resume(self) -> str:
        await self._asking.confirm()
        return str(self._asking.model.answers)

    async def offered(self) -> set[str]:
        scene = self._scene()
        await scene.run()
        return set(scene.model.offered[-1])


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[RunnerSession]:
    yield RunnerSession(router, tools, **gate)
