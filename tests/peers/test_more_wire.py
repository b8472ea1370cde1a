"""On the wire a call has no task, no timer and no future of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.peers.helpers import answer, call, cancel, rig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.peers.helpers import Clock, Rig

MADE = ("create_task", "create_future", "call_soon", "call_later", "call_at")
"""What an event loop makes for whoever wants something later."""


def serve(gate: Rig, first: int, count: int) -> None:
    """Calls with deadlines: half are answered, half are cancelled and then answered."""
    gate.client(*(call(number) for number in range(first, first + count)))
    gate.client(*(cancel(number) for number in range(first, first + count, 2)))
    sent = [one for one in gate.to_agent() if one["method"] == "tools/call"]
    gate.agent(*(answer(one["id"]) for one in sent))


async def test_what_the_loop_makes_does_not_grow_with_the_calls(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    made: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **options: Any) -> Any:
            made[name] += 1
            return real(*args, **options)

        return make

    async with rig(tmp_path, clock) as gate:
        serve(gate, 0, 2)
        for name in MADE:
            monkeypatch.setattr(loop, name, counted(name, getattr(loop, name)))

        serve(gate, 10, 2)
        for_two = dict(made)
        made.clear()
        serve(gate, 100, 1_000)

        assert dict(made) == for_two
        assert sum(for_two.values()) <= 2
        gate.assert_idle()
