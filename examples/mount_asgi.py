"""An MCP server over HTTP under a gate: whatever it is written with, if it is ASGI.

python examples/mount_asgi.py
"""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from mcp import Client
from mcp.server import MCPServer
from mcp_types import TextContent

from callgate import Policy, Router
from callgate.mounts.asgi import CallgateASGI

POLICY = "version: 1\nagents: {web: {tools: {search: {rate: 1/hour, timeout: 2s}}}}"

server = MCPServer("web")


@server.tool()
async def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


async def main() -> None:
    """Serve on a free port, and call a tool more often than its policy allows."""
    async with Router(Policy.parse(POLICY)) as router:
        app = CallgateASGI(server.streamable_http_app(), router, agent="web")
        listener = socket.create_server(("127.0.0.1", 0))
        web = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        serving = asyncio.create_task(web.serve([listener]))
        async with Client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp") as client:
            for query in ("owls", "larks"):
                result = await client.call_tool("search", {"query": query})
                print(*(part.text for part in result.content if isinstance(part, TextContent)))
        web.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
