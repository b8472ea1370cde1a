"""The pipes of one run, joined to a peer.

An agent that speaks MCP has its protocol on stdin and stdout; one of the runtime protocol has
a socket for it, and what it prints is only read so that it does not block.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from callgate.gate.feed import Feed
from callgate.gate.pipes import Writer, enlarge
from callgate.launcher.capture import drain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from callgate.gate.pacing import PacedWriter
    from callgate.launcher.capture import Drain, Sink
    from callgate.launcher.protocol import Run
    from callgate.peers.agent import AgentPeer
    from callgate.peers.hub import Hub
    from callgate.router.timer import TimedCallback

LAST_WORDS_S = 1.0
"""What a process wrote before it ended is read for at most so long after its end."""
CLOSED_PIPE_GRACE_NS = 2_000_000_000
"""How long a process may live after it has closed its side of the protocol."""


class Connection:
    """Joins one run and its peer."""

    def __init__(self, run: Run, peer: AgentPeer, hub: Hub) -> None:
        self._run = run
        self._hub = hub
        self._fds = {run.stdin, run.stdout, run.stderr}
        stdin, stdout = run.stdin, run.stdout
        if run.channel is not None:
            stdin = stdout = run.channel
            self._fds.add(run.channel)
        enlarge(stdin)
        enlarge(stdout)
        self._ended = asyncio.Event()
        self._deaf: TimedCallback | None = None
        self._closing = False
        self._drains: list[Drain] = []
        self.writer: Writer | PacedWriter = Writer(stdin, self._closed_by_agent)
        self.feed = Feed(stdout, peer, hub, self._reader_ended)
        self.reader = self.feed.reader
        bandwidth = peer.spec.bandwidth_bps
        if bandwidth is not None:
            # Few have one, and aiolimiter costs 20 ms to import.
            from callgate.gate.pacing import Pace, PacedWriter, pace_reading  # noqa: PLC0415

            self.writer = PacedWriter(self.writer, Pace(bandwidth))
            pace_reading(self.reader, Pace(bandwidth), self.feed.received)

    async def open(self, stderr: Sink, secrets: Sequence[bytes]) -> None:
        """Begin to read what the agent prints."""
        run = self._run
        printed = [run.stderr] if run.channel is None else [run.stderr, run.stdout]
        for fd in printed:
            self._fds.discard(fd)  # the reader closes it
            self._drains.append(await drain(fd, stderr, secrets))

    def close_stdin(self) -> None:
        """Tell the agent that nothing more will come."""
        run = self._run
        self._closing = True
        self._hub.cancel_callback(self._deaf)
        if run.channel is not None:
            with suppress(OSError), socket.socket(fileno=os.dup(run.channel)) as channel:
                channel.shutdown(socket.SHUT_WR)
        elif run.stdin in self._fds:
            self.writer.close()
            self._fds.discard(run.stdin)
            os.close(run.stdin)

    async def read_remaining_output(self) -> None:
        """The process has ended: read what it left."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._ended.wait()

    async def close(self) -> None:
        """Let go of the pipes."""
        self._closing = True
        self._hub.cancel_callback(self._deaf)
        self.reader.close()
        self.writer.close()
        self.writer.on_drained()  # who was not read because it had not drained
        for one in self._drains:
            await one.finish(LAST_WORDS_S)
        for fd in self._fds:
            with suppress(OSError):
                os.close(fd)
        self._fds.clear()

    def _reader_ended(self) -> None:
        self._ended.set()
        self._closed_by_agent()

    def _closed_by_agent(self) -> None:
        """Without its side of the protocol a process is of no use: it ends, or is ended."""
        if self._deaf is None and not self._closing:
            self._deaf = self._hub.call_later(
                CLOSED_PIPE_GRACE_NS, lambda _: self._run.kill("unhealthy")
            )
