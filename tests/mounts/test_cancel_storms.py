"""Cancels at every await of mounted work: nothing is leaked, each call is recorded once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from callgate import CallgateError
from callgate.mounts.common import Mount
from callgate.mounts.guarded import guarded
from tests.conftest import FULL
from tests.mounts.conftest import is_idle, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from callgate import Router
    from tests.mounts.conftest import Desk

CALLS = 20_000 if FULL else 2_000
AT_ONCE = 20
TERMINAL = {"completed", "failed", "timed_out", "cancelled"}

POLICY = """
version: 1
mode: MODE
defaults: {rate: unlimited}
agents:
  web: {concurrency: 4, queue: 8, timeout: 20ms, tools: {work: {}}}
audit: {path: PATH, max_bytes: unlimited}
"""


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def in_block(router: Router) -> Callable[[int], Awaitable[Any]]:
    async def run(count: int) -> None:
        async with guarded(router, agent="web", name="work"):
            await steps(count)

    return run


def in_function(router: Router) -> Callable[[int], Awaitable[Any]]:
    return guarded(router, agent="web", name="work")(steps)


def held(router: Router) -> Callable[[int], Awaitable[Any]]:
    def refuse(error: CallgateError) -> None:
        raise error

    mount = Mount(router, "web")

    async def run(count: int) -> None:
        await mount.run("work", {}, None, lambda: steps(count), refuse, thread=True)

    return run


@pytest.mark.parametrize("way", [in_block, in_function, held])
async def test_cancels_leak_nothing_and_each_call_ends_once(desk: Desk, way: Any) -> None:
    chance = random.Random(7)  # noqa: S311  # the same storm each time
    ends: Counter[str] = Counter()

    async with desk.router(text=POLICY) as router:
        run = way(router)

        async def one() -> None:
            task = asyncio.ensure_future(run(chance.randrange(12)))
            if chance.random() < 0.5:
                await steps(chance.randrange(12))
                task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                ends["cancelled"] += 1
            except CallgateError as error:
                ends[error.code] += 1
            else:
                ends["done"] += 1

        for _ in range(CALLS // AT_ONCE):
            await asyncio.gather(*(one() for _ in range(AT_ONCE)))
        await until(lambda: is_idle(router))
        assert router.engine.flights == {}

    assert sum(ends.values()) == CALLS
    assert min(ends["cancelled"], ends["done"]) > CALLS / 10
    admitted = [r["request_id"] for r in desk.records() if r["event"] == "tool.call.admitted"]
    ended = [
        record["request_id"]
        for record in desk.records()
        if record["event"].removeprefix("tool.call.") in TERMINAL
    ]
    assert sorted(admitted) == sorted(ended)
    assert len(set(ended)) == len(ended)
