"""Written without the SDK's types: they are those of the other era where types are checked."""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import canaries
from tests.docs.reader import play
from tests.mounts.conftest import PATIENCE_S, POLICY, until
from tests.mounts.examples import output_of
from tests.mounts.serving import served

try:
    ERA = version("mcp").partition(".")[0]
except PackageNotFoundError:
    ERA = "none"
if ERA != "1":
    pytest.skip("mcp 1 is not installed; make compat", allow_module_level=True)

from callgate.mounts.asgi import CallgateASGI
from callgate.mounts.mcp_sdk_v1 import guard_server
from callgate.protocol.mcp import TIMEOUT_MS
from tests.mounts.runtimes.mcp_sdk_v1 import (
    ASYNC_TOOLS,
    FastMCP,
    ask,
    server_of,
    types,
)
from tests.mounts.runtimes.mcp_sdk_v1 import open_session as connect

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mounts.conftest import Desk, Tools

Server: Any = import_module("mcp.server.lowlevel").Server
Session: Any = import_module("mcp").ClientSession
http_client: Any = import_module("mcp.client.streamable_http").streamable_http_client

SECRET = canaries(1)[0]


def text_of(result: Any) -> str:
    return str(result.content[0].text)


def code_of(result: Any) -> str:
    assert result.isError
    return str(result.meta["callgate/error"]["code"])


async def test_a_refusal_is_an_error_result_that_a_model_can_read(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router, connect(server_of(tools, router)) as client:
        await ask(client, "limited")
        result = await ask(client, "limited")

    assert code_of(result) == "limit.rate"
    assert text_of(result).startswith("rate limit of tool web/limited reached: 1/hour; try again")
    assert tools.calls == ["limited"]


async def test_a_client_may_ask_for_less_time(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router, connect(server_of(tools, router)) as client:
        async with asyncio.timeout(PATIENCE_S):
            result = await client.call_tool("single", {}, meta={TIMEOUT_MS: 30})

    assert code_of(result) == "limit.timeout"
    assert tools.cancelled.is_set()


async def test_a_gate_that_fails_lets_nothing_through(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.router() as router, connect(server_of(tools, router)) as client:
        monkeypatch.setattr("callgate.mounts.mcp_sdk_v1.TIMEOUT_MS", [])  # cannot be looked up
        result = await client.call_tool("echo", {"text": "x"}, meta={"a": 1})

    assert code_of(result) == "internal"
    assert tools.calls == []


async def test_the_requests_context_says_who_calls(desk: Desk, tools: Tools) -> None:
    def who(context: Any) -> str:
        return "alice" if context.request_id else "nobody"

    async with desk.router() as router, connect(server_of(tools, router, caller=who)) as client:
        await ask(client, "echo", text="x")

    assert desk.records()[-1]["caller"] == "alice"


@pytest.mark.parametrize("tasks", ["refuse", "pass"])
async def test_a_task_is_refused_unless_the_policy_lets_tasks_pass(
    desk: Desk, tools: Tools, tasks: str
) -> None:
    policy = POLICY.replace("  web:\n", f"  web:\n    tasks: {tasks}\n")
    params = types.CallToolRequestParams(
        name="echo", arguments={"text": "x"}, task=types.TaskMetadata(ttl=1000)
    )
    request = types.ClientRequest(types.CallToolRequest(params=params))
    async with desk.router(text=policy) as router, connect(server_of(tools, router)) as client:
        result = await client.send_request(request, types.CallToolResult)

    assert result.isError is (tasks == "refuse")
    assert tools.calls == ([] if tasks == "refuse" else ["echo"])
    assert ("denied", None) in desk.events() or tasks == "pass"


@pytest.mark.parametrize("json", [True, False], ids=["json", "stream"])
async def test_the_asgi_mount_guards_a_server_of_this_era(
    desk: Desk,
    tools: Tools,
    json: bool,  # noqa: FBT001
) -> None:
    server = FastMCP("web", json_response=json)
    for name in ASYNC_TOOLS:
        server.add_tool(getattr(tools, name))
    async with desk.router() as router:
        app = CallgateASGI(server.streamable_http_app(), router, agent="web")
        async with (
            served(app) as url,
            http_client(url) as (read, write, _),
            Session(read, write) as client,
        ):
            await client.initialize()
            offered = {tool.name for tool in (await client.list_tools()).tools}
            passed = await ask(client, "echo", text="x")
            late = await ask(client, "slow")
            await until(tools.cancelled.is_set)

    assert offered == set(ASYNC_TOOLS) - {"delete_all"}
    assert text_of(passed) == "x"
    assert code_of(late) == "limit.timeout"


@pytest.mark.parametrize("how", ["before", "after", "by update"])
async def test_a_low_level_server_is_guarded_whenever_its_handlers_are_registered(
    desk: Desk, how: str
) -> None:
    server = Server("web")
    ran: list[str] = []

    def register() -> None:
        @server.list_tools()  # type: ignore[untyped-decorator]
        async def list_tools() -> list[Any]:
            return [types.Tool(name=name, inputSchema={}) for name in ("echo", "delete_all")]

        @server.call_tool()  # type: ignore[untyped-decorator]
        async def call_tool(name: str, _: dict[str, Any]) -> list[Any]:
            ran.append(name)
            return [types.TextContent(type="text", text="x")]

    async with desk.router() as router:
        if how == "before":
            register()
            guard_server(router, server, agent="web")
        elif how == "after":
            guard_server(router, server, agent="web")
            register()
        else:
            register()
            handlers = dict(server.request_handlers)
            guard_server(router, server, agent="web")
            server.request_handlers.update(handlers)
        async with connect(server) as client:
            offered = [tool.name for tool in (await client.list_tools()).tools]
            await ask(client, "echo")
            refused = await ask(client, "delete_all")

    assert offered == ["echo"]
    assert code_of(refused) == "policy.denied"
    assert ran == ["echo"]


def test_the_example_says_what_it_shows() -> None:
    assert output_of("mount_mcp_sdk_v1") == [
        "['search']",
        "a page about owls",
        "rate limit of tool web/search reached: 1/hour; try again in 3600.0 s",
    ]


def test_its_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    play("docs/mounts/mcp-sdk-v1.md", tmp_path)
