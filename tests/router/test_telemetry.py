"""Spans, metrics and trace context of calls, with the real OpenTelemetry SDK."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from callgate import Router, ToolCall
from callgate.telemetry import names
from callgate.telemetry.spans import Spans
from tests.router.helpers import (
    OPEN,
    Clock,
    Gate,
    assert_nothing_is_left,
    audit_lines,
    call,
    echo,
    fail,
    only_id,
    policy,
    refused,
    running,
    turns,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT_SPAN = "b7ad6b7169203331"
CARRIER = {"traceparent": f"00-{TRACE}-{PARENT_SPAN}-01", "baggage": "team=blue"}

LIMITED = """
version: 1
defaults: {timeout: 10s}
agents:
  web:
    concurrency: 1
    queue: 1
    rate: 100/hour
    tools: {apart: {isolate: task}, no: deny, once: {rate: 1/hour}}
  soft: {rate: {limit: 1/hour, mode: shadow}}
"""


class Sdk:
    """Real providers, and what they export."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = TracerProvider(shutdown_on_exit=False)
        self.tracer.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter = MeterProvider([self.reader], shutdown_on_exit=False)

    @property
    def providers(self) -> dict[str, Any]:
        return {"tracer_provider": self.tracer, "meter_provider": self.meter}

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def one(self) -> ReadableSpan:
        (span,) = self.spans()
        return span

    def metric(self, name: str) -> dict[tuple[str, ...], float]:
        """Attribute values, in order, without the agent → number."""
        found: dict[tuple[str, ...], float] = {}
        for attributes, value in self._points(name):
            labels = {key: str(text) for key, text in attributes.items() if key != names.AGENT_NAME}
            found[tuple(labels.values())] = value
        return found

    def _points(self, name: str) -> Iterator[tuple[dict[str, Any], float]]:
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        yield dict(point.attributes or {}), point.value  # type: ignore[union-attr]


@pytest.fixture
def sdk() -> Sdk:
    return Sdk()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# Spans.


