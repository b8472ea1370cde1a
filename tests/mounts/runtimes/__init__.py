"""The runtimes that the contract is tried under: what each is called, and what it cannot do.

The adapters beside this file are imported when they are used, since their runtimes exclude each
other; what is said here can be read without any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.mounts.contract import Claim, Runtime

if TYPE_CHECKING:
    import asyncio


class TaskSession:
    """What sessions share whose calls are cancelled as a task is."""

    async def cancel(self, call: asyncio.Task[str]) -> None:
        call.cancel()


_ASKS_NOBODY: Final = {Claim.SUSPENDED: "the runtime has no way to ask a person from a tool"}
_HOOKS: Final = {
    **_ASKS_NOBODY,
    Claim.TIMEOUT: "a hook cannot end a tool: the audit says `timed_out`, the tool goes on",
    Claim.THREAD: "a hook cannot answer for a tool that runs",
    Claim.HIDDEN: "no hook sees which tools the model is offered",
}
_MCP_FAILURE: Final = "Error executing tool fail"
_MCP_SDK: Final = ("MCP SDK 2.x, server", "mounts.mcp_sdk.callgate_middleware", "mcp-sdk.md")
_FASTMCP: Final = ("FastMCP 4, server and proxy", "mounts.fastmcp.CallgateMiddleware", "fastmcp.md")
_ASGI: Final = ("any MCP server over HTTP", "mounts.asgi.CallgateASGI", "asgi.md")
_GUARDED: Final = ("any function or block of code", "guarded", "guarded.md")
_IN_PROGRAM: Final = {**_ASKS_NOBODY, Claim.HIDDEN: "a program has no list of tools"}
_PYDANTIC_AI: Final = (
    "Pydantic AI",
    "mounts.pydantic_ai.CallgateCapability`, `CallgateToolset",
    "pydantic-ai.md",
)
_TOOLSET: Final = {
    Claim.DENIED: "a toolset leaves the tool out, so that the runtime itself answers such a call"
}

RUNTIMES: Final = (
    Runtime("mcp_sdk", *_MCP_SDK, cannot=_ASKS_NOBODY, failure="Error executing tool fail"),
    Runtime(
        "mcp_sdk",
        *_MCP_SDK,
        cannot=_ASKS_NOBODY,
        failure="Error executing tool fail",
        options={"era": "legacy"},
    ),
    Runtime(
        "mcp_sdk_v1",
        "MCP SDK 1.x, server",
        "mounts.mcp_sdk_v1.guard_server",
        "mcp-sdk-v1.md",
        home="mcp_v1",
        cannot={**_ASKS_NOBODY, Claim.THREAD: "1.x runs sync tools on the event loop itself"},
    ),
    Runtime("fastmcp", *_FASTMCP, cannot=_ASKS_NOBODY),
    Runtime("fastmcp", *_FASTMCP, cannot=_ASKS_NOBODY, options={"era": "legacy"}),
    Runtime("asgi", *_ASGI, cannot=_ASKS_NOBODY),
    Runtime("asgi", *_ASGI, cannot=_ASKS_NOBODY, options={"stream": True}),
    Runtime("guarded", *_GUARDED, cannot=_IN_PROGRAM),
    Runtime(
        "guarded",
        *_GUARDED,
        cannot={
            **_IN_PROGRAM,
            Claim.THREAD: "the slot is free when the block is left, whatever threads it started",
            Claim.OUTPUT_BYTES: "a block has no result",
        },
        way="block",
        options={"block": True},
    ),
    Runtime(
        "langchain",
        "LangChain, LangGraph",
        "mounts.langchain.CallgateMiddleware",
        "langchain.md",
    ),
    Runtime(
        "openai_agents",
        "OpenAI Agents",
        "mounts.openai_agents.guard_tools`, `guard_agent",
        "openai-agents.md",
        cannot={
            Claim.DENIED: "a denied tool is disabled, so that the SDK itself answers such a call"
        },
    ),
    Runtime("pydantic_ai", *_PYDANTIC_AI, options={"way": "capability"}),
    Runtime(
        "pydantic_ai", *_PYDANTIC_AI, cannot=_TOOLSET, way="toolset", options={"way": "toolset"}
    ),
    Runtime(
        "pydantic_ai", *_PYDANTIC_AI, cannot=_TOOLSET, way="toolset", options={"way": "combined"}
    ),
    Runtime(
        "google_adk",
        "Google ADK",
        "mounts.google_adk.CallgatePlugin",
        "google-adk.md",
        home="google_adk",
    ),
    Runtime(
        "claude_agent",
        "Claude Agent SDK",
        "mounts.claude_agent.callgate_hooks",
        "claude-agent.md",
        prefix="mcp__web__",
        cannot={
            **_HOOKS,
            Claim.CANCEL: "no hook tells of an interrupt; the slot is free at the agent's next"
            " prompt, or after `hold_s`",
        },
    ),
    Runtime(
        "crewai",
        "CrewAI",
        "mounts.crewai.install",
        "crewai.md",
        home="crewai",
        cannot={
            **_HOOKS,
            Claim.ANOTHER_LOOP: "a crew asks the router's loop from a thread: it works anywhere",
            Claim.CANCEL: "a crew cannot be cancelled while a tool runs",
        },
    ),
)
