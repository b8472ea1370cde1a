"""`callgate run`: the gate on our own stdin and stdout, in front of one process.

The process is launched first, with what little that needs; the rest is imported and built while
it starts. Then everything is a pass: a read of one side, handled to its end. The gate ends when
the client closes its side (what is in flight is answered first, within half a minute), when it has
gone (then nothing is), when the process ends and shall not run again, or on a signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from callgate.gate.feed import Feed
from callgate.gate.pipes import HIGH_WATER_BYTES, Writer, enlarge, keep_blocks
from callgate.gate.stderr import UNREADABLE, UNREADABLE_CLIENT, AgentStderr, ended
from callgate.gate.supervisor import Supervisor
from callgate.peers import offer
from callgate.peers.hub import Hub
from callgate.peers.mcp_agent import McpAgent
from callgate.peers.mcp_caller import McpClientPeer
from callgate.peers.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from callgate.gate.connection import Connection
    from callgate.launcher.protocol import Launcher, Run, Stopped
    from callgate.model import GateSpec, LaunchSpec
    from callgate.peers.agent import AgentPeer
    from callgate.policy import Policy
    from callgate.router.router import Router

LAST_CALLS_S = 30.0
"""For calls that run when the client closes its side; each may have a deadline before that. Half of
the default timeout: who closes its stdin waits for the gate's end, not for an hour."""
DRAIN_S = 5.0
"""For the last answers to be written after everything has ended."""
TIMED_OUT = 124
INTERRUPTED = 130
SIGNAL_BASE = 128


class Settings(msgspec.Struct, frozen=True):
    """What the command line says."""

    agent: str
    caller: str
    pass_stderr: bool = False


