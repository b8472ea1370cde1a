"""Clients of the SDK's 2.x with servers of its 1.x and published ones, and the other way round.

This environment has the 1.x; the other side runs in the one that `make compat` was started from.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.gate_v1 import test_gate_v1 as first
from tests.compat.through import calls_written, gate, seen_by_2

npm = first.npm

OURS_2 = str(Path(__file__).parents[2] / "gate" / "sdk2_rich_server.py")
MODES = ["auto", "legacy"]
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def base() -> str:
    """A Python with the SDK's 2.x."""
    python = os.environ.get("CALLGATE_BASE_PYTHON", "")
    ask = [python, "-c", "from importlib.metadata import version; print(version('mcp'))"]
    found = subprocess.run(ask, capture_output=True, check=False) if python else None
    if found is None or not found.stdout.startswith(b"2."):
        pytest.skip("mcp 2 is not in the environment of whoever started this; make compat")
    return python


@pytest.mark.parametrize("mode", MODES)
def test_a_client_of_2_sees_the_same_of_a_server_of_1(mode: str, base: str, tmp_path: Path) -> None:
    calls: Calls = [("echo", {"text": "é漢🗝 \u2028"}), ("fail", {}), ("large", {}), ("none", {})]
    calls += [(tool, {}) for tool in ("sample", "elicit", "roots", "log", "progress")]

    direct = seen_by_2(base, mode, calls, first.OURS)
    through = seen_by_2(base, mode, calls, gate(first.OURS, tmp_path))

    assert through == direct
    seen, heard = through
    assert seen[0][0] == "2025-11-25"
    assert [name for name, *_ in seen].count("tools") > 1
    assert {"asked to sample", "asked to fill in", "asked for roots"} <= {name for name, _ in heard}
    assert next(steps for name, *steps in seen if name == "steps") != [[]]
    assert calls_written(tmp_path).count("completed") == 7


async def test_a_client_of_1_sees_the_same_of_a_server_of_2(base: str, tmp_path: Path) -> None:
    command = [base, OURS_2]

    async def exchange(session: Any) -> first.Seen:
        seen: first.Seen = [("initialize", first.dump(await session.initialize()))]
        cursor = None
        for _ in range(10):
            page = await session.list_tools(cursor)
            seen.append(("tools", first.dump(page)))
            cursor = page.nextCursor
            if cursor is None:
                break
        for tool, given in (("echo", {"text": "é"}), ("large", {}), ("level", {}), ("ask", {})):
            seen.append((tool, await first.tried(session.call_tool(tool, given))))
        for tool in ("sample", "roots", "log"):
            seen.append((tool, await first.tried(session.call_tool(tool, {}))))
        seen.append(("level", await first.tried(session.set_logging_level("debug"))))
        seen.append(("resources", first.dump(await session.list_resources())))
        seen.append(("read", first.dump(await session.read_resource("memo://a"))))
        return seen

    direct = await first.seen_of(command, exchange)
    through = await first.seen_of(gate(command, tmp_path), exchange)

    assert through == direct
    assert [name for name, _ in through[0]].count("tools") == 3
    assert {"asked to sample", "LoggingMessageNotification"} <= {name for name, _ in through[1]}


@pytest.mark.parametrize("mode", MODES)
def test_a_client_of_2_sees_the_same_of_the_published_time_server(
    mode: str, base: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
    convert = {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}
    calls: Calls = [("convert_time", convert), ("get_current_time", {"timezone": "nowhere"})]

    direct, _ = seen_by_2(base, mode, calls, command)
    through, _ = seen_by_2(base, mode, calls, gate(command, tmp_path))

    assert str(through) == str(direct)
    assert calls_written(tmp_path) == ["completed", "failed"]


@pytest.mark.parametrize("mode", MODES)
def test_a_client_of_2_sees_the_same_of_the_published_everything_server(
    mode: str, base: str, npm: Path, tmp_path: Path
) -> None:
    command = ["node", str(npm / "server-everything" / "dist" / "index.js")]
    calls: Calls = [
        ("echo", {"message": "hi"}),
        ("get-tiny-image", {}),
        ("trigger-sampling-request", {"prompt": "a word", "maxTokens": 5}),
        ("trigger-elicitation-request", {}),
        ("get-roots-list", {}),
        ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
        ("no-such-tool", {}),
    ]

    direct, _ = seen_by_2(base, mode, calls, command)
    through, heard = seen_by_2(base, mode, calls, gate(command, tmp_path))

    assert through == direct
    assert {"asked to sample", "asked to fill in"} <= {name for name, _ in heard}
    steps = next(steps for name, *steps in through if name == "steps")
    assert len(steps[0]) == 2
    assert calls_written(tmp_path)[:6] == ["completed"] * 6
