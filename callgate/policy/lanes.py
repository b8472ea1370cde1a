"""A resolution to the compiled specs that limits and router work with.

Pure. What is `unlimited` or `off` is left out here, so that nothing behind it asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from callgate.model import (
    AuditSpec,
    BytesSpec,
    GateSpec,
    LaneSpec,
    QuotaSpec,
    RateSpec,
    SlotSpec,
    TimeSpec,
)
from callgate.policy.units import rate_text

if TYPE_CHECKING:
    from callgate.policy.resolve import Choice, Resolution
    from callgate.policy.schema import Audit


def lane_spec(
    resolution: Resolution,
    keys: tuple[str, str, str],
    *,
    agent: str | None,
    tool: str | None,
    policy: str,
) -> LaneSpec:
    """Everything that applies to one lane. `denied` and `denied_shadow` exclude each other."""
    access = resolution.access()
    denied = access is not None and access.value
    mode = access.mode if access is not None else "off"
    queue = resolution.plain("queue")
    grace = resolution.plain("cancel_grace")
    ignored = resolution.plain("on_ignored_cancel")
    quota = resolution.quota()
    return LaneSpec(
        caller_key=keys[0],
        agent_key=keys[1],
        tool_key=keys[2],
        agent=agent,
        tool=tool,
        policy=policy,
        denied=denied and mode == "enforce",
        denied_shadow=denied and mode == "shadow",
        timeout=_time(resolution.plain("timeout")),
        max_timeout=_time(resolution.lowest("max_timeout")),
        rates=tuple(_rate(choice) for choice in resolution.rates() if choice.active),
        slots=tuple(
            SlotSpec(choice.scope, choice.value, choice.mode == "shadow")
            for choice in resolution.slots()
            if choice.active
        ),
        quota=_quota(quota) if quota is not None and quota.active else None,
        queue=queue.value if queue is not None else 0,
        max_input_bytes=_bytes(resolution.lowest("max_input_bytes")),
        max_output_bytes=_bytes(resolution.lowest("max_output_bytes")),
        isolate=resolution.plain("isolate") is not None,
        cancel_grace_ns=grace.value if grace is not None else 0,
        on_ignored_cancel=ignored.value if ignored is not None else "release",
    )


def gate_spec(resolution: Resolution, agent: str) -> GateSpec:
    """Everything that applies to the connection to an agent, whoever calls."""

    def setting(key: str) -> Any:
        choice = resolution.part("", key)
        return None if choice is None else choice.value

    def limit(key: str, section: str = "") -> Any:
        choice = resolution.part(section, key)
        return choice.value if choice is not None and choice.mode == "enforce" else None

    return GateSpec(
        agent=agent,
        protocol=setting("protocol"),
        max_frame_bytes=limit("max_frame_bytes"),
        handshake_ns=setting("handshake"),
        cancel_grace_ns=setting("cancel_grace"),
        requests_timeout_ns=limit("timeout", "requests"),
        bandwidth_bps=limit("bandwidth"),
        denials=setting("denials"),
        tasks=setting("tasks"),
    )


def audit_spec(audit: Audit, path: str) -> AuditSpec:
    """The audit's settings with the model's defaults for what is not written."""
    stated = audit.model_fields_set
    spec = AuditSpec(path=path)
    return AuditSpec(
        path=path,
        fail_closed=audit.on_failure != "drop",
        rotate_bytes=audit.rotate or spec.rotate_bytes,
        keep_ns=audit.keep if "keep" in stated else spec.keep_ns,
        max_bytes=audit.max_bytes if "max_bytes" in stated else spec.max_bytes,
        stdout=audit.stdout,
        otel=audit.otel,
    )


def _time(choice: Choice | None) -> TimeSpec | None:
    if choice is None or not choice.active:
        return None
    return TimeSpec(choice.scope, choice.value, choice.mode == "shadow")


def _bytes(choice: Choice | None) -> BytesSpec | None:
    if choice is None or not choice.active:
        return None
    return BytesSpec(choice.scope, choice.value, choice.mode == "shadow")


def _rate(choice: Choice) -> RateSpec:
    count, period_ns = choice.value
    rate = choice.rate
    return RateSpec(
        scope=choice.scope,
        text=rate_text(count, period_ns),
        count=count,
        period_ns=period_ns,
        burst=(rate.burst if rate is not None else None) or count,
        wait=rate is not None and rate.on_limit == "wait",
        shadow=choice.mode == "shadow",
    )


def _quota(choice: Choice) -> QuotaSpec:
    count, period_ns = choice.value
    text = rate_text(count, period_ns)
    return QuotaSpec(choice.scope, text, count, period_ns, choice.mode == "shadow")
