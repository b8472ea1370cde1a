"""A client of a few lines: what a server says to one session, told as JSON that can be compared.

It speaks JSON-RPC on the server's stdin and stdout without an SDK, so nothing that a client
library would hide is missed. What depends on time or chance in what it saw is named by the
table (`unstable`) and replaced. Every wait ends with `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PATIENCE_S = 30.0
"""For a whole session; most take two seconds."""
ENDING_S = 3.0
"""For a server to end once nobody talks to it; some never do."""
LINE_BYTES = 16 * 1024 * 1024
PAGES = 20
METHOD_NOT_FOUND = -32601
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"roots": {}},
    "clientInfo": {"name": "compat", "version": "1"},
}
ANSWERS: dict[str, Any] = {"ping": {}, "roots/list": {"roots": []}}
Call = tuple[str, "dict[str, Any]"]


class Session:
    """One session with a server that runs."""

    def __init__(self, server: asyncio.subprocess.Process) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._stdin = server.stdin
        self._stdout = server.stdout
        self.asked = 0
        self.heard: list[Any] = []
        self.late: list[Any] = []
        """Ids of answers that nobody waited for."""

    def send(self, message: Mapping[str, Any]) -> None:
        self._stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def start(self, method: str, params: Mapping[str, Any]) -> int:
        """Send a request; return its id."""
        self.asked += 1
        self.send({"id": self.asked, "method": method, "params": params})
        return self.asked

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a request; return its result or error."""
        wanted = self.start(method, params or {})
        while line := await self._stdout.readline():
            message = self._hear(line)
            if message.get("id") == wanted and "method" not in message:
                return {key: message[key] for key in ("result", "error") if key in message}
        raise EOFError(f"the server ended before it answered {method}")

    async def end(self) -> None:
        """Say that nothing follows, and hear what is still said."""
        self._stdin.close()
        while line := await self._stdout.readline():
            self._hear(line)

    def _hear(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except ValueError:
            return {}  # a server's noise, which the gate does not pass on
        if not isinstance(message, dict):
            return {}
        method = message.get("method")
        if method is None:
            if message.get("id") != self.asked:
                self.late.append(message.get("id"))
            return message
        self.heard.append([method, message.get("params")])
        if "id" in message:
            unknown = {"error": {"code": METHOD_NOT_FOUND, "message": "not known"}}
            answer = {"result": ANSWERS[method]} if method in ANSWERS else unknown
            self.send({"id": message["id"], **answer})
        return message


async def pages(session: Session, method: str) -> list[Any]:
    """Return every page of a list, or the error."""
    seen, cursor = [], None
    for _ in range(PAGES):
        answer = await session.ask(method, {"cursor": cursor} if cursor else {})
        seen.append(answer)
        cursor = answer.get("result", {}).get("nextCursor")
        if cursor is None:
            break
    return seen


async def play(session: Session, calls: Sequence[Call], slow: Call | None) -> dict[str, Any]:
    """Ask for all that the table wants; return what was answered, by step."""
    seen: dict[str, Any] = {"initialize": await session.ask("initialize", HELLO)}
    session.send({"method": "notifications/initialized"})
    for method in ("tools/list", "prompts/list", "resources/list"):
        seen[method] = await pages(session, method)
    bad: Call = ("no such tool", {})
    for number, (name, arguments) in enumerate((*calls, bad)):
        given = {"name": name, "arguments": arguments}
        seen[f"{number} {name}"] = await session.ask("tools/call", given)
    seen["ping"] = await session.ask("ping")
    cancelled = session.asked
    if slow is not None:
        name, arguments = slow
        cancelled = session.start("tools/call", {"name": name, "arguments": arguments})
    params = {"requestId": cancelled, "reason": "enough"}
    session.send({"method": "notifications/cancelled", "params": params})
    seen["ping after a cancel"] = await session.ask("ping")
    seen["tools/list after a cancel"] = await pages(session, "tools/list")
    return seen


async def exchange(
    command: Sequence[str],
    place: Path,
    env: Mapping[str, str],
    calls: Sequence[Call],
    slow: Call | None = None,
) -> tuple[dict[str, Any], list[Any]]:
    """Run the server in `place`; return what it said, and the ids it answered late."""
    with (place / "stderr").open("wb") as errors:
        server = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=LINE_BYTES,
            cwd=place,
            env=dict(env),
        )
    session = Session(server)
    try:
        async with asyncio.timeout(PATIENCE_S):
            seen = await play(session, calls, slow)
        # What is said from here on depends on when the server is stopped.
        seen["heard"] = sorted(session.heard, key=json.dumps)
        try:
            async with asyncio.timeout(ENDING_S):
                await session.end()
                await server.wait()
        except TimeoutError:
            pass
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    return seen, session.late


def stable(seen: Mapping[str, Any], unstable: str) -> dict[str, str]:
    """Return each step as text, with whatever `unstable` matches replaced."""
    texts = {
        step: json.dumps(said, ensure_ascii=False, sort_keys=True) for step, said in seen.items()
    }
    return {step: re.sub(unstable, "*", text) if unstable else text for step, text in texts.items()}
