"""Quotas between the loop and their store: blocks are fetched in a thread, before they are spent.

One fetch at a time for each budget, however many calls want it. A store that cannot be opened,
read or written means that nothing can be spent: the calls are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
from threading import Lock
from time import time_ns
from typing import TYPE_CHECKING

from callgate.errors import StateUnavailable
from callgate.model import ANY
from callgate.stores.sqlite import QuotaStore

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.limits.quota import Quota
    from callgate.policy import Policy
    from callgate.router.lanes import Lane

SHADOW_NS = 250_000_000
"""How long a quota that refuses nobody may hold up a call so that it can be counted."""

CLOSE_S = 5.0
"""How long the end waits for fetches under way: two tries at a store that is busy."""


def space_of(policy: Policy) -> str:
    """Keeps the quotas of two policies apart; the same file is the same policy."""
    if policy.source is None:
        return ANY
    return hashlib.sha256(os.fsencode(policy.source.resolve())).hexdigest()[:16]


class Quotas:
    """Fetches budget for callers."""

    __slots__ = ("_fetches", "_opening", "_path", "_space", "_store")

    def __init__(self, path: Path, space: str) -> None:
        self._path = path
        self._space = space
        self._store: QuotaStore | None = None
        self._opening = Lock()
        self._fetches: dict[Quota, asyncio.Task[None]] = {}

    def in_hand(self, lane: Lane) -> bool:
        """Whether a call can go on at once: it can be charged, or nothing is left to fetch."""
        quota = lane.quota
        if quota is None:
            return True
        wall_ns = time_ns()
        ready = quota.available(wall_ns) or quota.spent(wall_ns)
        if quota.wants_block():
            fetching = self._fetches.get(quota)
            # One that has ended leaves a moment later; to wait for it would be to wait for ever.
            if fetching is None or fetching.done():
                self._fetch_soon(quota, lane.caller.shown)
        return ready

    async def fetch(self, lane: Lane) -> None:
        """Wait until `in_hand`; raises `StateUnavailable` if the store does not answer."""
        quota = lane.quota
        while quota is not None and not self.in_hand(lane):
            try:
                await asyncio.shield(self._fetches[quota])
            except (sqlite3.Error, OSError) as error:
                if quota.spec.shadow:
                    return
                raise StateUnavailable(agent=lane.spec.agent, tool=lane.spec.tool) from error

    async def close(self) -> None:
        """Close the store, after fetches under way unless that takes too long: they fail then."""
        fetches = list(self._fetches.values())
        if fetches:
            _, left = await asyncio.wait(fetches, timeout=CLOSE_S)
            if left:
                return  # closing would block on the same; what they reserve is lost, not spent
        if self._store is not None:
            self._store.close()
            self._store = None

    def _fetch_soon(self, quota: Quota, caller: str) -> None:
        task = asyncio.create_task(self._fetch(quota, caller))
        self._fetches[quota] = task

        def done(task: asyncio.Task[None]) -> None:
            if self._fetches.get(quota) is task:
                del self._fetches[quota]
            if not task.cancelled():
                task.exception()  # whoever waits has it; nobody may be waiting

        task.add_done_callback(done)

    async def _fetch(self, quota: Quota, caller: str) -> None:
        import anyio.to_thread  # noqa: PLC0415  # 3 ms, and most policies have no quota

        window = quota.window_at(time_ns())
        granted = await anyio.to_thread.run_sync(self._reserve, quota, caller, window)
        quota.give(window, granted, time_ns())

    def _reserve(self, quota: Quota, caller: str, window: int) -> int:
        with self._opening:
            if self._store is None:
                self._store = QuotaStore(self._path, self._space)
        spec = quota.spec
        return self._store.reserve(caller, window, quota.block, spec.limit, spec.period_ns)
