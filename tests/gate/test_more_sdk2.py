"""A client of the SDK's 2.x sees the same with and without the gate, in both eras."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.compat.through import PATIENCE_S, calls_written, gate, seen_by_2

try:
    ERA = version("mcp").partition(".")[0]
except PackageNotFoundError:
    ERA = "none"
if ERA != "2":
    pytest.skip("mcp 2 is not installed", allow_module_level=True)

from mcp import Client, MCPError, StdioServerParameters
from mcp.types import ElicitResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

SERVER = [sys.executable, str(Path(__file__).with_name("sdk2_server.py"))]


@asynccontextmanager
async def client_of(command: list[str], mode: str) -> AsyncIterator[Client]:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        del context, params  # named so by the SDK
        return ElicitResult(action="accept", content={"value": "Ada"})

    where = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with (
        asyncio.timeout(PATIENCE_S),
        Client(where, mode=mode, elicitation_callback=elicit) as client,
    ):
        yield client


async def tried(work: Awaitable[Any]) -> Any:
    try:
        return (await work).model_dump(mode="json")
    except MCPError as error:
        return error.code, error.message


async def everything(command: list[str], mode: str) -> list[Any]:
    """All that a client can ask for, and what it gets."""
    steps: list[Any] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with client_of(command, mode) as client:
        seen: list[Any] = [client.protocol_version, str(client.server_info)]
        seen.append(await tried(client.list_tools()))
        for tool, given in (("echo", {"text": "é漢🗝 \u2028"}), ("fail", {}), ("large", {})):
            seen.append(await tried(client.call_tool(tool, given)))
        seen.append(await tried(client.call_tool("progress", {}, progress_callback=step)))
        seen.append(await tried(client.call_tool("elicit", {})))
        seen.append(await tried(client.call_tool("none", {})))
        seen.append(await tried(client.list_resource_templates()))
        seen.append(await tried(client.read_resource("memo://3")))
        seen.append(await tried(client.list_prompts()))
        seen.append(await tried(client.get_prompt("greet", {"who": "Ada"})))
        return [*seen, steps]


@pytest.mark.parametrize(
    ("kind", "mode"), [("mcp", "legacy"), ("mcp", "auto"), ("fastmcp", "auto")]
)
async def test_a_client_sees_the_same_with_and_without_the_gate(
    kind: str, mode: str, tmp_path: Path
) -> None:
    pytest.importorskip(kind, reason=f"{kind} is not installed")
    direct = await everything([*SERVER, kind], mode)

    through = await everything(gate([*SERVER, kind], tmp_path), mode)

    assert through == direct
    assert through[0] == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    assert through[-1] == [(0, 3, "step 0"), (1, 3, "step 1"), (2, 3, "step 2")]
    assert calls_written(tmp_path)[:4] == ["completed", "failed", "completed", "completed"]


RICH = [sys.executable, str(Path(__file__).with_name("sdk2_rich_server.py"))]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"text": "é漢🗝 \u2028"}),
    ("large", {}),
    ("sample", {}),
    ("roots", {}),
    ("log", {}),
    ("ask", {}),
    ("level", {}),
    ("listen", {"uri": "memo://a"}),
]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_questions_pages_and_streams_are_the_same(mode: str, tmp_path: Path) -> None:
    direct = seen_by_2(sys.executable, mode, ASKED, RICH)

    through = seen_by_2(sys.executable, mode, ASKED, gate(RICH, tmp_path))

    assert through == direct
    seen, heard = through
    assert [name for name, *_ in seen].count("tools") == 3
    assert [name for name, *_ in seen].count("resources") == 3
    assert len(str(seen)) > 3_000_000
    asked = {"asked to sample", "asked for roots"}
    if mode == "auto":
        assert ["news", "ResourceUpdated(uri='memo://a')"] in seen
        asked.add("asked to fill in")
    assert asked <= {name for name, _ in heard}


async def test_a_call_that_its_client_gives_up_is_cancelled(tmp_path: Path) -> None:
    async with client_of(gate([*SERVER, "mcp"], tmp_path), "auto") as client:
        with pytest.raises(MCPError):
            await client.call_tool("hang", {}, read_timeout_seconds=0.3)
        again = await client.call_tool("echo", {"text": "on we go"})

    assert again.structured_content == {"result": "on we go"}
    assert calls_written(tmp_path) == ["cancelled", "completed"]
