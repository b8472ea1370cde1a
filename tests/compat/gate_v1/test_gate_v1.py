"""Clients and servers of the SDK's 1.x and published servers, with and without the gate.

What a client sees must be the same. Written without the SDK's types, as its neighbours.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.compat.through import PATIENCE_S, calls_written, gate, install_npm

try:
    ERA = version("mcp").partition(".")[0]
except PackageNotFoundError:
    ERA = "none"
if ERA != "1":
    pytest.skip("mcp 1 is not installed; make compat", allow_module_level=True)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

types: Any = import_module("mcp.types")
Session: Any = import_module("mcp").ClientSession
Parameters: Any = import_module("mcp").StdioServerParameters
stdio_client: Any = import_module("mcp.client.stdio").stdio_client
McpError: Any = import_module("mcp").McpError

OURS = [sys.executable, str(Path(__file__).with_name("server.py"))]
Seen = list[tuple[str, Any]]


class Client:
    """Answers what servers ask, and keeps what it sees."""

    def __init__(self) -> None:
        self.notes: Seen = []
        self.session: Any = None

    @asynccontextmanager
    async def at(self, command: list[str]) -> AsyncIterator[Any]:
        where = Parameters(command=command[0], args=command[1:], env=dict(os.environ))
        async with (
            asyncio.timeout(PATIENCE_S),
            stdio_client(where) as (read, write),
            Session(
                read,
                write,
                sampling_callback=self.sample,
                elicitation_callback=self.elicit,
                list_roots_callback=self.roots,
                message_handler=self.hear,
            ) as session,
        ):
            self.session = session
            yield session

    async def sample(self, _context: Any, params: Any) -> Any:
        self.notes.append(("asked to sample", dump(params)))
        content = types.TextContent(type="text", text="certainly")
        return types.CreateMessageResult(role="assistant", content=content, model="scripted")

    async def elicit(self, _context: Any, params: Any) -> Any:
        self.notes.append(("asked to fill in", dump(params)))
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def roots(self, _context: Any) -> Any:
        return types.ListRootsResult(roots=[types.Root(uri="file:///tmp", name="tmp")])

    async def hear(self, message: Any) -> None:
        if isinstance(message, types.ServerNotification):
            self.notes.append((type(message.root).__name__, dump(message.root.params)))


def dump(model: Any) -> Any:
    """What a message says, without the names that connections give each other."""
    if model is None:
        return None
    said = model.model_dump(mode="json")
    said.pop("progressToken", None)
    meta = said.get("meta") or said.get("_meta") or {}
    meta.pop("progressToken", None)
    return said


async def tried(work: Any) -> Any:
    try:
        return dump(await work)
    except McpError as error:
        return (error.error.code, error.error.message)


async def everything(session: Any) -> Seen:
    """All that a client can ask for, and what it gets."""
    seen: Seen = [("initialize", dump(await session.initialize()))]
    steps: list[Any] = []

    async def step(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total, message))

    async def ask(what: str, work: Any) -> None:
        seen.append((what, await tried(work)))

    cursor = None
    for _ in range(10):
        page = await session.list_tools(cursor)
        seen.append(("tools", dump(page)))
        cursor = page.nextCursor
        if cursor is None:
            break
    await ask("ping", session.send_ping())
    await ask("level", session.set_logging_level("debug"))
    for tool, arguments in (
        ("echo", {"text": "é漢🗝 \u2028"}),
        ("fail", {}),
        ("large", {}),
        ("none", {}),
    ):
        await ask(tool, session.call_tool(tool, arguments))
    for tool in ("sample", "elicit", "roots", "log"):
        await ask(tool, session.call_tool(tool, {}))
    await ask("progress", session.call_tool("progress", {}, progress_callback=step))
    seen.append(("steps", steps))
    await ask("resources", session.list_resources())
    await ask("templates", session.list_resource_templates())
    await ask("read", session.read_resource("memo://1"))
    await ask("subscribe", session.subscribe_resource("memo://1"))
    await ask("prompts", session.list_prompts())
    await ask("prompt", session.get_prompt("greet", {"who": "Ada"}))
    reference = types.PromptReference(type="ref/prompt", name="greet")
    await ask("complete", session.complete(reference, {"name": "who", "value": "A"}))
    await ask("unknown", session.read_resource("other://1"))
    return seen


async def seen_of(command: list[str], exchange: Callable[[Any], Any]) -> tuple[Seen, Seen]:
    client = Client()
    async with client.at(command) as session:
        seen = await exchange(session)
        await session.send_ping()  # what came before its answer has been heard
    return seen, client.notes


async def test_a_client_sees_the_same_with_and_without_the_gate(tmp_path: Path) -> None:
    direct = await seen_of(OURS, everything)

    through = await seen_of(gate(OURS, tmp_path), everything)

    assert through == direct
    assert {"asked to sample", "asked to fill in", "ProgressNotification"} <= {
        name for name, _ in through[1]
    }
    assert calls_written(tmp_path).count("completed") == 7


async def test_a_clients_cancel_ends_the_call_and_the_session_goes_on(tmp_path: Path) -> None:
    client = Client()
    async with client.at(gate(OURS, tmp_path)) as session:
        await session.initialize()
        with pytest.raises(McpError):
            await session.send_request(
                types.ClientRequest(
                    types.CallToolRequest(params=types.CallToolRequestParams(name="hang"))
                ),
                types.CallToolResult,
                request_read_timeout_seconds=timedelta(seconds=0.3),
            )
        note = types.CancelledNotification(
            params=types.CancelledNotificationParams(requestId=1, reason="enough")
        )
        await session.send_notification(types.ClientNotification(note))
        again = await session.call_tool("echo", {"text": "on we go"})

    assert again.content[0].text == "on we go"
    assert calls_written(tmp_path) == ["cancelled", "completed"]


async def tools_of(session: Any, *calls: tuple[str, dict[str, Any]]) -> Seen:
    seen: Seen = [("initialize", dump(await session.initialize()))]
    seen.append(("tools", dump(await session.list_tools())))
    seen += [(name, await tried(session.call_tool(name, given))) for name, given in calls]
    return seen


def without_times(seen: Seen) -> str:
    """Of a clock only the form is the same twice."""
    return re.sub(r"\d\d:\d\d:\d\d", "hh:mm:ss", str(seen))


async def test_the_published_time_server_works_unchanged(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
    convert = {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}
    calls = (("convert_time", convert), ("get_current_time", {"timezone": "nowhere"}))

    direct, _ = await seen_of(command, lambda session: tools_of(session, *calls))
    through, _ = await seen_of(gate(command, tmp_path), lambda session: tools_of(session, *calls))

    assert without_times(through) == without_times(direct)
    assert calls_written(tmp_path) == ["completed", "failed"]


def new_repository(tmp_path: Path) -> Path:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    repository = tmp_path / "repository"
    subprocess.run([git, "init", "-q", str(repository)], check=True)
    (repository / "a.txt").write_text("a\n")
    return repository


async def test_the_published_git_server_works_unchanged(tmp_path: Path) -> None:
    repository = new_repository(tmp_path)
    command = [sys.executable, "-m", "mcp_server_git", "--repository", str(repository)]
    path = {"repo_path": str(repository)}
    calls = (("git_status", path), ("git_diff_unstaged", path), ("git_log", path))

    direct, _ = await seen_of(command, lambda session: tools_of(session, *calls))
    through, _ = await seen_of(gate(command, tmp_path), lambda session: tools_of(session, *calls))

    assert through == direct
    assert "a.txt" in str(through)
    assert calls_written(tmp_path) == ["completed", "completed", "failed"]


@pytest.fixture(scope="module")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("npm")
    why_not = install_npm(place)
    if why_not:
        pytest.skip(why_not)
    return place / "node_modules" / "@modelcontextprotocol"


async def test_the_published_filesystem_server_works_unchanged(npm: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "large.txt").write_text("x" * 1_000_000)
    command = ["node", str(npm / "server-filesystem" / "dist" / "index.js"), str(notes)]
    calls = (
        ("write_file", {"path": str(notes / "a.txt"), "content": "hello"}),
        ("read_text_file", {"path": str(notes / "a.txt")}),
        ("read_text_file", {"path": str(notes / "large.txt")}),
        ("read_text_file", {"path": "/etc/passwd"}),
        ("list_directory", {"path": str(notes)}),
    )

    direct, _ = await seen_of(command, lambda session: tools_of(session, *calls))
    through, _ = await seen_of(gate(command, tmp_path), lambda session: tools_of(session, *calls))

    assert through == direct
    assert len(str(through)) > 1_000_000
    assert calls_written(tmp_path) == ["completed"] * 3 + ["failed", "completed"]


async def test_the_published_everything_server_works_unchanged(npm: Path, tmp_path: Path) -> None:
    command = ["node", str(npm / "server-everything" / "dist" / "index.js")]

    async def exchange(session: Any) -> Seen:
        seen = await tools_of(
            session,
            ("echo", {"message": "hi"}),
            ("get-sum", {"a": 1, "b": 2}),
            ("get-tiny-image", {}),
            ("trigger-sampling-request", {"prompt": "a word", "maxTokens": 5}),
            ("trigger-elicitation-request", {}),
            ("get-roots-list", {}),
        )
        steps: list[Any] = []

        async def step(done: float, total: float | None, message: str | None) -> None:
            steps.append((done, total, message))

        long = session.call_tool(
            "trigger-long-running-operation",
            {"duration": 0.2, "steps": 2},
            progress_callback=step,
        )
        seen.append(("long", await tried(long)))
        seen.append(("steps", steps))
        seen.append(("templates", dump(await session.list_resource_templates())))
        seen.append(("resources", dump(await session.list_resources())))
        first = (await session.list_resources()).resources[0].uri
        seen.append(("read", dump(await session.read_resource(first))))
        seen.append(("prompts", dump(await session.list_prompts())))
        seen.append(("prompt", dump(await session.get_prompt("simple-prompt"))))
        arguments = {"city": "Oslo"}
        seen.append(("arguments", dump(await session.get_prompt("args-prompt", arguments))))
        seen.append(("subscribe", await tried(session.subscribe_resource(first))))
        return seen

    direct, _ = await seen_of(command, exchange)
    through, notes = await seen_of(gate(command, tmp_path), exchange)

    assert through == direct
    assert {"asked to sample", "asked to fill in"} <= {name for name, _ in notes}
    assert len(dict(through)["steps"]) == 2
    assert calls_written(tmp_path) == ["completed"] * 7


async def test_the_published_memory_server_works_unchanged(npm: Path, tmp_path: Path) -> None:
    command = ["node", str(npm / "server-memory" / "dist" / "index.js")]
    fact = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
    calls: list[tuple[str, dict[str, Any]]] = [("create_entities", {"entities": [fact]})]
    calls.append(("read_graph", {}))

    async def kept(command: list[str], name: str) -> Seen:
        os.environ["MEMORY_FILE_PATH"] = str(tmp_path / name)
        seen, _ = await seen_of(command, lambda session: tools_of(session, *calls))
        return seen

    assert await kept(gate(command, tmp_path), "through") == await kept(command, "direct")
    assert calls_written(tmp_path) == ["completed", "completed"]
