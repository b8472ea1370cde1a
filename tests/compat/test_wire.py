"""The comparing client sees each difference, and waits for no server longer than it may."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.compat.published import wire
from tests.compat.published.wire import exchange, stable

if TYPE_CHECKING:
    from pathlib import Path

SERVER = """
import json, sys, time
lie, = sys.argv[1:]
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
print("a line that is no message", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    method = asked.get("method")
    if "id" not in asked or method is None: continue
    if method == "ping" and lie == "silent": continue
    if method == "ping" and lie == "ends": break
    if method == "tools/call": say(method="notifications/message", params={"lie": lie == "heard"})
    result = {"tools": [{"name": "a" if lie != "tools" else "b"}], "at": time.time_ns()}
    say(id=asked["id"], result=result)
"""
CLOCK = r'"at": \d+'


async def seen_of(tmp_path: Path, lie: str) -> dict[str, str]:
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, str(tmp_path / "server.py"), lie]
    seen, late = await exchange(command, tmp_path, dict(os.environ), [("a", {})], ("a", {}))
    assert len(late) == 1  # what it says to the call that was cancelled
    return stable(seen, CLOCK)


async def differing(tmp_path: Path, lie: str) -> set[str]:
    honest, other = await seen_of(tmp_path, ""), await seen_of(tmp_path, lie)
    return {step for step, said in honest.items() if other[step] != said}


async def test_two_sessions_with_one_server_are_equal(tmp_path: Path) -> None:
    assert await differing(tmp_path, "") == set()


async def test_another_answer_is_seen(tmp_path: Path) -> None:
    assert "tools/list" in await differing(tmp_path, "tools")


async def test_another_notification_is_seen(tmp_path: Path) -> None:
    assert await differing(tmp_path, "heard") == {"heard"}


@pytest.mark.parametrize(("lie", "error"), [("silent", TimeoutError), ("ends", EOFError)])
async def test_a_server_that_does_not_answer_is_an_error(
    lie: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PATIENCE_S", 1.0)

    with pytest.raises(error):
        await seen_of(tmp_path, lie)
