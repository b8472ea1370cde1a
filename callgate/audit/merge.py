"""A flood of what a peer can cause becomes a hundred records a second and one with a count.

Pure. Whoever is told False counts the event instead, and writes what was counted once a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

PER_SECOND: Final = 100
"""The design's figure: enough to see every refusal of a polite caller."""

_SECOND_NS: Final = 1_000_000_000


MAX_KEYS: Final = 1_024
"""Sorts of events that are told apart at a time; callers may invent names."""


class Merger:
    """How many events of one sort were written within a second."""

    __slots__ = ("_ends_ns", "_written", "full_until_ns")

    def __init__(self) -> None:
        self.full_until_ns = 0
        """Until when `offer` returns False; in the past while it may return True."""
        self._ends_ns = 0
        self._written = 0

    def offer(self, now_ns: int) -> bool:
        """Whether this event gets a record of its own."""
        if now_ns >= self._ends_ns:
            self._ends_ns = now_ns + _SECOND_NS
            self._written = 0
        if self._written < PER_SECOND:
            self._written += 1
            if self._written == PER_SECOND:
                self.full_until_ns = self._ends_ns
            return True
        return False

    def is_idle(self, now_ns: int) -> bool:
        """Return True if it knows nothing that a new one would not."""
        return now_ns >= self._ends_ns


class RecordThrottle:
    """The same for every sort of event: who caused it, what it is, and its code."""

    __slots__ = ("_mergers",)

    def __init__(self) -> None:
        self._mergers: dict[Hashable, Merger] = {}

    def allow(self, key: Hashable, now_ns: int) -> bool:
        """Return True if an event of this sort gets a record of its own.

        Sorts beyond `MAX_KEYS` in one second share a hundred records.
        """
        merger = self._mergers.get(key)
        if merger is None:
            if len(self._mergers) >= MAX_KEYS:
                kept = {one: m for one, m in self._mergers.items() if not m.is_idle(now_ns)}
                self._mergers = kept
                key = None if len(kept) >= MAX_KEYS else key
            merger = self._mergers.setdefault(key, Merger())
        return merger.offer(now_ns)
