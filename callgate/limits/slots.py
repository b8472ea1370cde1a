"""Concurrency: how many calls are inside at once.

Pure. A lowered limit only stops new entries, so `used` may stand above `limit` for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callgate.model import SlotSpec


class Slots:
    """`used` of `limit` places are taken."""

    __slots__ = ("blocks_whole_agent", "label", "limit", "spec", "used")

    def __init__(self, spec: SlotSpec) -> None:
        self.spec = spec
        self.limit = spec.limit
        self.used = 0
        self.blocks_whole_agent = spec.scope.holds_back_all
        self.label = ""
        """The scope in words, once somebody was refused."""

    def change(self, spec: SlotSpec) -> None:
        """Take over a new policy's figure; who is inside stays inside."""
        self.spec = spec
        self.limit = spec.limit
