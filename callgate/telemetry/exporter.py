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

    from callgate.telemetry.metrics import Metrics

Labels = tuple[tuple[str, str], ...]
Rows = Iterator[tuple[Labels, float]]
Reader = Callable[["Metrics"], Rows]
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
        """Count the source in; make the instruments that are not there yet."""
        provider = otel.get_meter_provider() if given is None else given
        meter = provider.get_meter(names.SCOPE_NAME)
        with self._lock:
            self._sources.add(source)
            for name, unit, text, read in _COUNTERS:
                if self._is_new(name):
                    meter.create_observable_counter(name, [self._observe(read)], unit, text)
            for name, unit, text, read in _LEVELS:
                if self._is_new(name):
                    observe = self._observe(read)
                    meter.create_observable_up_down_counter(name, [observe], unit, text)
            for name in (*source.counters, *source.tables):
                if self._is_new(name):
                    meter.create_observable_counter(name, [self._observe(_extra(name))])

    def _is_new(self, name: str) -> bool:
        if name in self._names:
            return False
        self._names.add(name)
        return True

    def _live(self) -> list[Metrics]:
        with self._lock:
            return list(self._sources)

    def _observe(self, read: Reader) -> Observe:
        """Return a callback that adds up, by labels, what `read` says of every source."""

        def observe(_: CallbackOptions) -> list[Observation]:
            totals: dict[Labels, float] = {}
            for source in self._live():
                for labels, value in read(source):
                    totals[labels] = totals.get(labels, 0) + value
            return [Observation(value, dict(labels)) for labels, value in totals.items()]

        return observe


_EXPORTERS: WeakKeyDictionary[MeterProvider, Exporter] = WeakKeyDictionary()
_EXPORTERS_LOCK = Lock()
_GLOBAL: dict[str, Exporter] = {}
"""The exporter of the process's provider, also before there is one."""


def _by_tool(read: Callable[[ToolStats], Rows]) -> Reader:
    """Read each tool's counters; the tool is a label."""

    def rows(source: Metrics) -> Rows:
        for stats in source.collect():
            tool = (
                (names.AGENT_NAME, stats.agent or names.OTHER),
                (names.TOOL_NAME, stats.tool or names.OTHER),
            )
            for labels, value in read(stats):
                yield tool + labels, value

    return rows


def _plain(member: str, scale: float = 1) -> Reader:
    """Read a counter of a tool that has no further label."""
    return _by_tool(lambda stats: iter([((), getattr(stats, member) * scale)]))


def _agent(member: str, scale: float = 1) -> Reader:
    """Read a member of each agent's usage, where there is one and it was measured."""

    def rows(source: Metrics) -> Rows:
        for agent in source.usages():
            value = getattr(agent if member == "cpu_ns" else agent.usage, member, None)
            if value is not None:
                yield ((names.AGENT_NAME, agent.agent),), value * scale

    return rows


def _extra(name: str) -> Reader:
    """Read a source's own counter or table of this name."""

    def rows(source: Metrics) -> Rows:
        counter, table = source.counters.get(name), source.tables.get(name)
        if counter is not None:
            yield (), counter()
        if table is not None:
            attribute, read_table = table
            for value, count in read_table().items():
                yield ((attribute, value),), count

    return rows


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


_COUNTERS: Final[tuple[tuple[str, str, str, Reader], ...]] = (
    (names.CALLS, "{call}", "Admitted calls that ended, by outcome", _by_tool(_calls)),
    (
        names.REFUSALS,
        "{call}",
        "Calls refused, by error code and kind of scope",
        _by_tool(_refusals),
    ),
    (names.SHADOW, "{call}", "Calls that a shadowed limit would have refused", _by_tool(_shadow)),
    (names.LATE, "{answer}", "Answers that came after their call was settled", _plain("late")),
    (
        names.DURATION_BUCKET,
        "{call}",
        "Calls that ended within `le` seconds",
        _by_tool(_duration_bucket),
    ),
    (names.DURATION_SUM, "s", "Time spent in calls that ended", _plain("duration_ns", _NANO)),
    (names.DURATION_COUNT, "{call}", "Calls that ended", _plain("duration_count")),
    (
        names.QUEUE_WAIT_SUM,
        "s",
        "Time spent in the queue by calls that left it",
        _plain("wait_ns", _NANO),
    ),
    (names.QUEUE_WAIT_COUNT, "{call}", "Calls that left the queue", _plain("wait_count")),
    (
        names.AGENT_CPU,
        "s",
        "Processor time of an agent's processes, over all its runs",
        _agent("cpu_ns", _NANO),
    ),
)

_LEVELS: Final[tuple[tuple[str, str, str, Reader], ...]] = (
    (names.IN_FLIGHT, "{call}", "Admitted calls that have not ended", _plain("in_flight")),
    (names.QUEUE_DEPTH, "{call}", "Calls that wait in the queue", _plain("queued")),
    (names.AGENT_MEMORY, "By", "Memory of an agent's processes", _agent("memory_bytes")),
    (names.AGENT_DISK, "By", "Disk space of an agent's workspace", _agent("disk_bytes")),
    (names.AGENT_FILES, "{file}", "Files in an agent's workspace", _agent("files")),
    (names.AGENT_PIDS, "{task}", "Processes and threads of an agent", _agent("pids")),
    (names.AGENT_CONNECTIONS, "{connection}", "Connections of an agent", _agent("connections")),
)
