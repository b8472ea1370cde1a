"""A server with a bit of everything, on the SDK's 2.x or FastMCP; run by tests as a program."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


async def echo(text: str) -> str:
    return text


async def fail() -> str:
    raise ValueError("this tool fails")


async def large() -> str:
    return "x" * 2_000_000


async def progress(ctx: Any) -> str:
    for step in range(3):
        await ctx.report_progress(step, 3, f"step {step}")
    return "done"


async def elicit(ctx: Any) -> str:
    return str((await ctx.elicit("who are you?", str)).action)


async def hang() -> str:
    await import_module("anyio").sleep_forever()
    return "never"


def memo(n: str) -> str:
    return f"the text of {n}"


def greet(who: str) -> str:
    return f"greet {who}"


def build(kind: str) -> Any:
    """Either of them: their decorators are the same."""
    where, name = ("fastmcp", "FastMCP") if kind == "fastmcp" else ("mcp.server", "MCPServer")
    contexts = "fastmcp" if kind == "fastmcp" else "mcp.server.mcpserver"
    server: Any = getattr(import_module(where), name)("real")
    for function in (progress, elicit):
        function.__annotations__["ctx"] = import_module(contexts).Context
    tools: list[Any] = [echo, fail, large, progress, elicit, hang]
    for tool in tools:
        server.tool()(tool)
    server.resource("memo://{n}")(memo)
    server.prompt()(greet)
    return server


if __name__ == "__main__":
    options: dict[str, Any] = {"show_banner": False} if sys.argv[1] == "fastmcp" else {}
    build(sys.argv[1]).run("stdio", **options)
