"""The Claude Agent SDK: the real Claude Code, asked by a scripted model on this machine."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import claude_agent_sdk
import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ToolAnnotations,
    create_sdk_mcp_server,
    tool,
)

from callgate.mounts.claude_agent import callgate_hooks
from examples.mount_claude_agent import ScriptedClaude
from tests.mounts.conftest import functions_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from callgate import Router
    from tests.mounts.conftest import Tools

PREFIX = "mcp__web__"
HAS_CLAUDE_CODE = (Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude").exists()

Call = tuple[str, dict[str, Any]]


def sdk_tool(function: Callable[..., Any]) -> Any:
    async def handler(arguments: dict[str, Any]) -> dict[str, Any]:
        if asyncio.iscoroutinefunction(function):
            text = await function(**arguments)
        else:
            text = await asyncio.to_thread(function, **arguments)
        return {"content": [{"type": "text", "text": text}]}

    # Claude Code calls only tools that read several at once.
    notes = ToolAnnotations(readOnlyHint=True)
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return tool(function.__name__, "A tool.", schema, annotations=notes)(handler)


class Conversation:
    """Clients of Claude Code whose models are scripted."""

    def __init__(self, stack: AsyncExitStack, tools: Tools, router: Router) -> None:
        self._stack = stack
        self._home = stack.enter_context(TemporaryDirectory())
        self._tools = [sdk_tool(each) for each in functions_of(tools)]
        self._router = router

    async def run(self, *turns: list[Call], **options: Any) -> list[str]:
        """What the model read of each call, in order."""
        model, client = await self.start(*turns, **options)
        async for _ in client.receive_response():
            pass
        return model.answers

    async def start(
        self, *turns: list[Call], gate: dict[str, Any] | None = None, **options: Any
    ) -> tuple[ScriptedClaude, ClaudeSDKClient]:
        """Ask, and leave the listening to the caller."""
        model = self._stack.enter_context(ScriptedClaude(*turns))
        options.setdefault("allowed_tools", ["mcp__web"])
        options.setdefault(
            "hooks", callgate_hooks(self._router, agent="web", **(gate or {"caller": "alice"}))
        )
        client = ClaudeSDKClient(
            ClaudeAgentOptions(
                mcp_servers={"web": create_sdk_mcp_server("web", tools=self._tools)},
                env=model.environment(self._home),
                cwd=self._home,
                setting_sources=[],
                **options,
            )
        )
        await self._stack.enter_async_context(client)
        await client.query("go")
        return model, client


class ClaudeSession:
    """Conversations under one policy, one for each call."""

    def __init__(
        self, router: Router, tools: Tools, *, second: Router | None = None, **gate: Any
    ) -> None:
        self._made: Any = (tools, router)
        self._hooks = callgate_hooks(router, agent="web", **gate)
        if second is not None:
            for event, matchers in callgate_hooks(second, agent="web", **gate).items():
                self._hooks[event] += matchers
        self._client: ClaudeSDKClient

    async def call(self, tool: str, /, **arguments: Any) -> str:
        async with AsyncExitStack() as stack:
            conversation = Conversation(stack, *self._made)
            call = (PREFIX + tool, arguments)
            model, self._client = await conversation.start([call], hooks=self._hooks)
            async for _ in self._client.receive_response():
                pass
            return "\n".join(model.answers)

    async def offered(self) -> set[str]:
        return {each.__name__ for each in functions_of(self._made[0])}

    async def cancel(self, _: asyncio.Task[str]) -> None:
        """Interrupt, as a user does."""
        await self._client.interrupt()


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[ClaudeSession]:
    if not HAS_CLAUDE_CODE:
        pytest.skip("this build of claude-agent-sdk brings no Claude Code")
    yield ClaudeSession(router, tools, **gate)
