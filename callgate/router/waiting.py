"""The waiting room: the queues of all agents, and who is let in next.

Synchronous. It takes counters for those it lets in and leaves the rest to the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.router.flight import Flight
    from callgate.router.lanes import Agent


class WaitingRoom:
    """Calls that wait. While it is empty it costs a look at `agents`."""

    __slots__ = ("agents",)

    def __init__(self) -> None:
        self.agents: dict[Agent, None] = {}
        """Agents with calls in their queue, in the order in which they are visited."""

    @property
    def refill_ns(self) -> int | None:
        """When a rate will next let somebody in, as far as was seen."""
        times = [agent.queue.refill_ns for agent in self.agents]
        return min((time for time in times if time is not None), default=None)

    def add(self, flight: Flight, now_ns: int) -> None:
        """Let a call wait for its turn."""
        lane = flight.lane
        flight.queued = True
        flight.queued_ns = now_ns
        lane.caller.pins += 1
        lane.recorder.pins += 1
        lane.stats.queued += 1
        lane.agent.queue.push(flight)
        self.agents.setdefault(lane.agent)

    def remove(self, flight: Flight, now_ns: int) -> None:
        """Take a waiting call out."""
        agent = flight.lane.agent
        agent.queue.remove(flight)
        if not len(agent.queue):
            self.agents.pop(agent, None)
        _left(flight, now_ns)

    def let_in(self, now_ns: int, enter: Callable[[Flight], None]) -> None:
        """Visit every agent once; whoever fits has its counters taken and enters.

        `enter` may give counters back (its record could not be written): then others may fit
        in its place, and the agent is visited again.
        """
        for agent in list(self.agents):
            while True:
                entered = agent.queue.enter(now_ns)
                for flight in entered:
                    _left(flight, now_ns)
                    enter(flight)
                if all(flight.holds_slots for flight in entered):
                    break
            self.agents.pop(agent, None)
            if len(agent.queue):
                self.agents[agent] = None  # behind the others: next time they come first


def _left(flight: Flight, now_ns: int) -> None:
    flight.queued = False
    lane = flight.lane
    lane.caller.pins -= 1
    lane.recorder.pins -= 1
    lane.stats.queued -= 1
    lane.stats.waited(now_ns - flight.queued_ns)
