"""Whether and how a call waits: its deadline, why it may not wait, and the queues of all agents.

Synchronous. `Queues` takes counters for the calls that it admits and leaves the rest to the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callgate.errors import CallgateError, CallTimedOut, InvalidInput
from callgate.limits.admission import find_refusal
from callgate.router import refusals
from callgate.router.flight import blocked_by_ancestors

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.router.flight import Flight
    from callgate.router.lanes import Agent, Lane


def deadline_of(
    lane: Lane, request_id: str, timeout_ms: int | None, parent: Flight | None, now_ns: int
) -> int | CallgateError:
    """When a call must end that asks for a time of its own, or is nested in another."""
    if timeout_ms is None:
        deadline_ns = now_ns + lane.default_ns
    elif timeout_ms.__class__ is not int or timeout_ms <= 0:
        return refusals.plain(InvalidInput, lane, request_id)
    else:
        deadline_ns = now_ns + min(timeout_ms * 1_000_000, lane.ceiling_ns)
    if parent is None or parent.deadline_ns >= deadline_ns or parent.ended_by_itself:
        return deadline_ns
    if parent.deadline_ns <= now_ns:
        return refusals.plain(CallTimedOut, lane, request_id)
    return parent.deadline_ns


def no_room(
    lane: Lane, request_id: str, parent: Flight | None, now_ns: int, deadline_ns: int
) -> CallgateError | None:
    """Why a call that cannot enter may not wait either."""
    queue = lane.spec.queue
    refusal = find_refusal(lane.rates, lane.slots, now_ns, queue=queue > 0)
    if refusal is None:
        raise AssertionError("`admit` and `find_refusal` read the same counters")
    retry_ns = refusal.retry_after_ns
    full = len(lane.agent.queue) >= queue
    if refusal.may_wait and full and retry_ns is None:
        return refusals.queue_full(lane, request_id)
    if not refusal.may_wait or full or (retry_ns is not None and now_ns + retry_ns > deadline_ns):
        return refusals.limited(lane, request_id, refusal, now_ns)
    if parent is not None:
        blocking = blocked_by_ancestors(lane, parent)
        if blocking is not None:
            return refusals.full(lane, request_id, blocking)
    return None


class Queues:
    """Calls that wait. While none does, this costs a look at `agents`."""

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
        lane.caller.waiting_calls += 1
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

    def admit_waiting(self, now_ns: int, enter: Callable[[Flight], None]) -> None:
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
    lane.caller.waiting_calls -= 1
    lane.recorder.pins -= 1
    lane.stats.queued -= 1
    lane.stats.waited(now_ns - flight.queued_ns)
