"""What is counted on the wire besides calls, with the real OpenTelemetry SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from callgate.telemetry import names
from tests.peers.helpers import answer, call, request, rig

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock

Counts = dict[tuple[str, str | None], float]


def counts(reader: InMemoryMetricReader, wanted: set[str]) -> Counts:
    """By metric and its one attribute's value."""
    data = reader.get_metrics_data()
    assert data is not None
    found: Counts = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points if metric.name in wanted else ():
                    value = next(iter((point.attributes or {}).values()), None)
                    found[metric.name, None if value is None else str(value)] = point.value  # type: ignore[union-attr]
    return found


async def test_requests_rejected_frames_and_strays_are_counted(
    tmp_path: Path, clock: Clock
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with rig(tmp_path, clock, meter_provider=provider) as gate:
        gate.client(request(1, "ping"), request(2, "ping"), request(3, "sesame/open"), call(4))
        gate.client(b"not JSON\n")
        gate.agent(answer(777), b"noise\n")

        found = counts(reader, {names.REQUESTS, names.FRAMES_REJECTED, names.STRAYS})

    assert found == {
        ("callgate.requests", "ping"): 2,
        ("callgate.requests", "other"): 1,
        ("callgate.frames.rejected", "json"): 2,
        ("callgate.strays", None): 1,
    }
