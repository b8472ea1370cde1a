"""A client of the gate for the scenes: calls that overlap, on the contract's MCP session."""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import json

from callgate.contract.mcp import McpContract, Session, is_answer
from callgate.contract.results import Times, Tools, ToolUse
from callgate.protocol.mcp_encode import encode_cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


END_S = 10.0
"""For the gate to end its agent and close its audit, on a slow machine."""


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

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begun: dict[int, tuple[str, float]] = {}
        self.answers: list[Answer] = []
        """What became of every call so far."""
        self.on_answer: Callable[[], None] = _nothing

    async def tools(self) -> list[str]:
        """Return the names of the tools that are offered."""
        return await self._session.names()

    async def call(self, tool: str, **arguments: Any) -> Answer:
        """Call a tool and return what became of the call."""
        await self.begin(tool, **arguments)
        return (await self.settle())[0]

    async def begin(self, tool: str, **arguments: Any) -> int:
        """Call a tool without waiting; return the call's id."""
        own_id, line = self._session.call(ToolUse(tool, arguments))
        self._begun[own_id] = tool, time.perf_counter()
        await self._session.agent.send(line)
        return own_id

    async def settle(self) -> list[Answer]:
        """Wait for all calls that were begun; return their answers in the order they came."""
        settled = []
        while self._begun:
            message, _ = await self._session.agent.until(
                is_answer(*self._begun), self._session.times.answer_s, "answer"
            )
            tool, since = self._begun.pop(message.id)  # type: ignore[arg-type]  # one of ours
            settled.append(_read(tool, message.result, message.error, since))
            self._add(settled[-1])
        return settled

    async def cancel(self, own_id: int) -> None:
        """Cancel a call; MCP wants no answer to it then."""
        tool, _ = self._begun.pop(own_id)
        await self._session.agent.send(encode_cancelled(own_id))
        self._add(Answer(tool, "cancelled", "by its client; no answer", 0.0))

    def _add(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.on_answer()


def _read(tool: str, result: bytes, error: bytes, since: float) -> Answer:
    seconds = time.perf_counter() - since
    members = json.decode(bytes(result) or b"{}")
    refusal = (members.get("_meta") or {}).get("callgate/error")
    if refusal is None and len(error):
        refusal = json.decode(error)
    if refusal is None:
        return Answer(tool, "ok", members["content"][0]["text"], seconds)
    data = refusal.get("data", refusal)
    return Answer(tool, str(data["code"]), data["message"], seconds, data.get("retry_after_ms"))


@asynccontextmanager
async def gate(policy: Path, stderr: Path) -> AsyncIterator[Client]:
    """Start a gate and yield a client of it; what the gate says of itself goes to a file."""
    command = [sys.executable, "-m", "callgate", "run", "--policy", str(policy)]
    with stderr.open("wb") as said:
        session = await McpContract(command, Tools(), Times(), said.fileno()).open()
        try:
            yield Client(session)
        finally:
            await session.agent.close(END_S)


def _nothing() -> None:
    pass
