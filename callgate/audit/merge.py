"""A flood of refusals in one lane becomes a hundred records a second and one with a count.

Pure. Made when a lane first refuses; who is told False counts the refusal instead and writes
what it has counted once a second.
"""

from __future__ import annotations

from typing import Final

PER_SECOND: Final = 100
"""The design's figure: enough to see every refusal of a polite caller."""

_SECOND_NS: Final = 1_000_000_000


class Merger:
    """How many refusals of one lane were written within a second."""

    __slots__ = ("_ends_ns", "_written", "full_until_ns")

    def __init__(self) -> None:
        self.full_until_ns = 0
        """Until when `offer` returns False; in the past while it may return True."""
        self._ends_ns = 0
        self._written = 0

    def offer(self, now_ns: int) -> bool:
        """Whether this refusal gets a record of its own."""
        if now_ns >= self._ends_ns:
            self._ends_ns = now_ns + _SECOND_NS
            self._written = 0
        if self._written < PER_SECOND:
            self._written += 1
            if self._written == PER_SECOND:
                self.full_until_ns = self._ends_ns
            return True
        return False