@pytest.mark.parametrize("tool", ["web/echo", "web/apart", "web/sync"])
async def test_a_call_is_one_span_with_names_and_nothing_else(
    tmp_path: Path, sdk: Sdk, tool: str
) -> None:
    def sync(value: int) -> int:
        return value

    tools = {"web/echo": echo, "web/apart": echo, "web/sync": sync}
    async with running(policy(LIMITED), tmp_path, tools, **sdk.providers) as router:
        await router.call(call(tool, value=1))

    span = sdk.one()
    name = tool.removeprefix("web/")
    assert span.name == f"execute_tool {name}"
    found = attributes(span)
    assert found.pop(names.REQUEST_ID)
    assert found == {
        names.OPERATION_NAME: "execute_tool",
        names.AGENT_NAME: "web",
        names.TOOL_NAME: name,
        names.OUTCOME: "ok",
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.events == ()


@pytest.mark.parametrize("ending", ["failure", "deadline", "cancel", "caller"])
async def test_a_call_that_ends_badly_is_a_span_with_its_code(
    tmp_path: Path, sdk: Sdk, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    clock = Clock(monkeypatch)
    tools = {"web/tool": fail if ending == "failure" else Gate()}
    async with running(policy(LIMITED), tmp_path, tools, **sdk.providers) as router:
        task = asyncio.create_task(router.call(call("web/tool")))
        await turns()
        if ending == "deadline":
            clock.expire(router, 10_000)
        elif ending == "cancel":
            router.cancel(only_id(router))
        elif ending == "caller":
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception()

    code = {"failure": "tool.failed", "deadline": "limit.timeout"}.get(ending, "tool.canceled")
    span = sdk.one()
    assert attributes(span)[names.OUTCOME] == attributes(span)[names.ERROR_TYPE] == code
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert span.events == ()


async def test_a_refused_call_is_a_span_too(tmp_path: Path, sdk: Sdk) -> None:
    async with running(policy(LIMITED), tmp_path, {"web/no": echo}, **sdk.providers) as router:
        error = await refused(router.call(call("web/no")))

    found = attributes(sdk.one())
    assert found[names.REQUEST_ID] == error.request_id
    assert found[names.ERROR_TYPE] == "policy.denied"


async def test_a_call_that_waits_in_vain_ends_its_span(tmp_path: Path, sdk: Sdk) -> None:
    gate = Gate()
    async with running(policy(LIMITED), tmp_path, {"web/gate": gate}, **sdk.providers) as router:
        first = asyncio.create_task(router.call(call("web/gate")))
        await gate.entered()
        second = asyncio.create_task(router.call(call("web/gate")))
        await turns()
        second.cancel()
        await asyncio.wait([second])

        assert attributes(sdk.one())[names.ERROR_TYPE] == "tool.canceled"
        gate.open()
        await within(first)
    assert len(sdk.spans()) == 2


# Trace context in and out.


@pytest.mark.parametrize("tool", ["web/look", "web/apart", "web/sync"])
async def test_a_tool_sees_the_calls_span_and_hands_it_on(
    tmp_path: Path, sdk: Sdk, tool: str
) -> None:
    out: dict[str, str] = {}

    def sync() -> None:
        Spans.inject(out)

    async def look() -> None:
        sync()

    tools = {"web/look": look, "web/apart": look, "web/sync": sync}
    async with running(policy(LIMITED), tmp_path, tools, **sdk.providers) as router:
        await router.call(ToolCall("web", tool.removeprefix("web/"), trace=CARRIER))

    span = sdk.one()
    assert span.parent is not None
    assert span.context is not None
    assert trace.format_trace_id(span.parent.trace_id) == TRACE
    assert trace.format_span_id(span.parent.span_id) == PARENT_SPAN
    assert out["traceparent"] == f"00-{TRACE}-{trace.format_span_id(span.context.span_id)}-01"
    assert out["baggage"] == "team=blue"


async def test_without_a_carrier_the_callers_span_is_the_parent(tmp_path: Path, sdk: Sdk) -> None:
    tracer = sdk.tracer.get_tracer("program")
    async with running(policy(LIMITED), tmp_path, **sdk.providers) as router:
        with tracer.start_as_current_span("agent loop") as outer:
            await router.call(call())
            assert trace.get_current_span() is outer

    inner = next(span for span in sdk.spans() if span.name.startswith("execute_tool"))
    assert inner.parent == outer.get_span_context()


async def test_a_nested_calls_span_is_under_its_parents(tmp_path: Path, sdk: Sdk) -> None:
    async with running(policy(OPEN), tmp_path, **sdk.providers) as router:

        async def outer() -> None:
            await router.call(call())

        router.add_tool("web", "outer", outer)
        await router.call(call("web/outer"))

    inner, parent = sdk.spans()
    assert (inner.name, parent.name) == ("execute_tool echo", "execute_tool outer")
    assert inner.parent == parent.context


async def test_the_audit_has_the_spans_trace(tmp_path: Path, sdk: Sdk) -> None:
    audit = tmp_path / "audit"
    async with running(policy(OPEN, audit=audit), tmp_path, **sdk.providers) as router:
        await router.call(call())

    context = sdk.one().context
    assert context is not None
    traces = {line["trace_id"] for line in audit_lines(audit) if "request_id" in line}
    assert traces == {trace.format_trace_id(context.trace_id)}


async def test_a_provider_that_fails_fails_no_call(tmp_path: Path, sdk: Sdk) -> None:
    class Broken(SimpleSpanProcessor):
        def on_start(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no")

        def on_end(self, span: Any) -> None:
            raise RuntimeError("no")

    sdk.tracer.add_span_processor(Broken(sdk.exporter))
    async with running(policy(OPEN), tmp_path, **sdk.providers) as router:
        assert await router.call(call(value=1)) == 1
        assert_nothing_is_left(router)


# Metrics.


async def test_calls_are_counted_by_outcome(tmp_path: Path, sdk: Sdk) -> None:
    tools = {"web/echo": echo, "web/fail": fail}
    async with running(policy(OPEN), tmp_path, tools, **sdk.providers) as router:
        for _ in range(3):
            await router.call(call())
        with pytest.raises(ValueError, match="no"):
            await router.call(call("web/fail"))

        counted = sdk.metric(names.CALLS)
        assert counted["echo", "ok"] == 3
        assert counted["fail", "tool.failed"] == 1
        assert sdk.metric(names.DURATION_COUNT) == {("echo",): 3, ("fail",): 1}
        assert sdk.metric(names.IN_FLIGHT) == {("echo",): 0, ("fail",): 0}


async def test_refusals_are_counted_by_code_and_kind_of_scope(tmp_path: Path, sdk: Sdk) -> None:
    gate = Gate()
    tools = {"web/gate": gate, "web/no": echo, "web/once": echo, "soft/echo": echo}
    async with running(policy(LIMITED), tmp_path, tools, **sdk.providers) as router:
        await router.call(call("web/once"))
        await refused(router.call(call("web/once")))
        await refused(router.call(call("web/no")))
        await refused(router.call(call("web/stranger")))
        tasks = [asyncio.create_task(router.call(call("web/gate"))) for _ in range(2)]
        await gate.entered()
        await refused(router.call(call("web/gate")))
        for _ in range(3):
            await router.call(call("soft/echo"))

        assert sdk.metric(names.REFUSALS) == {
            ("once", "limit.rate", "tool"): 1,
            ("no", "policy.denied", "none"): 1,
            ("other", "tool.unknown", "none"): 1,
            ("gate", "limit.concurrency", "agent"): 1,
        }
        assert sdk.metric(names.SHADOW) == {("echo", "limit.rate", "agent"): 2}
        assert sdk.metric(names.IN_FLIGHT)["gate",] == 1
        assert sdk.metric(names.QUEUE_DEPTH)["gate",] == 1
        gate.open()
        await gate.entered(2)
        gate.open()
        await within(asyncio.gather(*tasks))
        assert sdk.metric(names.QUEUE_WAIT_COUNT)["gate",] == 1
        assert sdk.metric(names.QUEUE_DEPTH)["gate",] == 0


async def test_late_answers_are_counted(tmp_path: Path, sdk: Sdk) -> None:
    done = asyncio.Event()

    async def stubborn() -> None:
        while not done.is_set():
            try:
                await done.wait()
            except asyncio.CancelledError:
                continue

    async with running(policy(LIMITED), tmp_path, {"web/apart": stubborn}, **sdk.providers) as one:
        task = asyncio.create_task(one.call(call("web/apart")))
        await turns()
        one.cancel(only_id(one))
        await refused(task)
        done.set()
        await turns()

        assert sdk.metric(names.LATE) == {("apart",): 1}


async def test_what_the_audit_let_go_is_counted(tmp_path: Path, sdk: Sdk) -> None:
    made = policy(OPEN, audit=tmp_path / "audit")
    async with running(made, tmp_path, **sdk.providers):
        assert sdk.metric(names.AUDIT_DROPPED) == {(): 0}


async def test_a_router_that_has_ended_reports_nothing(tmp_path: Path, sdk: Sdk) -> None:
    async with running(policy(OPEN), tmp_path, **sdk.providers) as router:
        await router.call(call())

    assert sdk.metric(names.CALLS) == {}


async def test_two_routers_of_one_provider_are_added_up(tmp_path: Path, sdk: Sdk) -> None:
    async with (
        running(policy(OPEN), tmp_path, **sdk.providers) as one,
        running(policy(OPEN), tmp_path, **sdk.providers) as two,
    ):
        for router in (one, two, two):
            await router.call(call())

        assert sdk.metric(names.CALLS) == {("echo", "ok"): 3}


# Without a provider.


async def test_without_a_provider_a_call_makes_no_span_and_touches_no_instrument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("asked for a span")

    async with running(policy(OPEN), tmp_path) as router:
        assert not router.engine.spans.enabled
        monkeypatch.setattr(Spans, "start", forbidden)
        monkeypatch.setattr(trace, "get_current_span", forbidden)

        assert await router.call(call(value=1)) == 1


async def test_without_a_provider_telemetry_costs_next_to_nothing(tmp_path: Path, sdk: Sdk) -> None:
    async def seconds(router: Router) -> float:
        began = time.perf_counter()
        for _ in range(300):
            await router.call(call())
        return time.perf_counter() - began

    async with (
        running(policy(OPEN), tmp_path) as without,
        running(policy(OPEN), tmp_path, **sdk.providers) as with_sdk,
    ):
        await seconds(without)
        await seconds(with_sdk)
        rounds = [(await seconds(without), await seconds(with_sdk)) for _ in range(7)]

    # An SDK's span costs some 40 µs, a whole call without one some 5; the best of each,
    # because a busy machine only ever adds.
    bare, spans = (min(times) for times in zip(*rounds, strict=True))
    assert bare / spans < 0.6