class StdioGate:
    """One client on our stdio, one agent behind."""

    def __init__(
        self,
        router: Router,
        launcher: Launcher,
        spec: LaunchSpec,
        settings: Settings,
        *,
        secrets: Sequence[bytes],
        say: Callable[[str], None],
    ) -> None:
        self._router = router
        self.agent_name = settings.agent
        self._say = say
        self.hub = hub = Hub(router)
        hub.on_fault = self._fault
        hub.on_first_rejected = lambda reason, by_client: say(
            (UNREADABLE_CLIENT if by_client else UNREADABLE).format(reason)
        )
        self._stderr = AgentStderr(passes=settings.pass_stderr)
        self.supervisor = Supervisor(
            hub, launcher, spec, stderr=self._stderr, secrets=secrets, say=say
        )
        gate = router.policy.gate(settings.agent)
        kind = _kind_of(gate)
        self._agent = kind(hub, gate, Outbox(hub.wire, _Nowhere()), self.supervisor.end_process)
        self._spoke = False
        """Whether the agent has shown that it speaks its protocol."""
        self._agent.on_handshake = self._hear
        self._caller = McpClientPeer(
            hub, self._agent, Outbox(hub.wire, _Nowhere()), settings.caller
        )
        self._done = asyncio.Event()
        self._answers_done = asyncio.Event()
        """Set when no call is in flight, the client is gone, or a signal came."""
        self._signal: int | None = None
        self._client_ended = False
        self._from_client: Feed | None = None

    async def run(self, first: Run | None, stdin: int = 0, stdout: int = 1) -> int:
        """Serve until the end; the exit code."""
        keep_blocks()
        blocking = {fd: os.get_blocking(fd) for fd in (stdin, stdout)}
        enlarge(stdin)
        enlarge(stdout)
        to_client = Writer(stdout, self._client_gone)
        to_client.watch_other_side()
        self._caller.outbox.pipe = to_client
        self._listen_to_signals()
        self.supervisor.on_connected = lambda connection: self._join(stdin, to_client, connection)
        life = asyncio.create_task(self.supervisor.supervise(self._agent, first))
        life.add_done_callback(lambda _: self._done.set())
        try:
            await self._done.wait()
            if self._from_client is not None:
                self._from_client.reader.close()
            if not life.done():
                await self._finish()
                await self.supervisor.stop()
            await asyncio.wait([life])
            self._caller.agent_gone()
            self._router.engine.recorders[0].flush_merged()
            self.hub.flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await to_client.drain()
            return self._exit_code(life.result())
        finally:
            life.cancel()
            to_client.close()
            for fd, was in blocking.items():
                os.set_blocking(fd, was)  # a terminal is its shell's too

    async def reload(self, policy: Policy, spec: LaunchSpec, secrets: Sequence[bytes]) -> None:
        """Put new calls under another policy; the process keeps what it was launched with."""
        withheld = offer.withheld(self._agent)
        await self._router.reload(policy)
        self.supervisor.use(spec, secrets)
        gate = policy.gate(self.agent_name)
        self._agent.use(gate)
        self._caller.use(gate)
        if offer.withheld(self._agent) != withheld:
            self._agent.offer_changed()
            self.hub.flush()

    def _join(self, stdin: int, to_client: Writer, connection: Connection) -> None:
        """While one side does not drain what it is sent, the other is not read.

        Nor is a client that asks and asks and reads nothing; what an agent asks for is bounded.
        """
        feed = self._from_client
        if feed is None:
            feed = self._from_client = Feed(stdin, self._caller, self.hub, self._no_more)
            feed.after_turn = self._after_turn
        client, reader = feed.reader, connection.reader
        connection.writer.on_full = lambda: client.pause("agent")
        connection.writer.on_drained = lambda: client.resume("agent")
        client.resume("agent")  # the former process may have left it so
        self._agent.on_ready = lambda: client.resume("start")

        def drained() -> None:
            reader.resume("client")
            feed.resume()

        to_client.on_full = lambda: reader.pause("client")
        to_client.on_drained = drained
        if to_client.full:
            reader.pause("client")

    def _after_turn(self) -> None:
        feed = self._from_client
        if feed is not None:
            if self._agent.held_bytes > HIGH_WATER_BYTES:
                feed.reader.pause("start")
            if self._caller.outbox.pipe.flooded:
                feed.reader.pause("flood")

    async def _finish(self) -> None:
        """Wait `LAST_CALLS_S` for the answers to what the client asked for, then cancel the rest.

        A client that reads no answers any more is not waited for.
        """
        caller = self._caller
        caller.client_finished()
        caller.on_idle = self._answers_done.set
        self.hub.flush()
        if caller.in_flight:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_CALLS_S):  # in shadow mode no call has a deadline
                    await self._answers_done.wait()
        caller.closed()
        self.hub.flush()

    def _hear(self) -> None:
        """Note the agent's first words of its protocol."""
        self._spoke = True
        self._stderr.started()

    def _no_more(self) -> None:
        """The client has closed its side."""
        self._client_ended = True
        self._done.set()

    def _client_gone(self) -> None:
        self._client_ended = True
        self._answers_done.set()
        self._done.set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            if self._signal is not None:
                self.supervisor.stop_now()
            elif number == signal.SIGINT:
                self._say("ends; interrupt again to end the agent at once")
            self._signal = self._signal or number
            self._answers_done.set()
            self._done.set()

        numbers = {signal.SIGTERM, signal.SIGINT}
        if self._router.policy.source is None:  # else it asks for a reload
            numbers.add(signal.SIGHUP)
        for number in numbers:
            with suppress(NotImplementedError, ValueError):
                loop.add_signal_handler(number, stop, number)

    def _exit_code(self, stopped: Stopped) -> int:
        if self._signal == signal.SIGINT:
            return INTERRUPTED
        if stopped.reason == "stop_requested":
            return 0
        good = stopped.reason == "exited" and not stopped.exit_code
        if not good or not self._client_ended:
            self._say(ended(self.agent_name, stopped, spoke=self._spoke))
        if good:
            return 0
        if stopped.reason == "wall_time_limit":
            return TIMED_OUT
        if stopped.signal is not None:
            return SIGNAL_BASE + stopped.signal
        return stopped.exit_code or 1

    def _fault(self, error: Exception) -> None:
        """Where it was, and nothing that a peer said: an exception's text may have that."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].name}:{frames[-1].lineno}" if frames else "?"
        self._say(f"internal error: {type(error).__name__} in {where}; please report it")


def _kind_of(gate: GateSpec) -> type[AgentPeer]:
    if gate.protocol != "runtime":
        return McpAgent
    # Few agents speak it, and its messages take 8 ms to import.
    from callgate.peers.runtime_agent import RuntimeAgent  # noqa: PLC0415

    return RuntimeAgent


class _Nowhere:
    """Stands where nothing is connected yet: what is sent there would be lost."""

    flooded = False

    def write(self, frames: list[bytes], first: Sequence[bytes] = ()) -> None:
        raise AssertionError(f"{len(frames) + len(first)} frames before there is anybody")

    def withdraw(self, head: bytes) -> bytes | None:
        del head
        return None
