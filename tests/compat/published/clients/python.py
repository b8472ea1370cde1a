"""What every client in Python does with a server; needs nothing but the client's package.

python python.py KIND ALIAS MODE CALLS SLOW COMMAND…
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KIND, _ALIAS, MODE, CALLS, _SLOW, *COMMAND = sys.argv[1:]
ENV = dict(os.environ)


def plain(said: Any) -> Any:
    """Return a result as JSON's types."""
    if hasattr(said, "model_dump"):
        return said.model_dump(mode="json")
    if isinstance(said, list | tuple):
        return [plain(each) for each in said]
    return said if isinstance(said, bool | dict | str | None) else str(said)


class Log:
    """What was asked, and what came of it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def ask(self, step: str, work: Any) -> None:
        try:
            self.seen.append([step, plain(await work)])
        except Exception as error:  # noqa: BLE001  # what a client raises is compared
            self.seen.append([step, type(error).__name__, str(error)])


@asynccontextmanager
async def sdk1(log: Log) -> AsyncIterator[Any]:
    """The SDK's 1.x."""
    mcp: Any = import_module("mcp")
    stdio: Any = import_module("mcp.client.stdio")
    where = mcp.StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=ENV)
    async with stdio.stdio_client(where) as (read, write), mcp.ClientSession(read, write) as client:
        await log.ask("initialize", client.initialize())
        yield client
        await log.ask("ping", client.send_ping())


@asynccontextmanager
async def sdk2(log: Log) -> AsyncIterator[Any]:
    """The SDK's 2.x."""
    mcp: Any = import_module("mcp")
    where = mcp.StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=ENV)
    async with mcp.Client(where, mode=MODE) as client:
        log.seen.append(["version", client.protocol_version, plain(client.server_info)])
        yield client
        await log.ask("ping", client.send_ping())


@asynccontextmanager
async def fastmcp(log: Log) -> AsyncIterator[Any]:
    """FastMCP's client."""
    client_of: Any = import_module("fastmcp").Client
    transports: Any = import_module("fastmcp.client.transports")
    async with client_of(transports.StdioTransport(COMMAND[0], COMMAND[1:], env=ENV)) as client:
        log.seen.append(["initialize", plain(client.initialize_result)])
        yield client
        await log.ask("ping", client.ping())


async def main() -> None:
    """Ask for what all of them can ask for, and print it."""
    log = Log()
    async with {"sdk1": sdk1, "sdk2": sdk2, "fastmcp": fastmcp}[KIND](log) as client:
        await log.ask("tools", client.list_tools())
        await log.ask("prompts", client.list_prompts())
        await log.ask("resources", client.list_resources())
        for name, given in json.loads(CALLS):
            await log.ask(name, client.call_tool(name, given))
    sys.stdout.write(json.dumps(log.seen))


asyncio.run(main())
