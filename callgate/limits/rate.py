"""Rate limits: a token bucket kept as one integer (GCRA).

Pure: callers pass `now_ns` and act on the answer. Times are integer nanoseconds, so a caller
that waits exactly as long as it was told is admitted; with floats one in seven was refused
again. The bucket is the time until which its calls are paid for: each call costs one interval,
and at most `burst` intervals may be paid ahead of now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callgate.model import RateSpec


class Rate:
    """One call per `interval_ns`, with up to a burst saved for later."""

    __slots__ = ("ahead_ns", "blocks_whole_agent", "interval_ns", "label", "paid_until_ns", "spec")

    def __init__(self, spec: RateSpec) -> None:
        self.spec = spec
        self.paid_until_ns = 0
        self.interval_ns = spec.interval_ns
        self.ahead_ns = (spec.burst - 1) * self.interval_ns
        """How far ahead of now the calls so far may be paid for one more to fit."""
        self.blocks_whole_agent = spec.scope.holds_back_all
        self.label = ""
        """The scope in words, once somebody was refused."""

    def wait_ns(self, now_ns: int) -> int:
        """How long until one more call fits, if nobody else takes; 0 is now."""
        return max(0, self.paid_until_ns - now_ns - self.ahead_ns)

    def take(self, now_ns: int) -> None:
        """Charge one call; ask `wait_ns` first."""
        paid_until = self.paid_until_ns
        self.paid_until_ns = (paid_until if paid_until > now_ns else now_ns) + self.interval_ns

    def refund(self) -> None:
        """Undo one `take`, for a call that never started."""
        self.paid_until_ns -= self.interval_ns

    def is_full(self, now_ns: int) -> bool:
        """Whether it can be forgotten: a new bucket would answer the same."""
        return self.paid_until_ns <= now_ns

    def saved(self, now_ns: int) -> int:
        """Whole calls that fit right now."""
        owed_ns = max(0, self.paid_until_ns - now_ns)
        return max(0, self.ahead_ns + self.interval_ns - owed_ns) // self.interval_ns

    def change(self, spec: RateSpec, now_ns: int) -> None:
        """Take over a new policy's figures, keeping what is saved, up to the new burst."""
        full_before_ns = self.ahead_ns + self.interval_ns
        saved_ns = full_before_ns - max(0, self.paid_until_ns - now_ns)
        old_interval_ns = self.interval_ns
        self.spec = spec
        self.interval_ns = spec.interval_ns
        self.ahead_ns = (spec.burst - 1) * self.interval_ns
        if saved_ns >= full_before_ns:
            self.paid_until_ns = now_ns
            return
        full_ns = self.ahead_ns + self.interval_ns
        self.paid_until_ns = (
            now_ns + full_ns - min(full_ns, saved_ns * self.interval_ns // old_interval_ns)
        )
