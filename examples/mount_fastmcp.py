"""FastMCP under a gate: the second call of a tool is refused, and the client is told why.

python examples/mount_fastmcp.py
"""

from __future__ import annotations

import asyncio

from fastmcp import Client, FastMCP

from callgate import Policy, Router
from callgate.mounts.fastmcp import CallgateMiddleware

POLICY = """
version: 1
agents: {web: {tools: {search: {rate: 1/hour, timeout: 2s}, "delete_*": deny}}}
"""

server = FastMCP("web")


@server.tool
async def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


@server.tool
async def delete_page(name: str) -> str:
    """Delete a page."""
    return f"{name} is gone"


async def main() -> None:
    """Call a tool more often than its policy allows."""
    async with Router(Policy.parse(POLICY)) as router:
        server.add_middleware(CallgateMiddleware(router, agent="web"))
        async with Client(server) as client:
            print([tool.name for tool in await client.list_tools()])
            for query in ("owls", "larks"):
                result = await client.call_tool("search", {"query": query}, raise_on_error=False)
                print(result.data or result.content[0].text)


if __name__ == "__main__":
    asyncio.run(main())
