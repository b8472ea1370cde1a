"""Deadlines: one structure for all calls, in place of a timer or a task for each.

Pure. A timing wheel of two levels. Far deadlines lie in coarse buckets of a quarter of a second,
so that a minute of them costs a few hundred buckets; a coarse bucket is spread over fine ones
shortly before its time. Adding and removing is a set operation on the bucket, which the item
remembers. An item is due at the end of its fine bucket: never before its deadline, and at most
`FINE_NS` after it.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

FINE_BITS = 22
"""Fine buckets of 4.2 ms: a deadline has to fire within 10 ms, and the loop needs its share."""
COARSE_BITS = 28
"""Coarse buckets of 268 ms, 64 fine ones each: 300 s are about 1,100 buckets."""
MAX_COARSE = 4_096
"""Coarse buckets ahead, 18 minutes of them. A caller picks its timeout, and where the policy sets
no ceiling each call could open a bucket that stays for years."""
FINE_NS = 1 << FINE_BITS
COARSE_NS = 1 << COARSE_BITS
NEVER = (1 << 63) - 1


class Timed(Protocol):
    """What can have a deadline. Both fields belong to `Deadlines` while it is in there."""

    check_at_ns: int
    deadline_bucket: set[Timed] | None


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Who runs out of time when. `wake_ns` says when to call `due` next."""

    __slots__ = ("_coarse", "_coarse_keys", "_fine", "_fine_until_ns", "wake_ns")

    def __init__(self) -> None:
        self._fine: dict[int, set[T]] = {}
        self._coarse: dict[int, set[T]] = {}
        self._coarse_keys: list[int] = []
        self._fine_until_ns = 0
        self.wake_ns = NEVER

    def add(self, item: T) -> None:
        """Watch `item.check_at_ns`; `wake_ns` may move forward."""
        check_at_ns = item.check_at_ns
        if check_at_ns >= self._fine_until_ns:
            bucket = self._coarse.get(check_at_ns >> COARSE_BITS)
            if bucket is None:
                bucket = self._open_coarse(check_at_ns >> COARSE_BITS)
        else:
            bucket = self._fine.get(check_at_ns >> FINE_BITS)
            if bucket is None:
                bucket = self._open_fine(check_at_ns >> FINE_BITS)
        bucket.add(item)
        item.deadline_bucket = bucket  # type: ignore[assignment]  # sets are invariant; only `discard` uses it

    def discard(self, item: T) -> None:
        """Stop watching, if it is watched. Its bucket stays until its time, and is reused."""
        bucket = item.deadline_bucket
        if bucket is not None:
            bucket.discard(item)
            item.deadline_bucket = None

    def due(self, now_ns: int) -> list[T]:
        """Remove and return all whose deadline has passed; sets `wake_ns`."""
        self._spread(now_ns)
        late: list[T] = []
        for key in sorted(self._fine):
            if (key + 1) << FINE_BITS > now_ns:
                break
            for item in self._fine.pop(key):
                item.deadline_bucket = None
                late.append(item)
        self.wake_ns = (min(self._fine) + 1) << FINE_BITS if self._fine else NEVER
        if self._coarse_keys:
            self.wake_ns = min(self.wake_ns, self._coarse_keys[0] << COARSE_BITS)
        return late

    def _spread(self, now_ns: int) -> None:
        """Move coarse buckets that have begun, and the next one, into fine buckets."""
        first_far = (now_ns >> COARSE_BITS) + 2
        self._fine_until_ns = first_far << COARSE_BITS
        while self._coarse_keys and self._coarse_keys[0] < first_far:
            for item in self._coarse.pop(heapq.heappop(self._coarse_keys)):
                self.add(item)

    def _open_coarse(self, key: int) -> set[T]:
        # What lies beyond the last bucket is put into it, and looked at again when that begins.
        key = min(key, (self._fine_until_ns >> COARSE_BITS) + MAX_COARSE)
        bucket = self._coarse.get(key)
        if bucket is None:
            bucket = self._coarse[key] = set()
            heapq.heappush(self._coarse_keys, key)
            self.wake_ns = min(self.wake_ns, key << COARSE_BITS)
        return bucket

    def _open_fine(self, key: int) -> set[T]:
        bucket: set[T] = set()
        self._fine[key] = bucket
        self.wake_ns = min(self.wake_ns, (key + 1) << FINE_BITS)
        return bucket
