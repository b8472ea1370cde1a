"""The smallest program: one tool, one policy, four calls of which one is refused.

python examples/quickstart.py
"""

from __future__ import annotations

import asyncio

from callgate import CallgateError, Policy, Router, ToolCall

POLICY = """
version: 1
agents:
  web:
    timeout: 2s
    rate: {limit: 60/minute, burst: 3}
"""

router = Router(Policy.parse(POLICY))


@router.tool(agent="web", name="search")
async def search(query: str) -> list[str]:
    """Find pages about something."""
    return [f"a page about {query}"]


async def main() -> None:
    """Call a tool more often than its policy allows."""
    async with router:
        for query in ("owls", "larks", "wrens", "crows"):
            call = ToolCall("web", "search", {"query": query}, caller="alice")
            try:
                print(await router.call(call))
            except CallgateError as refused:
                print(f"{refused.code}: {refused}")


if __name__ == "__main__":
    asyncio.run(main())
