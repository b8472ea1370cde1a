"""The MCP SDK 1: a real server and its client; typed as Any, since the other era is here."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib import import_module
from threading import Timer
from typing import TYPE_CHECKING, Any

from callgate.mounts.mcp_sdk_v1 import guard_server
from tests.mounts.conftest import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router
    from tests.mounts.conftest import Tools

FastMCP: Any = import_module("mcp.server.fastmcp").FastMCP
open_session: Any = import_module("mcp.shared.memory").create_connected_server_and_client_session
types: Any = import_module("mcp.types")

BLOCKED_S = 0.3
"""How long a sync tool may keep the event loop, several times its timeout."""
ASYNC_TOOLS = ("echo", "limited", "single", "slow", "delete_all", "fail", "small", "sized")


def server_of(tools: Tools, router: Router, *, second: Router | None = None, **options: Any) -> Any:
    server = FastMCP("web")
    guard_server(router, server, agent="web", **options)
    if second is not None:
        guard_server(second, server, agent="web", **options)
    for name in ASYNC_TOOLS:
        server.add_tool(getattr(tools, name))
    return server


async def ask(client: Any, tool: str, **arguments: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await client.call_tool(tool, arguments)


class ClientSession:
    """A client of the server."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def call(self, tool: str, /, **arguments: Any) -> str:
        return str((await ask(self._client, tool, **arguments)).content[0].text)

    async def offered(self) -> set[str]:
        return {tool.name for tool in (await self._client.list_tools()).tools}

    async def cancel(self, call: asyncio.Task[str]) -> None:
        """Send the protocol's own cancel, which this client does not send by itself."""
        newest = self._client._request_id - 1  # has no public name
        params = types.CancelledNotificationParams(requestId=newest)
        cancel = types.CancelledNotification(method="notifications/cancelled", params=params)
        await self._client.send_notification(types.ClientNotification(cancel))
        call.cancel()


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[ClientSession]:
    server = server_of(tools, router, **gate)
    server.add_tool(tools.slow_sync)
    # It blocks the very loop that could let it go.
    Timer(BLOCKED_S, tools.thread_free.set).start()
    async with open_session(server) as client:
        yield ClientSession(client)
