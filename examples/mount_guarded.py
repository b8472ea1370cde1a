"""Any function and any block under a gate, whoever calls them.

python examples/mount_guarded.py
"""

from __future__ import annotations

import asyncio

from callgate import CallgateError, Policy, Router, guarded

POLICY = """
version: 1
agents:
  web: {tools: {search: {rate: 1/hour, timeout: 2s}}}
  db: {tools: {query: {timeout: 50ms}}}
"""

router = Router(Policy.parse(POLICY))


@guarded(router, agent="web", caller="alice")
async def search(query: str) -> str:
    """Find pages about something."""
    return f"a page about {query}"


async def report() -> None:
    """Something that takes longer than it may."""
    async with guarded(router, agent="db", name="query"):
        await asyncio.sleep(60)


async def main() -> None:
    """Do more than the policy allows."""
    async with router:
        for work in (search("owls"), search("larks"), report()):
            try:
                print(await work)
            except CallgateError as refused:
                print(f"{refused.code}: {refused}")


if __name__ == "__main__":
    asyncio.run(main())
