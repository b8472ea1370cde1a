"""A call's span in OpenTelemetry's terms; `spans` decides whether there is one.

The conventions want a peer's error message as the status description and record the
exception's text as an event. Both leak, so neither is done: an error is its code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from callgate.telemetry import carrier as carriers
from callgate.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context.context import Context

# Not the process's configured propagator: MCP fixes these fields whatever else is in use.
W3C = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


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

    def end(self, code: str) -> None:
        """Say how the call ended; one that is borrowed is ended by whoever made it."""
        self.otel.set_attribute(names.OUTCOME, code)
        if code not in {names.OK, names.SUSPENDED}:
            self.otel.set_attribute(names.ERROR_TYPE, code)
            self.otel.set_status(trace.StatusCode.ERROR)
        if not self.borrowed:
            self.otel.end()

    def trace_id(self) -> str | None:
        """As the audit writes it."""
        context = self.otel.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None


def tracer_of(given: trace.TracerProvider | None) -> trace.Tracer | None:
    """The provider's, by default the process's; None if it is one that does nothing."""
    provider = trace.get_tracer_provider() if given is None else given
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    tracer = provider.get_tracer(names.SCOPE_NAME)
    # What the SDK hands out when OTEL_SDK_DISABLED is set.
    return None if isinstance(tracer, trace.NoOpTracer) else tracer


def start(
    tracer: trace.Tracer,
    agent: str | None,
    tool: str | None,
    request_id: str,
    carrier: Mapping[str, Any] | None,
) -> CallSpan:
    """A call's span; see `Spans.start`."""
    attributes = {names.OPERATION_NAME: names.EXECUTE_TOOL, names.REQUEST_ID: request_id}
    if agent is not None:
        attributes[names.AGENT_NAME] = agent
    if tool is not None:
        attributes[names.TOOL_NAME] = tool
    current = trace.get_current_span()
    if _is_fresh_mcp_span(current):
        current.set_attributes(attributes)
        # FastMCP names its span only when the call gets as far as the tool.
        if tool is not None and getattr(current, "name", None) == names.MCP_TOOL_SPAN:
            current.update_name(f"{names.MCP_TOOL_SPAN} {tool}")
        return CallSpan(current)
    context = otel_context.get_current()
    if carrier is not None:
        context = W3C.extract(carriers.clean(carrier), context)
    name = names.EXECUTE_TOOL if tool is None else f"{names.EXECUTE_TOOL} {tool}"
    span = tracer.start_span(name, context, attributes=attributes)
    return CallSpan(span, trace.set_span_in_context(span, context))


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
