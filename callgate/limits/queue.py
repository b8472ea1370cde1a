"""The queue of one agent: calls that may wait, entered fairly between callers.

Pure. A waiting call holds nothing: it enters when all its counters admit it at once. On each
release or refill callers are visited round robin; each caller's calls are FIFO per tool. Who
enters goes behind the others, who is passed over keeps its turn. So with k callers waiting
for the same, each gets at least one of k entries, less one call, whatever the others send.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from callgate.limits.admission import admit, find_refusal

if TYPE_CHECKING:
    from collections.abc import Hashable

    from callgate.limits.rate import Rate
    from callgate.limits.slots import Slots


class Waiting(Protocol):
    """What the queue needs to know of a call. The two keys say whose turn it is."""

    @property
    def caller_key(self) -> Hashable: ...
    @property
    def tool_key(self) -> Hashable: ...
    @property
    def rates(self) -> tuple[Rate, ...]: ...
    @property
    def slots(self) -> tuple[Slots, ...]: ...

    paced: bool
    """Whether it was a rate, not a slot, that last held the call back."""


W = TypeVar("W", bound=Waiting)


class Queue(Generic[W]):
    """Waiting calls by caller, then by tool.

    OrderedDicts, because calls leave from the middle (cancel, deadline) as often as from the
    front, and a plain dict gets slow when its front has been emptied.
    """

    __slots__ = ("_callers", "_length", "refill_ns")

    def __init__(self) -> None:
        self._callers: OrderedDict[Hashable, OrderedDict[Hashable, OrderedDict[int, W]]]
        self._callers = OrderedDict()
        self._length = 0
        self.refill_ns: int | None = None
        """When a rate will next admit somebody, as far as the last `enter` saw."""

    def __len__(self) -> int:
        return self._length

    def push(self, call: W) -> None:
        """Put a call behind its caller's others for the same tool."""
        tools = self._callers.setdefault(call.caller_key, OrderedDict())
        tools.setdefault(call.tool_key, OrderedDict())[id(call)] = call
        self._length += 1

    def remove(self, call: W) -> bool:
        """Take a call out; False if it is not waiting here."""
        tools = self._callers.get(call.caller_key)
        line = None if tools is None else tools.get(call.tool_key)
        if tools is None or line is None or line.pop(id(call), None) is None:
            return False
        self._length -= 1
        if not line:
            del tools[call.tool_key]
            if not tools:
                del self._callers[call.caller_key]
        return True

    def enter(self, now_ns: int) -> list[W]:
        """Admit whoever fits now, fairly; the counters are taken for those returned."""
        entered: list[W] = []
        passed_over: list[tuple[Hashable, OrderedDict[Hashable, OrderedDict[int, W]]]] = []
        callers = self._callers
        self.refill_ns = None
        while callers:
            caller_key, tools = next(iter(callers.items()))
            call, blocked_for_all = self._first_that_fits(tools, now_ns)
            if call is not None:
                self.remove(call)
                entered.append(call)
                if caller_key in callers:
                    callers.move_to_end(caller_key)
            elif blocked_for_all:
                break
            else:  # nobody leaves during a pass, so it need not be asked again
                del callers[caller_key]
                passed_over.append((caller_key, tools))
        for caller_key, tools in reversed(passed_over):
            callers[caller_key] = tools
            callers.move_to_end(caller_key, last=False)
        return entered

    def _first_that_fits(
        self, tools: OrderedDict[Hashable, OrderedDict[int, W]], now_ns: int
    ) -> tuple[W | None, bool]:
        """The first call of a caller that all its counters admit, now taken."""
        for tool_key, line in tools.items():
            call = next(iter(line.values()))
            if admit(call.rates, call.slots, now_ns):
                tools.move_to_end(tool_key)
                return call, False
            refusal = find_refusal(call.rates, call.slots, now_ns, queue=True)
            if refusal is None:
                raise AssertionError("`admit` and `find_refusal` read the same counters")
            call.paced = refusal.retry_after_ns is not None
            shared_wait_ns = refusal.shared_wait_ns
            self._expect_refill(
                now_ns, refusal.retry_after_ns if shared_wait_ns is None else shared_wait_ns
            )
            if shared_wait_ns is not None:
                return None, True
        return None, False

    def _expect_refill(self, now_ns: int, wait_ns: int | None) -> None:
        """Remember the earliest refill; slots (0 or None) come back with a release instead."""
        if wait_ns and (self.refill_ns is None or now_ns + wait_ns < self.refill_ns):
            self.refill_ns = now_ns + wait_ns
