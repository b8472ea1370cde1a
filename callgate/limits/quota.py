"""Quotas: so many calls in each window of the wall clock, over restarts.

Pure. The store outside holds what is spent; this object holds a small block that was already
written off there. A crash therefore loses at most the block and never admits too much. Blocks
are at most 1 % of the quota, so that what a crash costs stays small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callgate.model import QuotaSpec

BLOCKS = 100
"""A block is at most 1/BLOCKS of the quota."""


class Quota:
    """What one caller may still spend from the block in hand, and whether to fetch another."""

    __slots__ = ("block", "exhausted", "in_hand", "spec", "window")

    def __init__(self, spec: QuotaSpec) -> None:
        self.spec = spec
        self.block = max(1, spec.limit // BLOCKS)
        self.window = -1
        self.in_hand = 0
        self.exhausted = False
        """The store said that nothing is left in `window`."""

    def available(self, wall_ns: int) -> bool:
        """Whether a call can be charged without asking the store."""
        self._turn(wall_ns)
        return self.in_hand > 0

    def spent(self, wall_ns: int) -> bool:
        """Whether the store has nothing left either."""
        self._turn(wall_ns)
        return self.exhausted and self.in_hand == 0

    def take(self) -> int:
        """Charge one call and say which window paid; ask `available` first."""
        self.in_hand -= 1
        return self.window

    def refund(self, window: int, wall_ns: int) -> None:
        """Undo a `take` of `window` for a call that never started; a past window's is gone."""
        self._turn(wall_ns)
        if window == self.window:
            self.in_hand += 1

    def wants_block(self) -> bool:
        """Whether to fetch the next block ahead of need."""
        return not self.exhausted and self.in_hand <= self.block // 4

    def give(self, window: int, granted: int, wall_ns: int) -> None:
        """Take in what the store wrote off for `window`; nothing left over means exhausted."""
        self._turn(wall_ns)
        if window != self.window:
            return  # the window ended while the store was asked; the block ended with it
        self.in_hand += granted
        self.exhausted = granted < self.block

    def window_at(self, wall_ns: int) -> int:
        """The number of the window that `wall_ns` belongs to; after a step back, the last one."""
        return max(self.window, wall_ns // self.spec.period_ns)

    def renews_in_ns(self, wall_ns: int) -> int:
        """Until the next window."""
        return (self.window_at(wall_ns) + 1) * self.spec.period_ns - wall_ns

    def is_idle(self, wall_ns: int) -> bool:
        """Whether forgetting it would lose no budget."""
        return self.in_hand == 0 or self.window_at(wall_ns) != self.window

    def _turn(self, wall_ns: int) -> None:
        window = self.window_at(wall_ns)
        if window > self.window:  # never back: a clock set back must not refill the budget
            self.window = window
            self.in_hand = 0
            self.exhausted = False
