"""The MCP SDK 2: a real server, and the SDK's client of either era."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp import Client
from mcp.server import MCPServer

from callgate.mounts.mcp_sdk import callgate_middleware
from tests.mounts.conftest import PATIENCE_S, functions_of
from tests.mounts.runtimes import TaskSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router
    from tests.mounts.conftest import Tools


def server_of(
    tools: Tools, router: Router, *, second: Router | None = None, **options: Any
) -> MCPServer:
    routers = [router] if second is None else [router, second]
    gates = [callgate_middleware(each, agent="web", **options) for each in routers]
    server = MCPServer("web", middleware=gates)
    for function in functions_of(tools):
        server.add_tool(function)
    return server


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await client.call_tool(tool, arguments)


class ClientSession(TaskSession):
    """A client of the server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, /, **arguments: Any) -> str:
        return str((await ask(self._client, tool, **arguments)).content[0].text)

    async def offered(self) -> set[str]:
        return {tool.name for tool in (await self._client.list_tools()).tools}


@asynccontextmanager
async def connect(
    router: Router, tools: Tools, *, era: str = "auto", **gate: Any
) -> AsyncIterator[ClientSession]:
    async with Client(server_of(tools, router, **gate), mode=era) as client:
        yield ClientSession(client)
