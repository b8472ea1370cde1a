"""What an agent's process uses, seen through the router that stands before it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from callgate import Policy, Router
from callgate.gate.stdio import Settings, StdioGate
from callgate.launcher import LocalLauncher
from tests.gate.helpers import FOREVER_S, agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

MI = 1024 * 1024
BUSY = f"""
import os, socket, sys, threading
kept = b"x" * {24 * MI}
with open(os.environ["CALLGATE_WORKSPACE"] + "/file", "wb") as file:
    file.write(b"x" * {MI})
threading.Thread(target=threading.Event().wait, daemon=True).start()
sum(range(10_000_000))
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
sys.stdin.read()
"""
POLICY = """
version: 1
agents:
  web:
    containment: {level: privileged, disk: 64Mi}
    restart: {on: failure, backoff: 0s..0s}
"""


class Rig:
    """A gate of this process, its client's ends of the pipes, and the SDK's reader."""

    def __init__(
        self, router: Router, launcher: LocalLauncher, reader: InMemoryMetricReader
    ) -> None:
        self.router = router
        self._launcher = launcher
        self._reader = reader

    def kill_agent(self) -> None:
        (run,) = self._launcher.runs.values()
        os.kill(run.pid, signal.SIGKILL)

    def run(self) -> dict[str, Any]:
        runs: list[dict[str, Any]] = self.router.snapshot()["runs"]
        (row,) = runs or [{"usage": None, "run_id": None}]
        return row

    def metrics(self) -> dict[str, list[float]]:
        data = self._reader.get_metrics_data()
        found: dict[str, list[float]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        if dict(point.attributes or {}) == {"gen_ai.agent.name": "web"}:
                            value = getattr(point, "value", None)
                            assert isinstance(value, int | float)
                            found.setdefault(metric.name, []).append(value)
        return found

    async def until(self, look: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The agent's row as soon as it is as wished."""
        async with asyncio.timeout(FOREVER_S):
            while not look(row := self.run()):  # noqa: ASYNC110  # a look is no event
                await asyncio.sleep(0.01)
        return row


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    policy = Policy.parse(POLICY)
    spec = msgspec.structs.replace(
        policy.launch_spec("web", agent(BUSY)), monitor_interval_ns=50_000_000
    )
    from_client, to_gate = os.pipe()
    from_gate, to_client = os.pipe()
    router = Router(policy, state_dir=tmp_path, meter_provider=provider, batched=True)
    async with router, LocalLauncher(root=tmp_path / "runs") as launcher:
        settings = Settings("web", "somebody")
        gate = StdioGate(router, launcher, spec, settings, secrets=(), say=lambda _: None)
        serving = asyncio.create_task(gate.run(None, from_client, to_client))
        try:
            yield Rig(router, launcher, reader)
        finally:
            os.close(to_gate)
            async with asyncio.timeout(FOREVER_S):
                await serving
            for fd in (from_client, from_gate, to_client):
                os.close(fd)


def is_measured(row: dict[str, Any]) -> bool:
    usage = row["usage"]
    return usage is not None and bool(usage["connections"] and usage["cpu_ns"])


async def test_a_snapshot_has_what_an_agents_process_uses_now(rig: Rig) -> None:
    row = await rig.until(is_measured)

    usage = row["usage"]
    assert (row["agent"], row["state"]) == ("web", "running")
    assert usage["memory_bytes"] > 24 * MI
    assert usage["pids"] == 2
    assert usage["connections"] == 1
    assert usage["disk_bytes"] >= MI
    assert usage["files"] >= 1


async def test_the_same_is_in_the_metrics_that_the_sdk_collects(rig: Rig) -> None:
    await rig.until(is_measured)

    metrics = rig.metrics()

    (memory,) = metrics["callgate.agent.memory.usage"]
    (disk,) = metrics["callgate.agent.disk.usage"]
    (cpu,) = metrics["callgate.agent.cpu.time"]
    assert memory > 24 * MI
    assert disk >= MI
    assert cpu > 0
    assert metrics["callgate.agent.pids"] == [2]
    assert metrics["callgate.agent.connections"] == [1]


async def test_the_next_run_of_an_agent_goes_on_with_its_processor_time(rig: Rig) -> None:
    first = await rig.until(is_measured)
    (before,) = rig.metrics()["callgate.agent.cpu.time"]

    rig.kill_agent()
    await rig.until(lambda row: row["run_id"] != first["run_id"])

    (after,) = rig.metrics()["callgate.agent.cpu.time"]
    assert after >= before > 0
