"""The Python SDK, 2.x."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from typing import Any

from shared import COMMAND, MODE, Log


async def main() -> None:
    mcp: Any = import_module("mcp")
    log = Log()
    where = mcp.StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env=dict(os.environ)
    )
    async with mcp.Client(where, mode=MODE) as client:
        log.seen.append([client.protocol_version, client.server_info.model_dump(mode="json")])
        await log.play(client)
        await log.ask("ping", client.send_ping())
    log.tell()


asyncio.run(main())
