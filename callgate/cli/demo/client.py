"""A small MCP client on a gate's stdio: what the demonstration's scenes are played with."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

LINE_BYTES = 64 * 1024 * 1024
"""asyncio's own limit for a line would end the stream at 64 KiB."""
ANSWER_S = 30.0
END_S = 10.0


class GateEnded(Exception):
    """The gate has gone before its client."""


class Answer(NamedTuple):
    """What became of a call."""

    tool: str
    code: str
    """`ok`, `cancelled`, or the gate's error code."""
    text: str
    seconds: float
    retry_after_ms: int | None = None


class Client:
    """One session with the gate."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the gate needs pipes")
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tools: dict[int, str] = {}
        self.answers: list[Answer] = []
        """What became of every call so far."""
        self.on_answer: Callable[[], None] = _nothing
        self._reading = asyncio.create_task(self._read())

    async def open(self) -> list[str]:
        """Shake hands; the tools that are offered."""
        client = {"name": "demo", "version": "1"}
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        await self.request("initialize", about)
        self._send({"method": "notifications/initialized"})
        listed = await self.request("tools/list", {})
        return [tool["name"] for tool in listed["result"]["tools"]]

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask and wait for the answer."""
        return await self._answer(self._ask(method, params))

    async def call(self, tool: str, **arguments: Any) -> Answer:
        """Call a tool."""
        return await self.settle(self.begin(tool, **arguments), time.perf_counter())

    def begin(self, tool: str, **arguments: Any) -> int:
        """Call a tool and do not wait; the call's id."""
        own_id = self._ask("tools/call", {"name": tool, "arguments": arguments})
        self._tools[own_id] = tool
        return own_id

    async def settle(self, own_id: int, since: float) -> Answer:
        """Wait for a call that was begun."""
        message = await self._answer(own_id)
        seconds = time.perf_counter() - since
        result = message.get("result") or {}
        error = (result.get("_meta") or {}).get("callgate/error") or message.get("error")
        tool = self._tools.pop(own_id)
        if error is None:
            return self._settled(Answer(tool, "ok", result["content"][0]["text"], seconds))
        data = error.get("data", error)
        text, retry_after_ms = data["message"], data.get("retry_after_ms")
        return self._settled(Answer(tool, str(data["code"]), text, seconds, retry_after_ms))

    def cancel(self, own_id: int) -> None:
        """Cancel a call; MCP wants no answer to it then."""
        self._waiting.pop(own_id, None)
        self._send({"method": "notifications/cancelled", "params": {"requestId": own_id}})
        self._settled(Answer(self._tools.pop(own_id), "cancelled", "by its client; no answer", 0.0))

    async def close(self) -> None:
        """Say goodbye as MCP has it: close the gate's stdin."""
        self._stdin.close()
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading

    def _settled(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        self.on_answer()
        return answer

    def _ask(self, method: str, params: dict[str, Any]) -> int:
        self._last_id += 1
        self._waiting[self._last_id] = asyncio.get_running_loop().create_future()
        self._send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def _send(self, message: dict[str, Any]) -> None:
        self._stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _answer(self, own_id: int) -> dict[str, Any]:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._waiting[own_id]
        finally:
            self._waiting.pop(own_id, None)

    async def _read(self) -> None:
        while line := await self._stdout.readline():
            message = json.loads(line)
            waiting = self._waiting.get(message.get("id"))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(GateEnded())


@asynccontextmanager
async def gate(policy: Path, stderr: Path) -> AsyncIterator[Client]:
    """A gate with a client on it; what it says of itself goes to a file."""
    with stderr.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "callgate",
            "run",
            "--policy",
            str(policy),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            limit=LINE_BYTES,
        )
        client = Client(process)
        try:
            yield client
        finally:
            await client.close()
            try:
                async with asyncio.timeout(END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def _nothing() -> None:
    pass
