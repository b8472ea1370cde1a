"""Keeps an agent's process running as its policy says, and joined to its peer.

One task for each agent. It launches, connects the pipes, waits for the end, lets the peer answer
everybody with the reason, and launches again if that is the policy. A process that ran out of
memory is paused: its workspace is kept, and it is resumed with backoff, or by the next call.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from time import monotonic_ns
from typing import TYPE_CHECKING

from callgate.gate import run_events
from callgate.gate.connection import Connection
from callgate.gate.restart import Again, Down, Restarts
from callgate.gate.stderr import how_it_ended, warning
from callgate.launcher.protocol import LaunchRefused, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from callgate.errors import LimitInfo
    from callgate.gate.stderr import AgentStderr
    from callgate.launcher.protocol import Launcher, Run
    from callgate.model import LaunchSpec, StopReason
    from callgate.peers.agent import AgentPeer
    from callgate.peers.hub import Hub

EOF_GRACE_S = 2.0
"""How long an agent may take to end by itself when its stdin has: what MCP asks it to do."""


class Supervisor:
    """One agent's process, from the first launch to the last end."""

    def __init__(
        self,
        hub: Hub,
        launcher: Launcher,
        spec: LaunchSpec,
        *,
        stderr: AgentStderr,
        secrets: Sequence[bytes],
        say: Callable[[str], None],
    ) -> None:
        self._hub = hub
        self._launcher = launcher
        self._spec = spec
        self._stderr = stderr
        self._secrets = secrets
        self._say = say
        self._restarts = Restarts(spec.restart)
        self._wanted = asyncio.Event()
        self._stop = asyncio.Event()
        self._again = False
        """Whether the process was ended in order to be started again."""
        self._has_ended = False
        """Whether the process has ended; what ails it then is nobody's concern."""
        self._kill_now = asyncio.Event()
        self.launched_ns = monotonic_ns()
        """When the launch of the current run began; of the first one its launcher may say."""
        self._launched_by = spec.launcher
        self._peer: AgentPeer | None = None
        self._run: Run | None = None
        self._connection: Connection | None = None
        self.on_connected: Callable[[Connection], None] = _nothing_with

    def use(self, spec: LaunchSpec, secrets: Sequence[bytes]) -> None:
        """From the next launch on."""
        self._spec = spec
        self._secrets = secrets
        self._restarts.spec = spec.restart

    async def supervise(self, peer: AgentPeer, first: Run | None = None) -> Stopped:
        """Run the agent until it shall not run any more; why the last run ended.

        Raises `LaunchRefused` if it cannot be started even once.
        """
        self._peer = peer
        peer.on_wanted = self._wanted.set
        try:
            return await self._supervise(peer, first)
        except Exception:
            self._gone(peer, "failed_to_start", None)
            raise

    async def _supervise(self, peer: AgentPeer, first: Run | None) -> Stopped:
        self._restarts.started(monotonic_ns())
        run = await self._launch(None) if first is None else first
        while True:
            if self._stop.is_set():
                run.kill("stop_requested")
            await self._connect(run, peer)
            stopped = await run.wait()
            self._has_ended = True
            decision = self._decide(stopped)
            paused = run if stopped.state == "paused" else None
            again = not self._stop.is_set() and (isinstance(decision, Again) or paused is not None)
            await self._ended(run, peer, stopped, again=again)
            self._tell(peer.name, stopped, decision, again=again)
            if not again:
                return stopped
            found = await self._next_run(peer, decision, paused)
            if isinstance(found, Stopped):
                return found
            run = found

    def end_process(self, reason: StopReason, *, again: bool = False) -> None:
        """The process has to go; `again` starts another whatever the policy says."""
        if self._run is None or self._has_ended:
            return
        self._again = again
        if reason == "protocol_violation":
            self._stop.set()  # another version of a protocol cannot be hidden from the client
        self._run.kill(reason)

    async def stop(self) -> None:
        """End the process: its stdin closes, then it is asked, then it is made to.

        Whoever calls `stop_now` meanwhile, or has before, will have it made to at once.
        """
        self._stop.set()
        self._wanted.set()
        if self._peer is not None:
            self._peer.say_goodbye("stop_requested")
            self._hub.flush()
        if self._connection is not None:
            self._connection.close_stdin()
        run = self._run
        if run is not None:
            ending = asyncio.ensure_future(self._end(run))
            hurried = asyncio.ensure_future(self._kill_now.wait())
            await asyncio.wait([ending, hurried], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                run.kill("stop_requested")
            hurried.cancel()
            await ending

    def stop_now(self) -> None:
        """Make `stop` kill the process without waiting for it."""
        self._kill_now.set()

    async def _end(self, run: Run) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(EOF_GRACE_S):
                await run.wait()
        await run.stop("stop_requested")

    def _decide(self, stopped: Stopped) -> Again | Down:
        wanted, self._again = self._again, False
        return self._restarts.decide(stopped, monotonic_ns(), wanted=wanted)

    async def _next_run(
        self, peer: AgentPeer, decision: Again | Down, paused: Run | None
    ) -> Run | Stopped:
        """Wait for the time of the next run, or for somebody who wants it, and start it."""
        while True:
            if isinstance(decision, Again):
                with suppress(TimeoutError):
                    async with asyncio.timeout(decision.after_ns / 1e9):
                        await self._stop.wait()
            else:
                await self._wanted.wait()
            if self._stop.is_set():
                self._gone(peer, "stop_requested", None)
                return Stopped("stop_requested", "stopped")
            self._restarts.started(monotonic_ns())  # or not: that is an end too
            try:
                return await self._launch(paused)
            except LaunchRefused as error:
                self._say(error.describe())
                paused = None  # what it kept is gone
                stopped = Stopped("failed_to_start", "crashed", stage=error.stage)
                decision = self._decide(stopped)
                if isinstance(decision, Down):
                    self._gone(peer, "failed_to_start", None)
                    return stopped

    def _gone(self, peer: AgentPeer, reason: StopReason, limit: LimitInfo | None) -> None:
        """There will be no process any more."""
        peer.process_ended(reason, limit, again=False)
        self._hub.flush()

    async def _launch(self, paused: Run | None) -> Run:
        if paused is not None and self._launched_by != self._spec.launcher:
            await paused.discard()  # another launcher knows nothing of it
            paused = None
        self._launched_by = self._spec.launcher
        self.launched_ns = monotonic_ns()
        return await self._launcher.launch(
            self._spec, run_id=new_run_id(), on_warning=self.warn, resume=paused
        )

    async def _connect(self, run: Run, peer: AgentPeer) -> None:
        again = self._run is not None
        self._run = run
        self._has_ended = False
        connection = Connection(run, peer, self._hub)
        self._connection = connection
        peer.outbox.pipe = connection.writer
        peer.run_id = run.run_id
        peer.process_launched(run.token)
        self.on_connected(connection)
        self._hub.router.usages.of(peer.name).began(run)
        for event in run_events.started(peer.name, run.run_id, run.effective, self._revision):
            self._hub.router.engine.note(event)
        if again:
            peer.started()
        self._hub.flush()
        self._stderr.begin(contained=self._spec.contained)
        await connection.open(self._stderr, self._secrets)

    async def _ended(self, run: Run, peer: AgentPeer, stopped: Stopped, *, again: bool) -> None:
        connection = self._connection
        if connection is not None:
            await connection.read_remaining_output()
        self._wanted.clear()
        peer.process_ended(stopped.reason, stopped.limit, again=again)
        if peer.is_wanted or self._stop.is_set():
            self._wanted.set()
        self._hub.router.usages.of(peer.name).ended(stopped.state, stopped.usage)
        lasted_ns = monotonic_ns() - self.launched_ns
        self._hub.router.engine.note(
            run_events.ended(peer.name, run.run_id, stopped, lasted_ns, self._revision)
        )
        self._hub.flush()
        if connection is not None:
            await connection.close()

    def _tell(self, agent: str, stopped: Stopped, decision: Again | Down, *, again: bool) -> None:
        """Say what has ended the process, what it printed last, and what follows."""
        tail = "" if _is_expected(stopped) else self._stderr.take_tail()
        if tail:
            self._say(f"agent {agent} printed before it ended:\n{tail}")
        if stopped.limit is not None:
            from callgate.launcher.limit_message import explain  # noqa: PLC0415  # only bad ends need it

            text = explain(agent, stopped, spec=self._spec)
            if text:
                self._say(text)
        if again:
            soon = isinstance(decision, Again)
            how = "it will be started again" if soon else "the next call resumes it"
            self._say(f"agent {agent} ended: {how_it_ended(stopped)}; {how}")

    def warn(self, limit: LimitInfo) -> None:
        peer = self._peer
        if peer is not None:
            self._hub.record(
                "agent.resource_warning",
                agent=peer.name,
                run_id=None if self._run is None else self._run.run_id,
                limit=f"{limit.type} {limit.scope} {limit.limit}",
                usage=limit.usage,
                usage_limit=limit.limit if isinstance(limit.limit, int) else None,
            )
            self._hub.flush()
            self._say(warning(peer.name, limit))

    @property
    def _revision(self) -> str:
        return self._hub.router.policy.revision


def _is_expected(stopped: Stopped) -> bool:
    """Return True if the process was asked to end, or says itself that it ended well."""
    return stopped.reason == "stop_requested" or (
        stopped.reason == "exited" and not stopped.exit_code
    )


def new_run_id() -> str:
    """Names one life of a process."""
    return uuid.uuid4().hex


def _nothing_with(_: Connection) -> None:
    pass
