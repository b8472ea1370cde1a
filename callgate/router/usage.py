"""What the processes of agents use, for snapshots and metrics. Pure: others measure.

A run that lives is asked for its last look whenever somebody wants to know, perhaps from an
exporter's thread; of one that ended only the sum of its processor time is kept. One entry for
each agent, whose names come from a policy or a command line and never from a peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from callgate.model import RunState, Usage


class Observed(Protocol):
    """As much of a run as is looked at here."""

    @property
    def run_id(self) -> str: ...

    @property
    def state(self) -> RunState: ...

    def usage(self) -> Usage:
        """The last look at it; never blocks, whichever thread asks."""


class AgentUsage:
    """One agent's process, over all its runs."""

    __slots__ = ("_now", "agent")

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self._now: tuple[int, str | None, RunState | None, Observed | None] = (0, None, None, None)
        """Processor time of the runs that ended; id and state of the last; it, if it lives.
        One value: whoever reads from another thread sees all of an end, or nothing."""

    def began(self, run: Observed) -> None:
        """A process was started."""
        self._now = (self._now[0], run.run_id, None, run)

    def ended(self, state: RunState, usage: Usage) -> None:
        """It is gone; `usage` is what is known of it in the end."""
        before_ns, run_id, _, _ = self._now
        self._now = (before_ns + (usage.cpu_ns or 0), run_id, state, None)

    @property
    def cpu_ns(self) -> int:
        """Processor time of all runs together, which never shrinks."""
        before_ns, _, _, run = self._now
        return before_ns + (0 if run is None else run.usage().cpu_ns or 0)

    @property
    def usage(self) -> Usage | None:
        """What the process uses; None if there is none."""
        run = self._now[3]
        return None if run is None else run.usage()

    def row(self) -> dict[str, Any]:
        """For a snapshot."""
        _, run_id, state, run = self._now
        return {
            "agent": self.agent,
            "run_id": run_id,
            "state": state if run is None else run.state,
            "usage": None if run is None else msgspec.structs.asdict(run.usage()),
        }


class Usages:
    """The processes behind one router, by agent."""

    __slots__ = ("_agents",)

    def __init__(self) -> None:
        self._agents: dict[str, AgentUsage] = {}

    def of(self, agent: str) -> AgentUsage:
        """The agent's entry; made at its first use."""
        found = self._agents.get(agent)
        if found is None:
            found = self._agents[agent] = AgentUsage(agent)
        return found

    def all(self) -> list[AgentUsage]:
        """A list of its own, also for another thread."""
        return list(self._agents.values())
