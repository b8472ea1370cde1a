"""The Python SDK, 1.x."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from typing import Any

from shared import COMMAND, Log


async def main() -> None:
    mcp: Any = import_module("mcp")
    stdio: Any = import_module("mcp.client.stdio")
    log = Log()
    where = mcp.StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env=dict(os.environ)
    )
    async with stdio.stdio_client(where) as (read, write), mcp.ClientSession(read, write) as client:
        await log.ask("initialize", client.initialize())
        await log.play(client)
        await log.ask("ping", client.send_ping())
    log.tell()


asyncio.run(main())
