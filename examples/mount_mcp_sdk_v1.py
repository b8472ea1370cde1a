"""The MCP SDK 1.x under a gate: the second call of a tool is refused, and the client is told why.

python examples/mount_mcp_sdk_v1.py
"""

from __future__ import annotations

import asyncio

from mcp.server.fastmcp import FastMCP
from mcp.shared.memory import create_connected_server_and_client_session as connect

from callgate import Policy, Router
from callgate.mounts.mcp_sdk_v1 import guard_server

POLICY = """
version: 1
agents: {web: {tools: {search: {rate: 1/hour, timeout: 2s}, "delete_*": deny}}}
"""

router = Router(Policy.parse(POLICY))
server = FastMCP("web")
guard_server(router, server, agent="web")


@server.tool()
async def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


@server.tool()
async def delete_page(name: str) -> str:
    """Delete a page."""
    return f"{name} is gone"


async def main() -> None:
    """Call a tool more often than its policy allows."""
    async with router, connect(server) as client:
        print([tool.name for tool in (await client.list_tools()).tools])
        for query in ("owls", "larks"):
            result = await client.call_tool("search", {"query": query})
            print(*(part.text for part in result.content))


if __name__ == "__main__":
    asyncio.run(main())
