"""An agent's process and the frames that come out of it.

Frames are split and read by callgate's own codecs; what they refuse counts as `noise`. The
inbox is bounded: an agent that floods is stopped by its pipe, not by our memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from callgate.contract.results import CheckFailed
from callgate.protocol.framing import Lengths, Lines, Oversized
from callgate.protocol.problem import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_INBOX = 10_000
_READ_BYTES = 65_536
_END_S = 2.0

MessageT = TypeVar("MessageT")
PickedT = TypeVar("PickedT")


class Writer(Protocol):
    """The half of asyncio's StreamWriter that is used."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class _Streams(Protocol):
    """A process that was started with pipes."""

    stdin: Writer
    stdout: asyncio.StreamReader


class AgentProcess(Generic[MessageT]):
    """One run of an agent: send bytes, receive messages. Use `start_mcp` or `start_runtime`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: Writer,
        splitter: Lines | Lengths,
        decode: Callable[[bytes], MessageT],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._splitter = splitter
        self._decode = decode
        self._inbox: deque[MessageT] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self.noise = 0
        """Frames that are no messages."""
        self._task = asyncio.create_task(self._receive())

    @property
    def ended(self) -> bool:
        """Whether the agent has closed its side."""
        return self._ended

    async def _receive(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(_READ_BYTES):
                for frame in self._splitter.feed(data):
                    self._keep(frame)
                self._news.set()
                while len(self._inbox) > MAX_INBOX:
                    self._room.clear()
                    await self._room.wait()
        self._ended = True
        self._news.set()

    def _keep(self, frame: bytes | Oversized) -> None:
        if isinstance(frame, Oversized):
            self.noise += 1
            return
        try:
            self._inbox.append(self._decode(frame))
        except ProtocolError:
            self.noise += 1

    async def send(self, data: bytes) -> None:
        """Write bytes; an agent that does not read them fails the check that waits for it."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(_END_S * 5):
                await self._writer.drain()
        except TimeoutError:
            raise CheckFailed("the agent does not read its input") from None
        except ConnectionError:
            raise CheckFailed(f"no answer {await self._how_it_ended()}") from None

    async def next(self, timeout_s: float) -> MessageT | None:
        """The next message; None if the time is over or the agent has closed its side."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._inbox and not self._ended:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None
        if not self._inbox:
            return None
        message = self._inbox.popleft()
        self._room.set()
        return message

    async def until(
        self, pick: Callable[[MessageT], PickedT | None], timeout_s: float, what: str
    ) -> tuple[PickedT, list[MessageT]]:
        """What `pick` takes first, and at most `MAX_INBOX` messages that came before it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        before: list[MessageT] = []
        while (left_s := deadline - loop.time()) > 0:
            message = await self.next(left_s)
            if message is None:
                break
            picked = pick(message)
            if picked is not None:
                return picked, before
            before.append(message)
            if len(before) > MAX_INBOX:
                raise CheckFailed(f"no {what} among {MAX_INBOX} messages")
        why = f"within {timeout_s:g} s{self._noise()}"
        raise CheckFailed(f"no {what} {await self._how_it_ended() if self._ended else why}")

    def _noise(self) -> str:
        return f"; {self.noise} of its frames are no messages" if self.noise else ""

    async def _how_it_ended(self) -> str:
        why = "before it closed its side"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                why = f"before it ended with exit code {await self._process.wait()}"
                while not self._ended:  # what it has printed is read to the end
                    self._news.clear()
                    await self._news.wait()
        return why + self._noise()

    async def wait_end(self, timeout_s: float) -> bool:
        """Whether the agent closes its side, or exits, in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self._ended and (left_s := deadline - loop.time()) > 0:
            await self.next(left_s)
        return self._ended

    async def close(self, end_s: float = _END_S) -> None:
        """End the process and everything that it started; kill what has not ended in time."""
        self._writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(end_s):
                await self._process.wait()
        if self._process.returncode is None or sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def start_mcp(
    command: Sequence[str], decode: Callable[[bytes], MessageT], *, stderr: int
) -> AgentProcess[MessageT]:
    """An agent on its standard streams."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    streams = cast("_Streams", process)
    return AgentProcess(process, streams.stdout, streams.stdin, Lines(MAX_FRAME_BYTES), decode)


async def start_runtime(
    command: Sequence[str], decode: Callable[[bytes], MessageT], *, token: str, stderr: int
) -> AgentProcess[MessageT]:
    """An agent on a socket of its own."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
            env={
                **os.environ,
                "CALLGATE_CHANNEL_FD": str(theirs.fileno()),
                "CALLGATE_SESSION_TOKEN": token,
            },
        )
    reader, writer = await asyncio.open_connection(sock=ours)
    return AgentProcess(process, reader, writer, Lengths(MAX_FRAME_BYTES), decode)
