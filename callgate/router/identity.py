"""Who a call belongs to: correlation and causation ids, trace and span.

Ids from outside are kept only if they are UUIDs; anything else is replaced by one of ours, so
that related records stay related and no text gets in. A nested call belongs to the call that
it is nested in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from callgate.audit.events import call_ids, safe_trace_id, safe_uuid
from callgate.telemetry.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.model import ToolCall
    from callgate.router.flight import Flight
    from callgate.router.lanes import Lane
    from callgate.telemetry.tracing import CallSpan


def is_identified(call: ToolCall) -> bool:
    """Whether a call says of itself what it belongs to."""
    return (
        call.correlation_id is not None or call.causation_id is not None or call.trace is not None
    )


class Ids(NamedTuple):
    """What a call belongs to."""

    correlation_id: str | None
    text: str
    """All ids, as the audit writes them."""


def identify(
    lane: Lane,
    request_id: str,
    call: ToolCall,
    spans: Spans,
    parent: Flight | None,
    new_id: Callable[[], str],
) -> tuple[Ids, CallSpan | None]:
    """The ids and the span of a call."""
    correlation_id = call.correlation_id
    causation_id = call.causation_id
    if correlation_id is not None:
        correlation_id = _uuid(correlation_id) or new_id()
    elif parent is not None:
        correlation_id = parent.correlation_id or parent.request_id
    if causation_id is not None:
        causation_id = _uuid(causation_id) or new_id()
    elif parent is not None:
        causation_id = parent.request_id
    trace = call.trace if isinstance(call.trace, Mapping) else None
    span = None
    if spans.enabled:
        span = spans.start(lane.spec.agent, lane.spec.tool, request_id, trace)
    trace_id = Spans.trace_id(span or trace)
    text = call_ids(
        correlation_id, causation_id, None if trace_id is None else safe_trace_id(trace_id)
    )
    return Ids(correlation_id, text), span


def _uuid(given: Any) -> str | None:
    """Nothing checks the types of a program's `ToolCall`, and a UUID is as good as its text."""
    return safe_uuid(str(given)) if isinstance(given, str | UUID) else None
