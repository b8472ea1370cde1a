"""The counters of every scope, kept outside lanes so that they survive a reload.

Pure. Counters of the policy's own scopes live here for good: there are as many as the policy
and the agents list. A caller's counters live with its `Caller`, and callers are named by
peers, so their number is bounded: one whose buckets are full again and who has nothing running
is forgotten when room is needed; one that still owes is never forgotten, because that would
give its budget back; beyond the bound newcomers share one `Caller`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from callgate.limits.quota import Quota
from callgate.limits.rate import Rate
from callgate.limits.slots import Slots
from callgate.model import MAX_LIVE, OTHERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.model import QuotaSpec, RateSpec, Scope, SlotSpec

LOOKS_PER_NEWCOMER = 2
"""Old callers that are looked at for each new one: the table shrinks twice as fast as it grows."""


class Caller:
    """What is counted for one caller. Few counters each, so tuples: a dict costs 200 bytes."""

    __slots__ = ("lanes", "lasting", "name", "quota", "rates", "shown", "slots", "waiting_calls")

    def __init__(self, name: str, shown: str, *, lasting: bool) -> None:
        self.name = name
        self.shown = shown
        self.lasting = lasting
        """Whether it is never forgotten: named by the policy, or shared."""
        self.rates: tuple[Rate, ...] = ()
        self.slots: tuple[Slots, ...] = ()
        self.quota: Quota | None = None
        self.waiting_calls = 0
        """Calls that wait or run with these counters; a pinned caller is not forgotten."""
        self.lanes: tuple[tuple[str, str, str], ...] = ()
        """Keys of the lanes to drop with it."""

    def is_idle(self, now_ns: int, wall_ns: int) -> bool:
        """Whether a new `Caller` in its place would answer the same."""
        return (
            not self.waiting_calls
            and all(rate.is_full(now_ns) for rate in self.rates)
            and not any(slot.used for slot in self.slots)
            and (self.quota is None or self.quota.is_idle(wall_ns))
        )


class Counters:
    """Finds or makes the counter of a scope."""

    def __init__(self, max_live: int = MAX_LIVE) -> None:
        self._rates: dict[Scope, Rate] = {}
        self._slots: dict[Scope, Slots] = {}
        self._callers: dict[str, Caller] = {}
        self._hand: deque[str] = deque()
        """Unnamed callers in the order in which they are looked at for forgetting."""
        self._max_live = max_live
        self._buckets = 0
        self.others = Caller(OTHERS, OTHERS, lasting=True)

    @property
    def callers(self) -> int:
        """How many callers are known right now."""
        return len(self._callers)

    def caller(self, name: str) -> Caller | None:
        """A known caller."""
        return self._callers.get(name)

    def add_caller(
        self, name: str, shown: str, *, named: bool, now_ns: int, wall_ns: int
    ) -> tuple[Caller, list[Caller]]:
        """A newcomer's counters, and the callers that were forgotten to make room.

        Callers that the policy names are never forgotten and never share.
        """
        forgotten = self._forget_some(now_ns, wall_ns)
        if not named and max(len(self._hand), self._buckets) >= self._max_live:
            return self.others, forgotten
        caller = self._callers[name] = Caller(name, shown, lasting=named)
        if not named:
            self._hand.append(name)
        return caller, forgotten

    def rate(self, spec: RateSpec, caller: Caller, now_ns: int) -> Rate:
        """The bucket of a scope, with the figures of `spec`.

        Beyond the bound also callers that are known share the buckets that they still lack:
        there may be one for each caller and tool.
        """
        found = self._find_rate(spec.scope, caller)
        if found is None and self._buckets >= self._max_live and not caller.lasting:
            caller = self.others
            found = self._find_rate(spec.scope, caller)
        if found is None:
            found = Rate(spec)
            if spec.scope.owned_by_caller:
                caller.rates += (found,)
                self._buckets += 1
            else:
                self._rates[spec.scope] = found
        elif found.spec != spec:
            found.change(spec, now_ns)
        return found

    def slots(self, spec: SlotSpec, caller: Caller) -> Slots:
        """The places of a scope, with the figure of `spec`."""
        found = self._find_slots(spec.scope, caller)
        if found is None:
            found = Slots(spec)
            if spec.scope.owned_by_caller:
                caller.slots += (found,)
            else:
                self._slots[spec.scope] = found
        elif found.spec != spec:
            found.change(spec)
        return found

    def quota(self, spec: QuotaSpec, caller: Caller) -> Quota:
        """The caller's budget, with the figures of `spec`."""
        found = caller.quota
        if found is None or found.spec != spec:
            found = caller.quota = Quota(spec)
        return found

    def shared(self) -> tuple[list[Rate], list[Slots]]:
        """The counters that belong to no single caller, for a look at live usage."""
        return list(self._rates.values()), list(self._slots.values())

    def drop_lanes(self) -> None:
        """Forget which lanes exist; a new policy makes new ones."""
        for caller in self._callers.values():
            caller.lanes = ()

    def rename(self, introduce: Callable[[str], tuple[str, bool]]) -> None:
        """Show each caller as a new policy does; who it names is never forgotten, and only they."""
        for caller in self._callers.values():
            caller.shown, caller.lasting = introduce(caller.name)
        self._hand = deque(name for name, one in self._callers.items() if not one.lasting)

    def _find_rate(self, scope: Scope, caller: Caller) -> Rate | None:
        if not scope.owned_by_caller:
            return self._rates.get(scope)
        return next((rate for rate in caller.rates if rate.spec.scope == scope), None)

    def _find_slots(self, scope: Scope, caller: Caller) -> Slots | None:
        if not scope.owned_by_caller:
            return self._slots.get(scope)
        return next((slot for slot in caller.slots if slot.spec.scope == scope), None)

    def _forget_some(self, now_ns: int, wall_ns: int) -> list[Caller]:
        forgotten: list[Caller] = []
        for _ in range(min(LOOKS_PER_NEWCOMER, len(self._hand))):
            name = self._hand.popleft()
            caller = self._callers[name]
            if caller.is_idle(now_ns, wall_ns):
                del self._callers[name]
                self._buckets -= len(caller.rates)
                forgotten.append(caller)
            else:
                self._hand.append(name)
        return forgotten
