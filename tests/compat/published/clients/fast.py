"""FastMCP's client."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from typing import Any

from shared import COMMAND, Log


async def main() -> None:
    fastmcp: Any = import_module("fastmcp")
    transports: Any = import_module("fastmcp.client.transports")
    log = Log()
    where = transports.StdioTransport(COMMAND[0], COMMAND[1:], env=dict(os.environ))
    async with fastmcp.Client(where) as client:
        log.seen.append(["server", str(getattr(client, "initialize_result", None))])
        await log.play(client)
        await log.ask("ping", client.ping())
    log.tell()


asyncio.run(main())
