"""Metrics as OpenTelemetry's instruments, which read them when they collect.

Two traits of OpenTelemetry shape this module. An instrument cannot be removed, so it knows its
sources weakly and a dead router costs nothing. A second instrument of the same name has its
callbacks dropped in silence, so all routers of a provider share one set, and their numbers are
added up.

Callbacks run in the exporter's thread, beside the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import metrics as otel
from opentelemetry.metrics import CallbackOptions, Observation

from callgate.telemetry import names
from callgate.telemetry.stats import DURATION_BOUNDS_NS, ToolStats

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from callgate.router.usage import AgentUsage
    from callgate.telemetry.metrics import Metrics

Labels = tuple[tuple[str, str], ...]
Rows = Iterator[tuple[Labels, float]]
Reader = Callable[[ToolStats], Rows]
UsageReader = Callable[["AgentUsage"], float | None]
Observe = Callable[[CallbackOptions], Iterable[Observation]]

_NANO = 1e-9
_LE: Final = (*(f"{bound * _NANO:g}" for bound in DURATION_BOUNDS_NS), "+Inf")


class Exporter:
    """One provider's instruments, and weakly the sources that they add up."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sources: WeakSet[Metrics] = WeakSet()
        self._names: set[str] = set()

    @staticmethod
    def of(given: MeterProvider | None) -> Exporter:
        """The provider's exporter; made at its first use."""
        with _EXPORTERS_LOCK:
            current = otel.get_meter_provider()
            provider = current if given is None else given
            exporter = _EXPORTERS.get(provider)
            if exporter is None and provider is current:
                # The API's stand-in hands its instruments on to the provider that is
                # configured later, once in a process: they are already there.
                exporter = _GLOBAL.get("exporter")
            if exporter is None:
                exporter = Exporter()
            _EXPORTERS[provider] = exporter
            if provider is current:
                _GLOBAL["exporter"] = exporter
            return exporter

    def add(self, source: Metrics, given: MeterProvider | None) -> None:
        """Count the source in; makes the instruments that are not there yet."""
        provider = otel.get_meter_provider() if given is None else given
        meter = provider.get_meter(names.SCOPE_NAME)
        with self._lock:
            self._sources.add(source)
            for name, unit, text, observe in self._counters():
                if self._is_new(name):
                    meter.create_observable_counter(name, [observe], unit, text)
            for name, unit, text, observe in self._levels():
                if self._is_new(name):
                    meter.create_observable_up_down_counter(name, [observe], unit, text)
            observers = {name: self._extra(name) for name in source.counters}
            observers |= {name: self._table(name) for name in source.tables}
            for name, observe in observers.items():
                if self._is_new(name):
                    meter.create_observable_counter(name, [observe])
            for name in source.gauges:
                if self._is_new(name):
                    meter.create_observable_gauge(name, [self._extra(name)])

    def _counters(self) -> Iterator[tuple[str, str, str, Observe]]:
        for name, unit, text, read in _COUNTERS:
            yield name, unit, text, self._by_tool(read)
        yield names.AGENT_CPU, "s", _CPU_TEXT, self._by_agent(_cpu)

    def _levels(self) -> Iterator[tuple[str, str, str, Observe]]:
        for name, unit, text, read in _LEVELS:
            yield name, unit, text, self._by_tool(read)
        for name, unit, text, member in _AGENT_LEVELS:
            yield name, unit, text, self._by_agent(_level(member))

    def _is_new(self, name: str) -> bool:
        if name in self._names:
            return False
        self._names.add(name)
        return True

    def _live(self) -> list[Metrics]:
        with self._lock:
            return list(self._sources)

    def _by_tool(self, read: Reader) -> Observe:
        def observe(_: CallbackOptions) -> list[Observation]:
            totals: dict[Labels, float] = {}
            for source in self._live():
                for stats in source.collect():
                    tool = (
                        (names.AGENT_NAME, stats.agent or names.OTHER),
                        (names.TOOL_NAME, stats.tool or names.OTHER),
                    )
                    for labels, value in read(stats):
                        key = tool + labels
                        totals[key] = totals.get(key, 0) + value
            return [Observation(value, dict(labels)) for labels, value in totals.items()]

        return observe

    def _table(self, name: str) -> Observe:
        def observe(_: CallbackOptions) -> list[Observation]:
            totals: dict[Labels, int] = {}
            for source in self._live():
                if name in source.tables:
                    attribute, read = source.tables[name]
                    for value, count in read().items():
                        key = ((attribute, value),)
                        totals[key] = totals.get(key, 0) + count
            return [Observation(count, dict(labels)) for labels, count in totals.items()]

        return observe

    def _by_agent(self, read: UsageReader) -> Observe:
        def observe(_: CallbackOptions) -> list[Observation]:
            totals: dict[str, float] = {}
            for source in self._live():
                for usage in source.usages():
                    value = read(usage)
                    if value is not None:
                        totals[usage.agent] = totals.get(usage.agent, 0) + value
            return [Observation(value, {names.AGENT_NAME: name}) for name, value in totals.items()]

        return observe

    def _extra(self, name: str) -> Observe:
        def observe(_: CallbackOptions) -> list[Observation]:
            reads = [
                read
                for source in self._live()
                if (read := source.counters.get(name) or source.gauges.get(name)) is not None
            ]
            return [Observation(sum(read() for read in reads))] if reads else []

        return observe


