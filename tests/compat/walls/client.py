"""A client in a few lines: one server, some requests, what came back."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    Calls = Sequence[tuple[str, dict[str, Any]]]

PATIENCE_S = 90.0
"""For one server; most take two seconds."""
LINE_BYTES = 16 * 1024 * 1024
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "walls", "version": "1"},
}


async def exchange(command: Sequence[str], calls: Calls) -> dict[str, Any]:
    """Return what the server answered to initialize, tools/list and these calls."""
    server = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=LINE_BYTES,
        env=dict(os.environ),
    )
    stdin, stdout = server.stdin, server.stdout
    assert stdin is not None
    assert stdout is not None
    asked = 0

    async def ask(method: str, params: dict[str, Any]) -> Any:
        nonlocal asked
        asked += 1
        tell(method, params, id=asked)
        while line := await stdout.readline():
            said = json.loads(line)
            if said.get("id") == asked and "method" not in said:
                return said.get("result", said.get("error"))
        raise EOFError(f"no answer to {method}")

    def tell(method: str, params: dict[str, Any], **more: int) -> None:
        frame = {"jsonrpc": "2.0", "method": method, "params": params, **more}
        stdin.write(json.dumps(frame).encode() + b"\n")

    try:
        async with asyncio.timeout(PATIENCE_S):
            seen = {"initialize": await ask("initialize", HELLO)}
            tell("notifications/initialized", {})
            seen["tools"] = await ask("tools/list", {})
            for number, (name, arguments) in enumerate(calls):
                answer = await ask("tools/call", {"name": name, "arguments": arguments})
                seen[f"{number} {name}"] = answer
            stdin.close()
            await server.wait()
            return seen
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
