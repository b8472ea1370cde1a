"""The events of a run, as the gate and `exec` record them: how it began, and how it ended.

Pure. `callgate runs` is told from these records; there is no other history of runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from callgate.audit.events import Event
from callgate.launcher.plan import NOT_ASKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from callgate.audit.events import EventName
    from callgate.launcher.protocol import Effect, Stopped

_ENDS: Final[dict[str, EventName]] = {
    "stopped": "agent.run_stopped",
    "crashed": "agent.run_crashed",
    "paused": "agent.run_paused",
}
_MS_NS: Final = 1_000_000


def started(
    agent: str, run_id: str, effective: Mapping[str, Effect], policy: str | None = None
) -> list[Event]:
    """Return the start of a run, and an event for each feature that was asked for and lacks."""
    events = [Event(event="agent.run_started", agent=agent, run_id=run_id, policy=policy)]
    for feature, effect in effective.items():
        if effect.status != "enforced" and effect.reason != NOT_ASKED:
            events.append(
                Event(
                    event="agent.containment_degraded",
                    agent=agent,
                    run_id=run_id,
                    policy=policy,
                    code=effect.status,
                    limit=feature,
                )
            )
    return events


def ended(
    agent: str, run_id: str, stopped: Stopped, lasted_ns: int, policy: str | None = None
) -> Event:
    """Return the end of a run: why, which limit, how long, and what it used."""
    limit, usage = stopped.limit, stopped.usage
    cpu_ns = usage.cpu_ns
    return Event(
        event=_ENDS.get(stopped.state, "agent.run_crashed"),
        agent=agent,
        run_id=run_id,
        policy=policy,
        code=stopped.reason,
        limit=None if limit is None else f"{limit.type} {limit.scope} {limit.limit}",
        usage=None if limit is None else limit.usage,
        usage_limit=limit.limit if limit is not None and isinstance(limit.limit, int) else None,
        duration_ms=max(0, lasted_ns) // _MS_NS,
        exit_code=stopped.exit_code,
        signal=stopped.signal,
        cpu_ms=None if cpu_ns is None else cpu_ns // _MS_NS,
        memory_peak_bytes=usage.memory_peak_bytes,
    )
