from __future__ import annotations

from typing import TYPE_CHECKING

from callgate import Policy, Router, ToolCall
from callgate.router import lanes

if TYPE_CHECKING:
    import pytest


POLICY = """
version: 1
defaults: {rate: unlimited, concurrency: 100}
callers: {"*": {rate: 100/day}}  # so that a caller still owes, and is not forgotten
"""


async def test_lanes_beyond_the_bound_are_not_kept_and_their_calls_are_counted_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "MAX_LANES", 8)
    router = Router(Policy.parse(POLICY))
    ran: list[str] = []

    @router.tool(agent="web")
    async def echo(word: str) -> str:
        ran.append(word)
        return word

    async with router:
        for number in range(40):
            call = ToolCall("web", "echo", {"word": "x"}, caller=f"c{number}")
            assert await router.call(call) == "x"

        assert len(router._known) == 8
        assert router.snapshot()["slots"][0]["used"] == 0
    assert len(ran) == 40
