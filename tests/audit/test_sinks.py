"""A copy that is slow, hangs or fails is the copy's problem only."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import orjson
import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from callgate.audit import sinks
from callgate.audit.chain import Chain, wall_ns
from callgate.audit.events import Event, admitted, call_ids
from callgate.audit.sinks import OTelLogSink, Pump, StdoutSink
from callgate.audit.verify import verify
from callgate.model import AuditSpec
from tests.audit.helpers import FRAGMENT, START_NS, begin, call_id, end, only_writer, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LINE = Chain().seal(Event(event="policy.loaded").body(), START_NS)


class Kept:
    """Keeps what it gets; each `emit` waits until the gate is open."""

    name = "kept"

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.left = threading.Semaphore(0)
        self.closed = threading.Event()
        self.error: Exception | None = None

    def emit(self, lines: Sequence[bytes]) -> None:
        self.entered.release()
        assert self.gate.wait(10)
        if self.error is not None:
            self.left.release()
            raise self.error
        self.lines += lines
        self.left.release()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def kept() -> Iterator[Kept]:
    sink = Kept()
    yield sink
    sink.gate.set()


def test_a_sink_gets_the_same_bytes_as_the_disk(tmp_path: Path, kept: Kept) -> None:
    log = open_log(tmp_path, sinks=[kept])
    written = (only_writer(tmp_path) / "00000001.jsonl").stat().st_size
    begin(log, 1)
    log.stage(Event(event="policy.loaded").body())
    end(log, 1)
    log.close()

    assert kept.closed.is_set()
    data = (only_writer(tmp_path) / "00000001.jsonl").read_bytes()
    assert b"".join(kept.lines) == data[written:]
    assert log.snapshot()["sinks"]["kept"]["delivered"] == 3


def test_a_hung_sink_delays_no_record_and_its_lost_copies_are_counted(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "QUEUE_BATCHES", 10)
    monkeypatch.setattr(sinks, "DEADLINE_NS", 20_000_000)
    log = open_log(tmp_path, sinks=[kept])
    kept.gate.clear()
    begin(log, 0)
    assert kept.entered.acquire(timeout=10)

    started = time.monotonic()
    end(log, 0)
    for number in range(1, 100):
        begin(log, number)
        end(log, number)
    log.close()

    assert time.monotonic() - started < 1
    assert log.snapshot()["sinks"]["kept"]["dropped"] >= 199 - 10
    assert verify(tmp_path).ok


def test_a_stalled_sink_is_used_again_when_it_returns(kept: Kept) -> None:
    pump = Pump(kept, deadline_ns=0)
    kept.gate.clear()
    pump.offer([LINE])
    assert kept.entered.acquire(timeout=10)
    assert pump.stalled
    pump.offer([LINE, LINE])
    assert pump.snapshot()["dropped"] == 2

    kept.gate.set()
    pump.stop()
    pump.join(10)

    assert pump.snapshot() == {"delivered": 1, "dropped": 2, "queued": 0, "stalled": False}


def test_a_sink_is_stalled_only_after_its_deadline(kept: Kept) -> None:
    pump = Pump(kept)
    kept.gate.clear()
    pump.offer([LINE])
    assert kept.entered.acquire(timeout=10)

    assert not pump.stalled
    pump.offer([LINE])
    kept.gate.set()
    pump.stop()
    pump.join(10)

    assert pump.snapshot()["delivered"] == 2


def test_a_sink_that_fails_is_counted_and_tried_again(kept: Kept) -> None:
    pump = Pump(kept)
    kept.error = RuntimeError("down")
    pump.offer([LINE, LINE])
    assert kept.left.acquire(timeout=10)
    kept.error = None
    pump.offer([LINE])
    pump.stop()
    pump.join(10)

    assert pump.snapshot() == {"delivered": 1, "dropped": 2, "queued": 0, "stalled": False}


def test_a_line_that_was_not_written_is_not_copied(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, sinks=[kept], fail_closed=False)
    monkeypatch.setattr("callgate.audit.writer.os_write", lambda _fd, _data: 0)
    begin(log, 1)
    log.close()

    assert kept.lines == []


def test_the_policy_chooses_the_built_in_sinks() -> None:
    assert sinks.built_in_sinks(AuditSpec(path="x")) == []
    chosen = sinks.built_in_sinks(AuditSpec(path="x", stdout=True, otel=True))
    assert [sink.name for sink in chosen] == ["stdout", "otel"]


def test_standard_output_gets_whole_lines_though_its_pipe_is_full_and_non_blocking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sinks, "DEADLINE_NS", 1_000_000)
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    sink = StdoutSink(write_fd)
    many = [LINE] * (2 * 65_536 // len(LINE))
    with pytest.raises(TimeoutError):
        sink.emit(many)
    data = os.read(read_fd, 1 << 20)
    assert not data.endswith(b"\n")

    sink.emit([LINE])
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as rest:
        data += rest.read()

    assert set(data.splitlines(keepends=True)) == {LINE}


def test_a_reader_of_standard_output_that_went_away_is_an_error_of_the_sink() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    pump = Pump(StdoutSink(write_fd))
    pump.offer([LINE])
    pump.stop()
    pump.join(10)
    os.close(write_fd)

    assert pump.snapshot()["dropped"] == 1


def test_opentelemetry_gets_each_line_as_a_log_record(tmp_path: Path) -> None:
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    log = open_log(tmp_path, sinks=[OTelLogSink(provider)])
    log.record(admitted(FRAGMENT, call_id(1), call_ids(trace_id="ab" * 16), 4), 1)
    log.write(Event(event="security.denied", code="protocol.unauthorized"))
    log.close()
    provider.shutdown()

    first, second = (entry.log_record for entry in exporter.get_finished_logs())
    lines = (only_writer(tmp_path) / "00000001.jsonl").read_bytes().splitlines()
    line = orjson.loads(lines[-2])
    assert first.body == "tool.call.admitted"
    assert first.event_name == "callgate.tool.call.admitted"
    assert first.timestamp == wall_ns(line["ts"])
    assert first.trace_id == int("ab" * 16, 16)
    assert first.attributes is not None
    assert first.attributes["callgate.request_id"] == call_id(1)
    assert first.attributes["callgate.hash"] == line["hash"]
    assert first.attributes["callgate.queue_ms"] == 4
    assert (second.severity_text, second.trace_id) == ("security", 0)
