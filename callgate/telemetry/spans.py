"""Spans of tool calls: none without a provider, and never a peer's words on one.

What knows OpenTelemetry is in `tracing`, which is imported only if somebody may listen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from callgate.telemetry import carrier as carriers
from callgate.telemetry.nobody import NOBODY

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from opentelemetry.trace import Tracer, TracerProvider

    from callgate.telemetry.tracing import CallSpan


class Spans:
    """Makes the spans of calls. A fault of a provider is counted and never fails a call."""

    __slots__ = ("_given", "_tracer", "enabled", "faults")

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._given = tracer_provider
        self._tracer: Tracer | None = None
        self.enabled = False
        """Whether anybody listens; as of the last `refresh`."""
        self.faults = 0
        """How often a provider raised."""
        self.refresh()

    def refresh(self) -> None:
        """Look again whether a provider is configured; too slow to ask at every call."""
        if self._given is not NOBODY:
            from callgate.telemetry import tracing  # noqa: PLC0415  # see above

            self._tracer = tracing.tracer_of(self._given)
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
        if self._tracer is None:
            return None
        from callgate.telemetry import tracing  # noqa: PLC0415  # see above

        try:
            return tracing.start(self._tracer, agent, tool, request_id, carrier)
        except Exception:  # noqa: BLE001  # a user's sampler or processor; see `faults`
            self.faults += 1
            return None

    def end(self, span: CallSpan | None, code: str) -> None:
        """End the span once with the call's outcome: `names.OK` or an error's code."""
        if span is None:
            return
        try:
            span.end(code)
        except Exception:  # noqa: BLE001  # a user's processor; see `faults`
            self.faults += 1

    @staticmethod
    def inject(carrier: MutableMapping[str, str]) -> None:
        """Write the current trace context and baggage into what goes out to the agent."""
        from callgate.telemetry import tracing  # noqa: PLC0415  # see above

        tracing.W3C.inject(carrier)

    @staticmethod
    def trace_id(source: CallSpan | Mapping[str, Any] | None) -> str | None:
        """The trace id for the audit, of a span or of a peer's carrier."""
        if source is None or isinstance(source, Mapping):
            return carriers.trace_id(source)
        return source.trace_id()