_EXPORTERS: WeakKeyDictionary[MeterProvider, Exporter] = WeakKeyDictionary()
_EXPORTERS_LOCK = Lock()
_GLOBAL: dict[str, Exporter] = {}
"""The exporter of the process's provider, also before there is one."""


def _calls(stats: ToolStats) -> Rows:
    for code, count in stats.outcomes.copy().items():
        yield ((names.OUTCOME, code),), count


def _refusals(stats: ToolStats) -> Rows:
    for (code, scope), count in stats.refusals.copy().items():
        yield ((names.ERROR_TYPE, code), (names.SCOPE, scope)), count


def _shadow(stats: ToolStats) -> Rows:
    for (code, scope), count in stats.shadowed.copy().items():
        yield ((names.ERROR_TYPE, code), (names.SCOPE, scope)), count


def _duration_bucket(stats: ToolStats) -> Rows:
    total = 0
    for le, count in zip(_LE, stats.duration_buckets.copy(), strict=True):
        total += count
        yield ((names.LE, le),), total


def _duration_sum(stats: ToolStats) -> Rows:
    yield (), stats.duration_ns * _NANO


def _duration_count(stats: ToolStats) -> Rows:
    yield (), stats.duration_count


def _wait_sum(stats: ToolStats) -> Rows:
    yield (), stats.wait_ns * _NANO


def _wait_count(stats: ToolStats) -> Rows:
    yield (), stats.wait_count


def _late(stats: ToolStats) -> Rows:
    yield (), stats.late


def _in_flight(stats: ToolStats) -> Rows:
    yield (), stats.in_flight


def _queued(stats: ToolStats) -> Rows:
    yield (), stats.queued


_COUNTERS: Final[tuple[tuple[str, str, str, Reader], ...]] = (
    (names.CALLS, "{call}", "Admitted calls that ended, by outcome", _calls),
    (names.REFUSALS, "{call}", "Calls refused, by error code and kind of scope", _refusals),
    (names.SHADOW, "{call}", "Calls that a shadowed limit would have refused", _shadow),
    (names.LATE, "{answer}", "Answers that came after their call was settled", _late),
    (names.DURATION_BUCKET, "{call}", "Calls that ended within `le` seconds", _duration_bucket),
    (names.DURATION_SUM, "s", "Time spent in calls that ended", _duration_sum),
    (names.DURATION_COUNT, "{call}", "Calls that ended", _duration_count),
    (names.QUEUE_WAIT_SUM, "s", "Time spent in the queue by calls that left it", _wait_sum),
    (names.QUEUE_WAIT_COUNT, "{call}", "Calls that left the queue", _wait_count),
)

_LEVELS: Final[tuple[tuple[str, str, str, Reader], ...]] = (
    (names.IN_FLIGHT, "{call}", "Admitted calls that have not ended", _in_flight),
    (names.QUEUE_DEPTH, "{call}", "Calls that wait in the queue", _queued),
)


def _cpu(agent: AgentUsage) -> float:
    return agent.cpu_ns * _NANO


def _level(member: str) -> UsageReader:
    """A member of the usage of an agent's process, if there is one and it was measured."""

    def read(agent: AgentUsage) -> float | None:
        return getattr(agent.usage, member, None)

    return read


_CPU_TEXT: Final = "Processor time of an agent's processes, over all its runs"

_AGENT_LEVELS: Final = (
    (names.AGENT_MEMORY, "By", "Memory of an agent's processes", "memory_bytes"),
    (names.AGENT_DISK, "By", "Disk space of an agent's workspace", "disk_bytes"),
    (names.AGENT_FILES, "{file}", "Files in an agent's workspace", "files"),
    (names.AGENT_PIDS, "{task}", "Processes and threads of an agent", "pids"),
    (names.AGENT_CONNECTIONS, "{connection}", "Connections of an agent", "connections"),
)
"""The last is a member of `Usage`."""
