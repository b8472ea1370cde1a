"""A moment that is not a call's deadline, in the same wheel as all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.limits.deadlines import Timed


class Alarm:
    """Rings once, with `now_ns`, at or after `deadline_ns`; set and stopped by the engine."""

    __slots__ = ("deadline_ns", "ring", "slot")

    def __init__(self, deadline_ns: int, ring: Callable[[int], None]) -> None:
        self.deadline_ns = deadline_ns
        self.ring = ring
        self.slot: set[Timed] | None = None
