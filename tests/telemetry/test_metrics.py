from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from callgate.telemetry import names
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.stats import ToolStats
from tests.conftest import FULL

MS = 1_000_000
Row = tuple[dict[str, object], int | float]


class Recorded:
    """A real provider, and what it collects."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def read(self) -> dict[str, list[Row]]:
        data = self._reader.get_metrics_data()
        rows: dict[str, list[Row]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "callgate"
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        assert isinstance(point, NumberDataPoint)
                        attributes: dict[str, object] = dict(point.attributes or {})
                        rows.setdefault(metric.name, []).append((attributes, point.value))
        return rows

    def total(self, name: str) -> float:
        return sum(value for _, value in self.read().get(name, []))


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def used(agent: str | None = "web", tool: str | None = "search") -> ToolStats:
    stats = ToolStats(agent, tool)
    for code, duration_ns in (("ok", 5 * MS), ("ok", 15 * MS), ("limit.timeout", 400_000 * MS)):
        stats.in_flight += 1
        stats.ended(code, duration_ns)
    stats.in_flight += 1
    stats.refused("limit.rate", "agent")
    stats.shadow("limit.concurrency", "tool")
    stats.waited(250 * MS)
    stats.queued = 2
    stats.late = 1
    return stats


TOOL = {"gen_ai.agent.name": "web", "gen_ai.tool.name": "search"}


def test_everything_that_was_counted_is_exported(recorded: Recorded) -> None:
    stats = used()
    metrics = Metrics(lambda: [stats], meter_provider=recorded.provider)

    rows = recorded.read()

    buckets = rows.pop("callgate.call.duration.bucket")
    assert rows == {
        "callgate.calls": [
            (TOOL | {"callgate.outcome": "ok"}, 2),
            (TOOL | {"callgate.outcome": "limit.timeout"}, 1),
        ],
        "callgate.refusals": [
            (TOOL | {"error.type": "limit.rate", "callgate.scope": "agent"}, 1),
        ],
        "callgate.shadow": [
            (TOOL | {"error.type": "limit.concurrency", "callgate.scope": "tool"}, 1),
        ],
        "callgate.calls.in_flight": [(TOOL, 1)],
        "callgate.late": [(TOOL, 1)],
        "callgate.call.duration.sum": [(TOOL, pytest.approx(400.02))],
        "callgate.call.duration.count": [(TOOL, 3)],
        "callgate.queue.depth": [(TOOL, 2)],
        "callgate.queue.wait.sum": [(TOOL, pytest.approx(0.25))],
        "callgate.queue.wait.count": [(TOOL, 1)],
    }
    assert all(attributes.keys() == TOOL.keys() | {"le"} for attributes, _ in buckets)
    metrics.close()


def test_buckets_are_cumulative_and_labelled_as_prometheus_does(recorded: Recorded) -> None:
    stats = used()
    metrics = Metrics(lambda: [stats], meter_provider=recorded.provider)

    buckets = {row["le"]: value for row, value in recorded.read()[names.DURATION_BUCKET]}

    between = ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10", "30", "60", "120", "300"]
    assert buckets == {"0.01": 1, **dict.fromkeys(between, 2), "+Inf": 3}
    metrics.close()


def test_a_name_that_may_not_be_shown_is_other(recorded: Recorded) -> None:
    stats = used(None, None)
    metrics = Metrics(lambda: [stats], meter_provider=recorded.provider)

    (row,) = recorded.read()[names.IN_FLIGHT]

    assert row == ({"gen_ai.agent.name": "other", "gen_ai.tool.name": "other"}, 1)
    metrics.close()


def test_numbers_of_the_same_tool_add_up_over_routers(recorded: Recorded) -> None:
    stats = used()
    first = Metrics(lambda: [stats], meter_provider=recorded.provider)
    second = Metrics(lambda: [stats, stats], meter_provider=recorded.provider)

    assert recorded.read()[names.IN_FLIGHT] == [(TOOL, 3)]
    first.close()
    second.close()


def test_counts_that_change_are_read_anew(recorded: Recorded) -> None:
    stats = used()
    metrics = Metrics(lambda: [stats], meter_provider=recorded.provider)
    before = recorded.total(names.CALLS)

    stats.ended("ok", MS)

    assert recorded.total(names.CALLS) == before + 1
    metrics.close()


def test_extra_counters_of_all_routers_add_up(recorded: Recorded) -> None:
    first = Metrics(
        list, counters={names.AUDIT_DROPPED: lambda: 3}, meter_provider=recorded.provider
    )
    second = Metrics(
        list, counters={names.AUDIT_DROPPED: lambda: 1}, meter_provider=recorded.provider
    )

    rows = recorded.read()

    assert rows == {"callgate.audit.dropped": [({}, 4)]}
    first.close()
    second.close()


class Router:
    """Holds its metrics as a router does: in a cycle."""

    def __init__(self, provider: MeterProvider) -> None:
        self.stats = [used()]
        self.metrics = Metrics(self.collect, meter_provider=provider)

    def collect(self) -> list[ToolStats]:
        return self.stats


def test_a_dead_router_is_not_kept_and_reports_nothing(recorded: Recorded) -> None:
    router = Router(recorded.provider)
    alive = weakref.ref(router)
    assert recorded.total(names.CALLS) == 3

    del router
    gc.collect()

    assert alive() is None
    assert recorded.read() == {}


def test_a_closed_one_lets_go_without_the_collector(recorded: Recorded) -> None:
    router = Router(recorded.provider)
    alive = weakref.ref(router)
    gc.disable()
    try:
        router.metrics.close()
        assert recorded.read() == {}
        del router
        assert alive() is None
    finally:
        gc.enable()


def test_many_routers_in_a_row_leave_one_set_of_instruments(recorded: Recorded) -> None:
    for _ in range(50):
        Router(recorded.provider).metrics.close()
    last = Router(recorded.provider)

    assert recorded.total(names.IN_FLIGHT) == 1
    last.metrics.close()


def test_collecting_beside_a_busy_loop_never_fails(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    stats = ToolStats("web", "search")
    metrics = Metrics(lambda: [stats], meter_provider=recorded.provider)
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            stats.in_flight += 1
            stats.ended(f"code.{number % 5_000}", MS)
            stats.refused(f"code.{number % 5_000}", "agent")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(20 if FULL else 5):
            recorded.read()
    finally:
        stop.set()
        worker.join(timeout=10)

    assert caplog.records == []  # the SDK logs a callback that raises
    metrics.close()


@pytest.mark.parametrize("early", [True, False])
def test_the_processes_own_provider_is_used_whenever_it_comes(*, early: bool) -> None:
    # In a process of its own: the global provider can be set once.
    code = f"""
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.stats import ToolStats
reader = InMemoryMetricReader()
provider = MeterProvider([reader], shutdown_on_exit=False)
stats = ToolStats("web", "search")
stats.in_flight += 1
sources = [Metrics(lambda: [stats])] if {early} else []
metrics.set_meter_provider(provider)
sources += [Metrics(lambda: [stats]), Metrics(lambda: [stats], meter_provider=provider)]
found = [
    point.value
    for resource in reader.get_metrics_data().resource_metrics
    for scope in resource.scope_metrics
    for metric in scope.metrics
    if metric.name == "callgate.calls.in_flight"
    for point in metric.data.data_points
]
assert found == [len(sources)], found
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
