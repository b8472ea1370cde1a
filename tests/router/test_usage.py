"""What agents' processes use, as metrics of the real SDK show it."""

from __future__ import annotations

import threading

import pytest

from callgate.model import RunState, Usage
from callgate.router.usage import Usages
from callgate.telemetry.metrics import Metrics
from tests.telemetry.test_metrics import Recorded

WEB = {"gen_ai.agent.name": "web"}
SECOND = 1_000_000_000
FULL = Usage(cpu_ns=2 * SECOND, memory_bytes=5, pids=3, disk_bytes=7, files=2, connections=1)


class FakeRun:
    """A run whose last look is what a test says."""

    def __init__(self, run_id: str, usage: Usage) -> None:
        self.run_id = run_id
        self.state: RunState = "running"
        self.last = usage

    def usage(self) -> Usage:
        return self.last


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_a_live_process_has_one_series_of_each_metric(recorded: Recorded) -> None:
    usages = Usages()
    usages.of("web").began(FakeRun("1", FULL))
    metrics = Metrics(list, usages=usages.all, meter_provider=recorded.provider)

    assert recorded.read() == {
        "callgate.agent.cpu.time": [(WEB, 2.0)],
        "callgate.agent.memory.usage": [(WEB, 5)],
        "callgate.agent.disk.usage": [(WEB, 7)],
        "callgate.agent.files": [(WEB, 2)],
        "callgate.agent.pids": [(WEB, 3)],
        "callgate.agent.connections": [(WEB, 1)],
    }
    metrics.close()


def test_what_nobody_measured_is_not_reported_as_nothing(recorded: Recorded) -> None:
    usages = Usages()
    usages.of("web").began(FakeRun("1", Usage(memory_bytes=5)))
    metrics = Metrics(list, usages=usages.all, meter_provider=recorded.provider)

    assert recorded.read().keys() == {"callgate.agent.cpu.time", "callgate.agent.memory.usage"}
    metrics.close()


def test_processor_time_is_added_up_over_restarts_and_never_shrinks(recorded: Recorded) -> None:
    usages = Usages()
    agent = usages.of("web")
    metrics = Metrics(list, usages=usages.all, meter_provider=recorded.provider)
    seen = []
    for number in range(3):
        agent.began(FakeRun(str(number), Usage()))
        seen.append(recorded.total("callgate.agent.cpu.time"))
        agent.ended("crashed", FULL)
        seen.append(recorded.total("callgate.agent.cpu.time"))

    assert seen == [0, 2, 2, 4, 4, 6]
    metrics.close()


def test_a_process_that_is_gone_uses_nothing(recorded: Recorded) -> None:
    usages = Usages()
    usages.of("web").began(FakeRun("1", FULL))
    metrics = Metrics(list, usages=usages.all, meter_provider=recorded.provider)
    recorded.read()

    usages.of("web").ended("paused", FULL)

    assert recorded.read().keys() == {"callgate.agent.cpu.time"}
    assert [usage.row() for usage in usages.all()] == [
        {"agent": "web", "run_id": "1", "state": "paused", "usage": None}
    ]
    metrics.close()


def test_restarts_make_no_further_series(recorded: Recorded) -> None:
    usages = Usages()
    metrics = Metrics(list, usages=usages.all, meter_provider=recorded.provider)
    for number in range(500):
        usages.of("web").began(FakeRun(str(number), FULL))
        usages.of("web").ended("crashed", FULL)
    usages.of("web").began(FakeRun("last", FULL))

    assert {len(rows) for rows in recorded.read().values()} == {1}
    metrics.close()


def test_the_same_agent_behind_two_routers_adds_up(recorded: Recorded) -> None:
    sources = []
    for _ in range(2):
        usages = Usages()
        usages.of("web").began(FakeRun("1", FULL))
        sources.append(Metrics(list, usages=usages.all, meter_provider=recorded.provider))

    assert recorded.read()["callgate.agent.memory.usage"] == [(WEB, 10)]
    for source in sources:
        source.close()
    assert recorded.read() == {}


def test_an_end_is_seen_whole_or_not_at_all_from_another_thread() -> None:
    usages = Usages()
    agent = usages.of("web")
    done = threading.Event()

    def restart() -> None:
        for number in range(20_000):
            agent.began(FakeRun(str(number), Usage(cpu_ns=1)))
            agent.ended("crashed", Usage(cpu_ns=1))
        done.set()

    worker = threading.Thread(target=restart)
    worker.start()
    last = 0
    while not done.is_set():
        now = agent.cpu_ns
        assert now >= last
        last = now
    worker.join(timeout=60)
    assert agent.cpu_ns == 20_000
