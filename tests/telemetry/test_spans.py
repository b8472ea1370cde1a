from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from callgate.telemetry import names
from callgate.telemetry.spans import Spans

if TYPE_CHECKING:
    from opentelemetry.context import Context

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
REQUEST = "0190a5b4-0000-7000-8000-000000000001"


class Recorded:
    """A real provider, and what it exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = Spans(self.provider)

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def one(self) -> ReadableSpan:
        (span,) = self.ended
        return span


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_without_a_provider_there_is_no_span() -> None:
    spans = Spans()

    span = spans.start("web", "search", REQUEST, {"traceparent": PARENT})

    assert not spans.enabled
    assert span is None
    spans.end(span, names.OK)
    assert spans.faults == 0


@pytest.mark.parametrize("provider", [trace.NoOpTracerProvider(), trace.ProxyTracerProvider()])
def test_a_provider_that_does_nothing_is_none(provider: trace.TracerProvider) -> None:
    assert not Spans(provider).enabled


def test_a_disabled_sdk_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")

    assert not Spans(TracerProvider(shutdown_on_exit=False)).enabled


def test_a_provider_that_comes_later_is_seen_at_the_next_refresh() -> None:
    # In a process of its own: the global provider can be set once.
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from callgate.telemetry.spans import Spans
spans = Spans()
assert not spans.enabled
trace.set_tracer_provider(TracerProvider())
assert not spans.enabled
spans.refresh()
assert spans.enabled
assert spans.start("web", "search", "id") is not None
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_a_span_says_who_what_and_how_it_ended(recorded: Recorded) -> None:
    span = recorded.spans.start("web", "search", REQUEST)
    recorded.spans.end(span, names.OK)

    ended = recorded.one()
    assert ended.name == "execute_tool search"
    assert ended.kind is trace.SpanKind.INTERNAL
    assert ended.parent is None
    assert ended.status.status_code is trace.StatusCode.UNSET
    assert dict(ended.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.agent.name": "web",
        "gen_ai.tool.name": "search",
        "callgate.request_id": REQUEST,
        "callgate.outcome": "ok",
    }


def test_names_that_may_not_be_shown_are_not(recorded: Recorded) -> None:
    recorded.spans.end(recorded.spans.start(None, None, REQUEST), names.OK)

    ended = recorded.one()
    assert ended.name == "execute_tool"
    assert (ended.attributes or {}).keys().isdisjoint({names.AGENT_NAME, names.TOOL_NAME})


def test_an_error_is_its_code_and_has_no_text(recorded: Recorded) -> None:
    recorded.spans.end(recorded.spans.start("web", "search", REQUEST), "limit.timeout")

    ended = recorded.one()
    assert ended.status.status_code is trace.StatusCode.ERROR
    assert ended.status.description is None
    assert (ended.attributes or {})["error.type"] == "limit.timeout"


def test_the_text_of_an_exception_never_reaches_a_span(recorded: Recorded) -> None:
    span = recorded.spans.start("web", "search", REQUEST)
    assert span is not None
    with pytest.raises(RuntimeError), span:
        raise RuntimeError("sk-secret")
    recorded.spans.end(span, "tool.failed")

    ended = recorded.one()
    assert ended.events == ()
    assert "sk-secret" not in ended.to_json()


def test_only_listed_attributes_are_recorded(recorded: Recorded) -> None:
    carrier = {"traceparent": PARENT, "baggage": "key=sk-secret", "authorization": "sk-secret"}
    recorded.spans.end(recorded.spans.start("web", "search", REQUEST, carrier), "internal")

    assert (recorded.one().attributes or {}).keys() <= names.SPAN_ATTRIBUTES
    assert "sk-secret" not in recorded.one().to_json()


def test_the_parent_is_the_carriers_span(recorded: Recorded) -> None:
    carrier = {"traceparent": PARENT, "tracestate": "rojo=1"}
    with recorded.provider.get_tracer("test").start_as_current_span("around"):
        span = recorded.spans.start("web", "search", REQUEST, carrier)
        recorded.spans.end(span, names.OK)

    ended = recorded.ended[0]
    assert ended.parent is not None
    assert ended.parent.is_remote
    assert trace.format_span_id(ended.parent.span_id) == "b7ad6b7169203331"
    assert trace.format_trace_id(ended.context.trace_id) == TRACE
    assert ended.context.trace_state == {"rojo": "1"}


@pytest.mark.parametrize("carrier", [None, {}, {"traceparent": "00-nonsense"}])
def test_without_a_carriers_span_the_parent_is_the_current_one(
    recorded: Recorded, carrier: dict[str, str] | None
) -> None:
    with recorded.provider.get_tracer("test").start_as_current_span("around") as around:
        recorded.spans.end(recorded.spans.start("web", "search", REQUEST, carrier), names.OK)

    assert recorded.ended[0].parent == around.get_span_context()


def test_inside_the_span_is_current_and_afterwards_it_is_not(recorded: Recorded) -> None:
    span = recorded.spans.start("web", "search", REQUEST, {"baggage": "tenant=a"})
    assert span is not None

    with span:
        assert trace.get_current_span() is span.otel
        assert baggage.get_baggage("tenant") == "a"

    assert trace.get_current_span() is trace.INVALID_SPAN
    assert baggage.get_baggage("tenant") is None
    recorded.spans.end(span, names.OK)


def test_context_that_came_in_goes_out_with_our_span_as_parent(recorded: Recorded) -> None:
    carrier = {"traceparent": PARENT, "tracestate": "rojo=1", "baggage": "tenant=a%20b"}
    span = recorded.spans.start("web", "search", REQUEST, carrier)
    assert span is not None
    out: dict[str, str] = {}

    with span:
        recorded.spans.inject(out)
    recorded.spans.end(span, names.OK)

    own = trace.format_span_id(span.otel.get_span_context().span_id)
    assert out == {
        "traceparent": f"00-{TRACE}-{own}-01",
        "tracestate": "rojo=1",
        "baggage": "tenant=a+b",
    }


def test_without_a_span_nothing_is_injected() -> None:
    out: dict[str, str] = {}

    Spans().inject(out)

    assert out == {}


def test_an_mcp_span_is_enriched_and_not_doubled(recorded: Recorded) -> None:
    with recorded.provider.get_tracer("mcp").start_as_current_span("tools/call search") as theirs:
        span = recorded.spans.start("web", "search", REQUEST)
        assert span is not None
        with span:
            assert trace.get_current_span() is theirs
        recorded.spans.end(span, "limit.rate")
        assert recorded.ended == ()

    ended = recorded.one()
    assert ended.name == "tools/call search"
    assert (ended.attributes or {})["callgate.request_id"] == REQUEST
    assert (ended.attributes or {})["error.type"] == "limit.rate"
    assert ended.status.description is None


@pytest.mark.parametrize(("tool", "name"), [("search", "tools/call search"), (None, "tools/call")])
def test_an_mcp_span_without_a_name_is_given_one_that_may_be_shown(
    recorded: Recorded, tool: str | None, name: str
) -> None:
    with recorded.provider.get_tracer("mcp").start_as_current_span("tools/call"):
        recorded.spans.end(recorded.spans.start("web", tool, REQUEST), "limit.rate")

    assert recorded.one().name == name


def test_a_suspended_call_is_no_error(recorded: Recorded) -> None:
    recorded.spans.end(recorded.spans.start("web", "search", REQUEST), names.SUSPENDED)

    ended = recorded.one()
    assert ended.status.status_code is trace.StatusCode.UNSET
    assert (ended.attributes or {})[names.OUTCOME] == "tool.suspended"
    assert names.ERROR_TYPE not in (ended.attributes or {})


def test_a_call_nested_in_an_mcp_call_has_its_own_span(recorded: Recorded) -> None:
    with recorded.provider.get_tracer("mcp").start_as_current_span("tools/call search") as theirs:
        outer = recorded.spans.start("web", "search", REQUEST)
        assert outer is not None
        with outer:
            recorded.spans.end(recorded.spans.start("db", "query", "inner"), names.OK)
        recorded.spans.end(outer, names.OK)

    inner, ended = recorded.ended
    assert inner.name == "execute_tool query"
    assert inner.parent == theirs.get_span_context()
    assert (ended.attributes or {})["callgate.request_id"] == REQUEST


def test_a_span_that_is_not_sampled_still_carries_the_trace() -> None:
    spans = Spans(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    out: dict[str, str] = {}

    span = spans.start("web", "search", REQUEST, {"traceparent": PARENT})
    assert span is not None
    with span:
        spans.inject(out)
    spans.end(span, names.OK)

    assert Spans.trace_id(span) == TRACE
    assert out["traceparent"].startswith(f"00-{TRACE}-")
    assert out["traceparent"].endswith("-00")


def test_the_trace_id_is_the_spans_or_the_carriers(recorded: Recorded) -> None:
    span = recorded.spans.start("web", "search", REQUEST)
    assert span is not None

    assert Spans.trace_id(span) == trace.format_trace_id(span.otel.get_span_context().trace_id)
    assert Spans.trace_id({"traceparent": PARENT}) == TRACE
    assert Spans.trace_id({"traceparent": "x"}) is None
    assert Spans.trace_id(None) is None
    recorded.spans.end(span, names.OK)


class Broken(SpanProcessor):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise RuntimeError("on start")


class BrokenAtEnd(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("on end")


@pytest.mark.parametrize("processor", [Broken(), BrokenAtEnd()])
def test_a_broken_processor_is_counted_and_fails_no_call(processor: SpanProcessor) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    spans = Spans(provider)

    spans.end(spans.start("web", "search", REQUEST), names.OK)

    assert spans.faults == 1
