"""Copies of the audit for others: they may be slow, hang or fail, and no call notices.

The chain on disk is the audit; a sink gets each line after it is durable. Every sink has a
bounded queue and a thread of its own. A sink that takes longer than its deadline for one
`emit` counts as stalled: until that call returns, further copies are dropped and counted.
"""

from __future__ import annotations

import os
import select
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from callgate.audit.chain import wall_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry._logs import LoggerProvider, LogRecord

    from callgate.model import AuditSpec

QUEUE_BATCHES: Final = 4096
"""Some 200 ms of a gate at full speed, and a few MB at most."""

DEADLINE_NS: Final = 1_000_000_000
"""For one `emit`, and for all sinks together at the end."""


class Sink(Protocol):
    """Where copies of the lines go. Called from one thread of its own."""

    @property
    def name(self) -> str:
        """For counters."""

    def emit(self, lines: Sequence[bytes]) -> None:
        """Take some lines, each with its end; an exception counts them as dropped."""

    def close(self) -> None:
        """No more will come."""


class Pump:
    """A sink's queue and thread."""

    __slots__ = (
        "_busy_since_ns",
        "_deadline_ns",
        "_delivered",
        "_failed",
        "_missed",
        "_queue",
        "_sink",
        "_thread",
        "name",
    )

    def __init__(self, sink: Sink, *, deadline_ns: int = DEADLINE_NS) -> None:
        self.name = sink.name
        self._sink = sink
        self._deadline_ns = deadline_ns
        self._queue: SimpleQueue[Sequence[bytes] | None] = SimpleQueue()
        self._busy_since_ns = 0
        self._delivered = 0
        self._failed = 0
        self._missed = 0
        # A daemon, because nothing ends a thread that hangs in somebody else's code.
        self._thread = threading.Thread(
            target=self._run, name=f"callgate-audit-{sink.name}", daemon=True
        )
        self._thread.start()

    @property
    def stalled(self) -> bool:
        """Whether the sink has been in one `emit` for longer than its deadline."""
        since_ns = self._busy_since_ns
        return since_ns != 0 and time.monotonic_ns() - since_ns > self._deadline_ns

    def offer(self, lines: Sequence[bytes]) -> None:
        """Queue a copy, or drop it; never waits."""
        if self._queue.qsize() >= QUEUE_BATCHES or self.stalled:
            self._missed += len(lines)
        else:
            self._queue.put(lines)

    def stop(self) -> None:
        """Let the thread end after what is queued."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, but not for a sink that hangs."""
        self._thread.join(timeout_s)

    def snapshot(self) -> dict[str, Any]:
        """Counters: lines delivered and dropped, batches waiting."""
        return {
            "delivered": self._delivered,
            "dropped": self._missed + self._failed,
            "queued": self._queue.qsize(),
            "stalled": self.stalled,
        }

    def _run(self) -> None:
        while (lines := self._queue.get()) is not None:
            self._busy_since_ns = time.monotonic_ns()
            try:
                self._sink.emit(lines)
            except Exception:  # noqa: BLE001 - a sink is not ours; its copies are counted
                self._failed += len(lines)
            else:
                self._delivered += len(lines)
            self._busy_since_ns = 0
        try:
            self._sink.close()
        except Exception:  # noqa: BLE001 - as above
            self._failed += 1


def close_pumps(pumps: Iterable[Pump]) -> None:
    """End all sinks; they share one deadline."""
    pumps = list(pumps)
    for pump in pumps:
        pump.stop()
    until_ns = time.monotonic_ns() + DEADLINE_NS
    for pump in pumps:
        pump.join(max(0, until_ns - time.monotonic_ns()) / 1e9)


def built_in_sinks(spec: AuditSpec) -> list[Sink]:
    """The sinks that the policy asks for."""
    sinks: list[Sink] = []
    if spec.stdout:
        sinks.append(StdoutSink())
    if spec.otel:
        sinks.append(OTelLogSink())
    return sinks


class StdoutSink:
    """Lines on a descriptor, by default standard output, which may be non-blocking or closed."""

    name = "stdout"

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._rest = b""

    def emit(self, lines: Sequence[bytes]) -> None:
        """Write whole lines; after a deadline the begun one is finished by the next `emit`."""
        data = self._rest + b"".join(lines)
        written = self._write(data)
        self._rest = b""
        if written < len(data):
            begun = written > 0 and data[written - 1 : written] != b"\n"
            if begun:
                self._rest = data[written : data.index(b"\n", written) + 1]
            raise TimeoutError("nobody reads the descriptor")

    def close(self) -> None:
        """The descriptor is not ours to close."""

    def _write(self, data: bytes) -> int:
        written = 0
        view = memoryview(data)
        until_ns = time.monotonic_ns() + DEADLINE_NS
        while written < len(data):
            try:
                written += os.write(self._fd, view[written:])
            except BlockingIOError:
                left_s = (until_ns - time.monotonic_ns()) / 1e9
                if left_s <= 0 or not select.select([], [self._fd], [], left_s)[1]:
                    break
        return written


class OTelLogSink:
    """Lines as OpenTelemetry log records, by default of the program's own provider."""

    name = "otel"

    def __init__(self, provider: LoggerProvider | None = None) -> None:
        from opentelemetry import _logs as logs  # noqa: PLC0415 - slow, and seldom asked for
        from opentelemetry import trace  # noqa: PLC0415

        self._logs = logs
        self._trace = trace
        self._logger = logs.get_logger("callgate.audit", logger_provider=provider)
        number = logs.SeverityNumber
        self._severities = {
            "info": number.INFO,
            "warn": number.WARN,
            "error": number.ERROR,
            "security": number.ERROR2,
        }

    def emit(self, lines: Sequence[bytes]) -> None:
        """One log record a line, with the line's members as attributes."""
        for line in lines:
            self._logger.emit(self._record(orjson.loads(line)))

    def close(self) -> None:
        """The provider belongs to the program."""

    def _record(self, members: dict[str, Any]) -> LogRecord:
        trace = self._trace
        trace_id = int(members.pop("trace_id", "0"), 16)
        span = trace.NonRecordingSpan(trace.SpanContext(trace_id, span_id=0, is_remote=True))
        severity = members.pop("severity")
        return self._logs.LogRecord(
            timestamp=wall_ns(members.pop("ts")),
            context=trace.set_span_in_context(span),
            severity_text=severity,
            severity_number=self._severities[severity],
            body=members["event"],
            attributes={f"callgate.{name}": value for name, value in members.items()},
            event_name=f"callgate.{members['event']}",
        )
