"""Ends that come at a bad moment: nobody waits longer than the end itself takes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from callgate.gate import stdio
from callgate.gate.stderr import AgentStderr
from callgate.gate.stdio import LAST_CALLS_S, Settings, StdioGate
from callgate.gate.supervisor import Supervisor
from callgate.launcher import LocalLauncher
from callgate.launcher.protocol import Stopped
from callgate.model import LaunchSpec, RestartSpec
from callgate.peers.hub import Hub
from callgate.peers.mcp_agent import McpAgent
from callgate.peers.outbox import Outbox
from callgate.policy import Policy
from callgate.router import Router
from tests.gate.helpers import (
    FOREVER_S,
    OPEN,
    REFERENCE,
    Gate,
    agent,
    tool,
    until,
)
from tests.peers.helpers import Pipe, initialize, note
from tests.router.helpers import audit_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from callgate.launcher.protocol import Launcher

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

SOON_S = 1.5
"""Well below the two seconds for which the agent is asked to end by itself."""


def test_the_end_of_stdin_is_seen_though_a_dead_agent_had_not_read(tmp_path: Path) -> None:
    policy = OPEN.replace("web: {}", "web: {restart: {on: always, backoff: 50s..50s}}")
    with Gate(tmp_path, agent("import time; time.sleep(600)"), policy) as gate:
        gate.agent_process()
        blank = {"text": "x" * 100_000}
        gate.send(*(note("notifications/message", blank) for _ in range(25)))  # and it is held
        gate.kill_agent()
        until(lambda: "run_crashed" in gate.events("agent."))

        asked = time.monotonic()
        assert gate.ends() == 0

        assert time.monotonic() - asked < 20


STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", file=sys.stderr, flush=True)
time.sleep(600)
"""


SHADOW = OPEN.replace("web: {}", "web: {mode: shadow}").replace("20s, max", "40ms, max")
"""No call has a deadline that is enforced."""


@pytest.mark.parametrize("policy", [SHADOW, OPEN], ids=["shadow", "long"])
def test_a_client_that_reads_no_more_ends_its_calls_at_once(policy: str, tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE, policy) as gate:
        gate.shake_hands()
        gate.send(tool(1, "sleep", seconds=60))
        until(lambda: "admitted" in gate.events("tool.call."))
        assert gate.process.stdout is not None

        began = time.monotonic()
        gate.process.stdout.close()

        assert gate.wait() == 0
        assert time.monotonic() - began < LAST_CALLS_S / 2
        assert gate.events("tool.call.")[-1] == "cancelled"


async def test_calls_that_outlive_their_client_end_with_the_time_for_last_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LAST_CALLS_S == 30
    monkeypatch.setattr(stdio, "LAST_CALLS_S", 0.1)
    policy = Policy.parse(SHADOW.replace("path: audit", f"path: {tmp_path / 'audit'}"))
    from_client, to_gate = os.pipe()
    from_gate, to_client = os.pipe()
    said = [initialize(), note("notifications/initialized"), tool(1, "sleep", seconds=60)]
    os.write(to_gate, b"".join(json.dumps(one).encode() + b"\n" for one in said))
    os.close(to_gate)
    router = Router(policy, state_dir=tmp_path, batched=True)
    try:
        async with router, LocalLauncher(root=tmp_path / "runs") as launcher:
            gate = StdioGate(
                router,
                launcher,
                policy.launch_spec("web", REFERENCE),
                Settings("web", "somebody"),
                secrets=(),
                say=lambda _: None,
            )
            async with asyncio.timeout(FOREVER_S / 2):
                assert await gate.run(None, from_client, to_client) == 0
    finally:
        for fd in (from_client, from_gate, to_client):
            os.close(fd)

    ended = [line["event"] for line in audit_lines(tmp_path / "audit")]
    assert "tool.call.admitted" in ended
    assert "tool.call.cancelled" in ended


def test_whoever_asks_twice_for_the_end_is_not_kept_waiting(tmp_path: Path) -> None:
    with Gate(tmp_path, agent(STUBBORN)) as gate:
        until(lambda: "ready" in gate.stderr)
        gate.look_at_tree()
        gate.process.send_signal(signal.SIGINT)
        until(lambda: "again" in gate.stderr)
        asked = time.monotonic()

        gate.process.send_signal(signal.SIGINT)

        assert gate.wait() == 130
        assert time.monotonic() - asked < SOON_S


TURNS = 1_000


async def becomes(holds: Callable[[], bool]) -> None:
    for _ in range(TURNS):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


class Dead:
    """A run that has ended, and remembers who wanted that."""

    run_id = "r"
    state = "crashed"
    effective: ClassVar[dict[str, Any]] = {}
    channel = token = None

    def __init__(self) -> None:
        self.stdin, self._in = self._pipe()
        self._out, self.stdout = os.pipe()[::-1]
        self._err, self.stderr = os.pipe()[::-1]
        self.ended = asyncio.Event()
        self.kills: list[str] = []

    @staticmethod
    def _pipe() -> tuple[int, int]:
        reading, writing = os.pipe()
        return writing, reading

    def kill(self, reason: str) -> None:
        self.kills.append(reason)

    async def wait(self) -> Stopped:
        await self.ended.wait()
        return Stopped("exited", "stopped", exit_code=0)

    async def stop(self, reason: str) -> Stopped:
        del reason
        return await self.wait()

    def let_go(self) -> None:
        for fd in (self._in, self._out, self._err):
            os.close(fd)


class Launches:
    """Hands out one run after another, then fails in a way that nobody foresaw."""

    def __init__(self, *runs: Dead) -> None:
        self.runs = list(runs)

    async def launch(self, *_: Any, **__: Any) -> Dead:
        if not self.runs:
            raise RuntimeError("a launcher of somebody's own")
        return self.runs.pop(0)


def supervisor_of(router: Router, launcher: Any, restart: RestartSpec) -> tuple[Supervisor, Any]:
    hub = Hub(router)
    spec = LaunchSpec("web", ("x",), restart=restart)
    given: Launcher = launcher

    stderr = AgentStderr(passes=False)
    supervisor = Supervisor(hub, given, spec, stderr=stderr, secrets=(), say=lambda _: None)
    gate = router.policy.gate("web")
    peer = McpAgent(hub, gate, Outbox(hub.wire, Pipe()), supervisor.end_process)
    return supervisor, peer


async def test_what_ails_a_process_that_is_gone_is_not_held_against_the_next() -> None:
    first, second = Dead(), Dead()
    never = RestartSpec(on="never")
    async with Router(Policy.parse(OPEN.partition("audit:")[0])) as router:
        supervisor, peer = supervisor_of(router, Launches(first, second), never)
        supervisor.on_connected = lambda _: None
        life = asyncio.create_task(supervisor.supervise(peer))
        await becomes(lambda: supervisor._run is not None)
        first.ended.set()
        await becomes(lambda: supervisor._has_ended)

        supervisor.end_process("ignored_cancel", again=True)

        assert supervisor._again is False
        first.let_go()
        assert (await life).reason == "exited"


async def test_a_launcher_that_fails_unforeseen_leaves_nobody_waiting() -> None:
    first = Dead()
    always = RestartSpec(on="always", first_ns=0, longest_ns=0)
    async with Router(Policy.parse(OPEN.partition("audit:")[0])) as router:
        supervisor, peer = supervisor_of(router, Launches(first), always)
        life = asyncio.create_task(supervisor.supervise(peer))
        await becomes(lambda: supervisor._run is not None)
        first.ended.set()
        first.let_go()

        with pytest.raises(RuntimeError):
            await life

        assert not peer.is_up
