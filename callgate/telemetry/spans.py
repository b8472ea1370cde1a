"""Spans of tool calls: none without a provider, and never a peer's words on one.

The conventions want a peer's error message as the status description and record the
exception's text as an event. Both leak, so neither is done: an error is its code.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from callgate.telemetry import carrier as carriers
from callgate.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context.context import Context

# Not the process's configured propagator: MCP fixes these fields whatever else is in use.
_W3C = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


class CallSpan:
    """The span of one call: our own, or the MCP SDK's that we enrich and do not end.

    As a context manager it is the current span inside; exceptions pass it unseen.
    """

    __slots__ = ("_context", "_token", "borrowed", "otel")

    def __init__(self, otel: trace.Span, context: Context | None = None) -> None:
        self.otel = otel
        self.borrowed = context is None
        self._context = context
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        if self._context is not None:
            self._token = otel_context.attach(self._context)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None


class Spans:
    """Makes the spans of calls. A fault of a provider is counted and never fails a call."""

    __slots__ = ("_given", "_tracer", "enabled", "faults")

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._given = tracer_provider
        self._tracer: trace.Tracer | None = None
        self.enabled = False
        """Whether anybody listens; as of the last `refresh`."""
        self.faults = 0
        """How often a provider raised."""
        self.refresh()

    def refresh(self) -> None:
        """Look again whether a provider is configured; too slow to ask at every call."""
        provider = trace.get_tracer_provider() if self._given is None else self._given
        self._tracer = None
        if not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            tracer = provider.get_tracer(names.SCOPE_NAME)
            # What the SDK hands out when OTEL_SDK_DISABLED is set.
            if not isinstance(tracer, trace.NoOpTracer):
                self._tracer = tracer
        self.enabled = self._tracer is not None

    def start(
        self,
        agent: str | None,
        tool: str | None,
        request_id: str,
        carrier: Mapping[str, Any] | None = None,
    ) -> CallSpan | None:
        """The call's span, or None if nobody listens. Names that may not be shown are None.

        Its parent is the carrier's span, else the current one.
        """
        tracer = self._tracer
        if tracer is None:
            return None
        attributes = {names.OPERATION_NAME: names.EXECUTE_TOOL, names.REQUEST_ID: request_id}
        if agent is not None:
            attributes[names.AGENT_NAME] = agent
        if tool is not None:
            attributes[names.TOOL_NAME] = tool
        try:
            current = trace.get_current_span()
            if _is_fresh_mcp_span(current):
                current.set_attributes(attributes)
                return CallSpan(current)
            context = otel_context.get_current()
            if carrier is not None:
                context = _W3C.extract(carriers.clean(carrier), context)
            name = names.EXECUTE_TOOL if tool is None else f"{names.EXECUTE_TOOL} {tool}"
            span = tracer.start_span(name, context, attributes=attributes)
            return CallSpan(span, trace.set_span_in_context(span, context))
        except Exception:  # noqa: BLE001  # a user's sampler or processor; see `faults`
            self.faults += 1
            return None

    @staticmethod
    def activate(span: CallSpan | None) -> AbstractContextManager[None]:
        """Make the span (and the carrier's baggage) current while the tool runs."""
        return nullcontext() if span is None else span

    def end(self, span: CallSpan | None, code: str) -> None:
        """End the span once with the call's outcome: `names.OK` or an error's code."""
        if span is None:
            return
        otel = span.otel
        try:
            otel.set_attribute(names.OUTCOME, code)
            if code != names.OK:
                otel.set_attribute(names.ERROR_TYPE, code)
                otel.set_status(trace.StatusCode.ERROR)
            if not span.borrowed:
                otel.end()
        except Exception:  # noqa: BLE001  # a user's processor; see `faults`
            self.faults += 1

    @staticmethod
    def inject(carrier: MutableMapping[str, str]) -> None:
        """Write the current trace context and baggage into what goes out to the agent."""
        _W3C.inject(carrier)

    @staticmethod
    def trace_id(source: CallSpan | Mapping[str, Any] | None) -> str | None:
        """The trace id for the audit, of a span or of a peer's carrier."""
        if not isinstance(source, CallSpan):
            return carriers.trace_id(source)
        context = source.otel.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None


def _is_fresh_mcp_span(span: trace.Span) -> bool:
    """Whether it is the MCP SDK's span of this very call.

    A span that already has a request id belongs to an enclosing call of ours: this one is
    nested in it, and gets its own.
    """
    if not span.is_recording():
        return False
    # The API has no way to read a span; the SDK's has these two.
    if not str(getattr(span, "name", "")).startswith(names.MCP_TOOL_SPAN):
        return False
    return names.REQUEST_ID not in (getattr(span, "attributes", None) or {})
