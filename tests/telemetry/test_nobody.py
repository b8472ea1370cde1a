"""A gate's own process: OpenTelemetry only if somebody may listen there, and then all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callgate.telemetry.metrics import Metrics
from callgate.telemetry.nobody import NOBODY, configured
from callgate.telemetry.spans import Spans

if TYPE_CHECKING:
    import pytest

PATIENCE_S = 60
ECHO = Path(__file__).parents[2] / "benchmarks" / "stdio_echo.py"

LISTEN = """
import json, os, pathlib
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

class Ear(SpanProcessor):
    "Hears of a call when its span ends, and what is counted by then."
    def on_end(self, span):
        (resource,) = reader.get_metrics_data().resource_metrics
        counted = [metric.name for scope in resource.scope_metrics for metric in scope.metrics]
        heard.append({"span": span.name, "counted": counted})

heard = []
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(Ear())
trace.set_tracer_provider(provider)

from callgate.cli import main
try:
    main()
finally:
    pathlib.Path(os.environ["HEARD"]).write_text(json.dumps(heard))
"""


def test_nobody_is_neither_asked_nor_told() -> None:
    spans = Spans(NOBODY)
    metrics = Metrics(list, meter_provider=NOBODY)

    spans.refresh()

    assert not spans.enabled
    assert spans.start("web", "search", "id") is None
    metrics.close()


def test_without_the_api_and_its_variables_nobody_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)

    assert configured() is NOBODY
    monkeypatch.setenv("OTEL_PYTHON_METER_PROVIDER", "sdk_meter_provider")
    assert configured() is None


def test_who_has_imported_the_api_may_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", sys)

    assert configured() is None


def test_a_provider_that_was_set_up_before_the_gate_hears_of_its_calls(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in asked)

    done = subprocess.run(
        [sys.executable, "-c", LISTEN, "run", "--", sys.executable, str(ECHO)],
        input=lines.encode(),
        capture_output=True,
        env={"HEARD": str(tmp_path / "heard"), "XDG_STATE_HOME": str(tmp_path), "PATH": "/bin"},
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (heard,) = json.loads((tmp_path / "heard").read_text())
    assert heard["span"].startswith("execute_tool")
    assert {"callgate.calls.in_flight", "callgate.requests"} <= {*heard["counted"]}
