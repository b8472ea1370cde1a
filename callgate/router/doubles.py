"""Names of tools that a careless agent could take for another one's. Pure.

An agent may trim a name, end it at a NUL, or normalise it, and so run a tool whose name was denied.
A name with what nobody sees in it is no name at all; one that only folds to a denied entry of the
policy has that entry's lane. Names that the agent has listed are its own, and exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from callgate.model import ANY
from callgate.policy.patterns import Entries
from callgate.protocol.members import fold

if TYPE_CHECKING:
    from callgate.policy import Policy

MAX_TOOL_BYTES: Final = 128
"""Of a tool's name, as MCP has it; a longer one is not even matched with patterns."""
ODD: Final = "\0"
"""Stands for every name that is none."""


def is_odd(tool: str) -> bool:
    """Return True for a name that no tool can have: too long, or partly unseen."""
    return (
        not tool.isprintable()  # which only a plain blank is, of all blanks
        or tool != tool.strip()
        or not 0 < len(tool.encode()) <= MAX_TOOL_BYTES
    )


class Doubles:
    """The denied entries of one policy, by what names fold to them."""

    __slots__ = ("_entries", "_policy")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: dict[str, Entries[str]] = {}

    def denied(self, agent_key: str, tool: str) -> str | None:
        """Return the denied entry that speaks for what `tool` folds to, unless it is its own."""
        entries = self._entries.get(agent_key)
        if entries is None:
            entries = self._entries[agent_key] = self._read(agent_key)
        found = entries.matching(entries.key(fold(tool)))
        entry = found[0] if found else None
        return entry if entry != tool and self._is_denied(agent_key, entry) else None

    def _read(self, agent_key: str) -> Entries[str]:
        folded: dict[str, str] = {}
        for entry in self._policy.tool_entries(agent_key):
            former = folded.get(fold(entry))
            if former is None or not self._is_denied(agent_key, former):
                folded[fold(entry)] = entry
        return Entries(folded)

    def _is_denied(self, agent_key: str, entry: str | None) -> bool:
        return entry is not None and (
            self._policy.lane(ANY, agent_key, entry, agent=None, tool=None).denied
        )
