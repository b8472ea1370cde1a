"""The tools that misbehave do so, or tests that lean on them would prove nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from callgate.contract import Tools
from callgate.contract.mcp import McpContract, is_answer
from callgate.contract.mcp import Session as McpSession
from callgate.contract.results import CheckFailed, Times, ToolUse
from callgate.contract.runtime import RuntimeContract, is_a
from callgate.contract.runtime import Session as RuntimeSession
from callgate.protocol import mcp, runtime
from callgate.protocol.framing import Lengths
from callgate.protocol.mcp_encode import encode_cancelled
from callgate.protocol.runtime_table import Heartbeat, Hello, Result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AGENT = [sys.executable, str(Path(__file__).parents[2] / "examples" / "reference_agent.py")]
TIMES = Times(heartbeat_ms=30)
DROP = asyncio.subprocess.DEVNULL


@asynccontextmanager
async def mcp_session() -> AsyncIterator[McpSession]:
    session = await McpContract(AGENT, Tools(), TIMES, DROP).open()
    try:
        yield session
    finally:
        await session.agent.close()


@asynccontextmanager
async def runtime_session() -> AsyncIterator[RuntimeSession]:
    command = [*AGENT, "--protocol", "runtime"]
    session = await RuntimeContract(command, Tools(), TIMES, DROP).open()
    try:
        yield session
    finally:
        await session.agent.close()


async def use(session: McpSession, tool: str, **arguments: Any) -> int:
    own_id, line = session.call(ToolUse(tool, arguments))
    await session.agent.send(line)
    return own_id


async def test_it_answers_a_call_that_it_should_have_cancelled() -> None:
    async with mcp_session() as session:
        own_id = await use(session, "ignore_cancel", seconds=0.2)
        await session.agent.send(encode_cancelled(own_id))

        answer = await session.answer(own_id)

        assert len(answer.result)


async def test_it_answers_twice() -> None:
    async with mcp_session() as session:
        own_id = await use(session, "answer_twice")

        first, second = await session.answer(own_id), await session.answer(own_id)

        assert first.result != second.result


async def test_it_floods() -> None:
    async with mcp_session() as session:
        own_id = await use(session, "flood", frames=5000)

        _, before = await session.agent.until(is_answer(own_id), 20, "answer")

        assert len(before) == 5000
        assert all(isinstance(message, mcp.Notification) for message in before)


async def test_it_writes_noise() -> None:
    async with mcp_session() as session:
        own_id = await use(session, "noise", lines=7)
        await session.answer(own_id)

        assert session.agent.noise == 7


async def test_it_never_ends_a_line() -> None:
    async with mcp_session() as session:
        await use(session, "never_end_line", bytes=100_000)
        await use(session, "hello_world")

        assert await session.agent.next(0.3) is None
        assert not session.agent.ended
        assert session.agent._splitter.pending == 100_000


@pytest.mark.parametrize(("arguments", "code"), [({"code": 7}, 7), ({"signal": 9}, -9)])
async def test_it_crashes(arguments: dict[str, int], code: int) -> None:
    async with mcp_session() as session:
        await use(session, "crash", **arguments)

        assert await session.agent.wait_end(10)
        assert await session.agent._process.wait() == code


@pytest.mark.parametrize("how", ["wrong", "unhealthy"])
async def test_it_lies_in_heartbeats(how: str) -> None:
    async with runtime_session() as session:
        call_id, frame = session.call("lie_in_heartbeats", {"how": how, "seconds": 60})
        await session.agent.send(frame)
        await session.result(call_id)
        await session.agent.until(is_a(Heartbeat), 10, "beat that may be an old one")

        (_, beat), _ = await session.agent.until(is_a(Heartbeat), 10, "beat")

        assert (beat.inflight_calls > 1000, beat.status) == (how == "wrong", "ok") or (
            beat.status == how
        )


async def test_its_heart_stops_and_beats_again() -> None:
    async with runtime_session() as session:
        call_id, frame = session.call("lie_in_heartbeats", {"how": "stop", "seconds": 1})
        await session.agent.send(frame)
        await session.result(call_id)
        await session.agent.next(0.1)

        with pytest.raises(CheckFailed):
            await session.agent.until(is_a(Heartbeat), 0.3, "beat")
        await session.agent.until(is_a(Heartbeat), 10, "beat")


async def test_it_breaks_off_in_the_middle_of_a_frame() -> None:
    async with runtime_session() as session:
        _, frame = session.call("never_end_line", {"bytes": 5000})
        await session.agent.send(frame)

        with pytest.raises(CheckFailed):
            await session.agent.until(is_a(Result), 0.3, "result")
        assert session.agent._splitter.pending == 5004


async def test_it_takes_a_socket_by_path(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    greeted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = Lengths(runtime.MAX_FRAME_BYTES)
        while not (frames := splitter.feed(await reader.read(65536))):
            continue
        [frame] = frames
        assert isinstance(frame, bytes)
        greeted.set_result(frame)
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        process = await asyncio.create_subprocess_exec(
            *AGENT,
            "--protocol",
            "runtime",
            "--agent-id",
            "a.b",
            env={**os.environ, "CALLGATE_SOCKET": str(path), "CALLGATE_SESSION_TOKEN": "t"},
        )
        async with asyncio.timeout(20):
            hello = runtime.decode(await greeted, "agent").body
            code = await process.wait()

    assert isinstance(hello, Hello)
    assert (hello.agent_id, hello.session_token) == ("a.b", "t")
    assert code == 1
