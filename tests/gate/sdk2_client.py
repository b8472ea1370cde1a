"""A client of the SDK's 2.x as a program: tries what a server offers, prints what it saw as JSON.

python sdk2_client.py MODE CALLS COMMAND…   with CALLS a JSON list of [tool, arguments]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from importlib import import_module
from typing import Any

PATIENCE_S = 60.0
PAGES = 20


class Exchange:
    """One session, and all that was seen in it."""

    def __init__(self) -> None:
        self.mcp: Any = import_module("mcp")
        self.types: Any = import_module("mcp.types")
        self.seen: list[Any] = []
        self.heard: list[Any] = []

    async def sample(self, _context: Any, params: Any) -> Any:
        self.heard.append(["asked to sample", params.model_dump(mode="json")])
        content = self.types.TextContent(type="text", text="certainly")
        return self.types.CreateMessageResult(role="assistant", content=content, model="scripted")

    async def elicit(self, _context: Any, params: Any) -> Any:
        self.heard.append(["asked to fill in", params.model_dump(mode="json")])
        return self.types.ElicitResult(action="accept", content={"name": "Ada"})

    async def roots(self, _context: Any) -> Any:
        self.heard.append(["asked for roots", None])
        return self.types.ListRootsResult(roots=[self.types.Root(uri="file:///tmp", name="tmp")])

    async def hear(self, message: Any) -> None:
        params = getattr(message, "params", None)
        said = None if params is None else params.model_dump(mode="json")
        if isinstance(said, dict):
            said.pop("progress_token", None)
            (said.get("meta") or {}).pop("io.modelcontextprotocol/subscriptionId", None)
        self.heard.append([type(message).__name__, said])

    async def tried(self, what: str, work: Any) -> Any:
        try:
            result = await work
        except self.mcp.MCPError as error:
            self.seen.append([what, error.code, error.message])
            return None
        self.seen.append([what, result.model_dump(mode="json")])
        return result

    async def pages(self, what: str, ask: Any) -> None:
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self.tried(what, ask(cursor=cursor))
            cursor = None if page is None else page.next_cursor
            if cursor is None:
                return

    async def listen(self, client: Any, uri: str) -> None:
        """A stream of the newer era."""
        async with client.listen(resource_subscriptions=[uri]) as stream:
            await self.tried("touch", client.call_tool("touch", {"uri": uri}))
            self.seen.append(["news", str(await anext(stream))])

    async def play(self, client: Any, calls: list[tuple[str, dict[str, Any]]]) -> None:
        steps: list[Any] = []

        async def step(done: float, total: float | None, message: str | None) -> None:
            steps.append([done, total, message])

        self.seen.append([client.protocol_version, client.server_info.model_dump(mode="json")])
        await self.pages("tools", client.list_tools)
        for tool, given in calls:
            if tool == "listen":
                if client.protocol_version >= "2026":
                    await self.listen(client, given["uri"])
                continue
            work = client.call_tool(tool, given, progress_callback=step)
            await self.tried(tool, work)
        self.seen.append(["steps", steps])
        if client.server_capabilities.resources is not None:
            await self.pages("resources", client.list_resources)
            await self.pages("templates", client.list_resource_templates)
            await self.tried("read", client.read_resource("memo://a"))
        if client.server_capabilities.prompts is not None:
            await self.pages("prompts", client.list_prompts)
        if client.server_capabilities.completions is not None:
            reference = self.types.PromptReference(type="ref/prompt", name="greet")
            argument = {"name": "who", "value": "A"}
            await self.tried("complete", client.complete(reference, argument))
        if client.protocol_version < "2026":
            await self.tried("ping", client.send_ping())  # what came before it has been heard

    async def run(
        self, mode: str, calls: list[tuple[str, dict[str, Any]]], command: list[str]
    ) -> None:
        where = self.mcp.StdioServerParameters(
            command=command[0], args=command[1:], env=dict(os.environ)
        )
        client = self.mcp.Client(
            where,
            mode=mode,
            sampling_callback=self.sample,
            elicitation_callback=self.elicit,
            list_roots_callback=self.roots,
            message_handler=self.hear,
        )
        async with asyncio.timeout(PATIENCE_S), client:
            await self.play(client, calls)


def main() -> None:
    """Play and print."""
    warnings.simplefilter("ignore")  # the older ways are what is tried
    exchange = Exchange()
    asyncio.run(exchange.run(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]))
    sys.stdout.write(json.dumps({"seen": exchange.seen, "heard": exchange.heard}))


if __name__ == "__main__":
    main()
