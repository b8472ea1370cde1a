"""A resolution to the compiled specs that limits and router work with.

Pure. Which key becomes which member is the table's word (`keys.KEYS`). What is `unlimited` or
`off` is left out here, so that nothing behind it asks again.
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
from callgate.policy import units
from callgate.policy.keys import KEYS, entries

if TYPE_CHECKING:
    from callgate.policy.resolve import EffectiveValue, Resolution
    from callgate.policy.schema import Audit

_SPECS: dict[units.Unit | None, Any] = {
    units.DURATION: TimeSpec,
    units.SIZE: BytesSpec,
}


def lane_spec(
    resolution: Resolution,
    keys: tuple[str, str, str],
    *,
    agent: str | None,
    tool: str | None,
    policy: str,
) -> LaneSpec:
    """Return all that applies to one lane. `denied` and `denied_shadow` exclude each other."""
    members: dict[str, Any] = {}
    for name, entry in KEYS.items():
        if entry.key.by != "router":
            continue
        found, tried = resolution.values(name), resolution.tried(name)
        specs = [_spec(each, resolution) for each in found if entry.is_limit and each.active]
        trial = None if tried is None else _spec(tried, resolution)
        if f"tried_{name}" in LaneSpec.__struct_fields__:
            members[f"tried_{name}"] = trial
        if entry.joins == "every":
            members[entry.member] = tuple(specs if trial is None else [*specs, trial])
        elif entry.is_limit:
            members[entry.member] = specs[0] if specs else None
        else:
            members[entry.member] = found[0].value if found else None
    denied = members.pop("deny")
    mode = found[0].mode if (found := resolution.values("deny")) else "off"
    return LaneSpec(
        caller_key=keys[0],
        agent_key=keys[1],
        tool_key=keys[2],
        agent=agent,
        tool=tool,
        policy=policy,
        denied=bool(denied) and mode == "enforce",
        denied_shadow=bool(denied) and mode == "shadow",
        **members | {"isolate": members["isolate"] is not None},
    )


def gate_spec(resolution: Resolution, agent: str) -> GateSpec:
    """Return all that applies to the connection to an agent, whoever calls."""
    members: dict[str, Any] = {}
    for name, entry in KEYS.items():
        if entry.member in GateSpec.__struct_fields__:
            found = resolution.value(name)
            holds = found is not None and (not entry.is_limit or found.mode == "enforce")
            members[entry.member] = found.value if found is not None and holds else None
    return GateSpec(agent=agent, **members)


def audit_spec(audit: Audit, path: str) -> AuditSpec:
    """Return the audit's settings, with the spec's own defaults for what is not written."""
    stated = {
        entry.member: getattr(audit, entry.field)
        for entry in entries(type(audit))
        if entry.field in audit.model_fields_set
    }
    fail_closed = stated.pop("on_failure", None) != "drop"
    return AuditSpec(**stated | {"path": path, "fail_closed": fail_closed})


def _spec(each: EffectiveValue, resolution: Resolution) -> Any:
    shadow = each.mode == "shadow"
    if each.entry.unit is units.COUNT:
        waiting = resolution.would_wait(each) if shadow else 0
        return SlotSpec(each.scope, each.value, shadow, waiting)
    if each.entry.unit is not units.RATE:
        return _SPECS[each.entry.unit](each.scope, each.value, shadow)
    count, period_ns = each.value
    text = units.rate_text(count, period_ns)
    if each.rate is None:
        return QuotaSpec(each.scope, text, count, period_ns, shadow)
    burst, wait = each.rate.burst or count, each.rate.on_limit == "wait"
    return RateSpec(each.scope, text, count, period_ns, burst, wait, shadow)
