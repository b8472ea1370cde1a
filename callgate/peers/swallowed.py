"""Answers in lines that cannot be read: the calls that they belong to need not time out.

Synchronous. A server that prints to its stdout without a line's end swallows the answer that comes
next: the line is noise and the call would wait for its deadline. A server that logs its answers
there prints a line that looks the same, and the answer follows; so a call is given time for that
before it is ended.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from callgate.protocol.seek import answered_in

if TYPE_CHECKING:
    from callgate.peers.agent import AgentPeer

GRACE_NS: Final = 1_000_000_000
"""For the answer to come in a line of its own. A log line and what it tells of are written by one
program, one after the other."""


class Swallowed:
    """The calls of one agent whose answers were seen in lines that cannot be read."""

    __slots__ = ("_agent", "_doubted")

    def __init__(self, agent: AgentPeer) -> None:
        self._agent = agent
        self._doubted: set[int] = set()
        """Ids of calls whose time runs; each is in flight or was within `GRACE_NS`."""

    def look(self, line: bytes) -> None:
        """End the calls that `line` answers unless their answers come in time."""
        agent = self._agent
        for gate_id in answered_in(line):
            if gate_id in agent.pending and gate_id not in self._doubted:
                self._doubted.add(gate_id)
                agent.hub.call_later(GRACE_NS, partial(self._give_up, gate_id))

    def _give_up(self, gate_id: int, _: int) -> None:
        self._doubted.discard(gate_id)
        if gate_id in self._agent.pending:
            self._agent.unreadable(gate_id)
