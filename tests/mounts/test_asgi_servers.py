"""The ASGI mount around real servers, over real sockets, with real clients."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from callgate.mounts.asgi import CallgateASGI
from tests.mounts.conftest import PATIENCE_S, is_idle, until
from tests.mounts.examples import output_of
from tests.mounts.serving import served

pytest.importorskip("mcp_types", reason="mcp 2 is not installed")

from mcp import Client
from mcp.server import MCPServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router
    from tests.mounts.conftest import Desk, Tools

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
FORMS = pytest.mark.parametrize("json", [True, False], ids=["json", "stream"])


@asynccontextmanager
async def connected(
    desk: Desk, tools: Tools, era: str = "auto", **options: Any
) -> AsyncIterator[tuple[Router, Client]]:
    """A client of the SDK's server behind the mount."""
    server = MCPServer("web")
    for name in dir(tools):
        function = getattr(tools, name)
        if callable(function) and not name.startswith("_"):
            server.add_tool(function)
    async with desk.router() as router:
        app = CallgateASGI(server.streamable_http_app(**options), router, agent="web")
        async with served(app) as url, Client(url, mode=era) as client:
            yield router, client


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await client.call_tool(tool, arguments)


def code_of(result: Any) -> str:
    assert result.is_error
    return str(result.meta["callgate/error"]["code"])


@ERAS
@FORMS
async def test_a_real_server_is_guarded(
    desk: Desk,
    tools: Tools,
    era: str,
    json: bool,  # noqa: FBT001
) -> None:
    async with connected(desk, tools, era, json_response=json) as (_, client):
        offered = {tool.name for tool in (await client.list_tools()).tools}
        passed = await ask(client, "echo", text="x")
        denied = await ask(client, "delete_all")
        await ask(client, "limited")
        limited = await ask(client, "limited")
        late = await ask(client, "slow")
        await until(tools.cancelled.is_set)

    assert "echo" in offered
    assert "delete_all" not in offered
    assert passed.content[0].text == "x"
    assert [code_of(result) for result in (denied, limited, late)] == [
        "policy.denied",
        "limit.rate",
        "limit.timeout",
    ]
    assert ("timed_out", "slow") in desk.events()


@ERAS
@FORMS
async def test_a_client_that_cancels_ends_the_work(
    desk: Desk,
    tools: Tools,
    era: str,
    json: bool,  # noqa: FBT001
) -> None:
    async with connected(desk, tools, era, json_response=json) as (router, client):
        call = asyncio.create_task(ask(client, "single"))
        await until(tools.started.is_set)
        call.cancel()
        await until(tools.cancelled.is_set)
        await until(lambda: is_idle(router))
        tools.free.set()
        again = await ask(client, "single")

    assert again.content[0].text == "done"
    assert ("cancelled", "single") in desk.events()


@FORMS
async def test_a_sync_tool_holds_its_slot_until_its_thread_ends(
    desk: Desk,
    tools: Tools,
    json: bool,  # noqa: FBT001
) -> None:
    async with connected(desk, tools, json_response=json) as (router, client):
        first = await ask(client, "slow_sync")
        second = await ask(client, "slow_sync")
        tools.thread_free.set()
        await until(lambda: is_idle(router))
        third = await ask(client, "slow_sync")

    assert code_of(first) == "limit.timeout"
    assert code_of(second) == "limit.concurrency"
    assert third.content[0].text == "done"


@ERAS
async def test_a_server_without_sessions_is_guarded(desk: Desk, tools: Tools, era: str) -> None:
    async with connected(desk, tools, era, stateless_http=True) as (router, client):
        passed = await ask(client, "echo", text="x")
        late = await ask(client, "slow")
        await until(tools.cancelled.is_set)
        await until(lambda: is_idle(router))

    assert passed.content[0].text == "x"
    assert code_of(late) == "limit.timeout"


@ERAS
@FORMS
async def test_a_call_before_any_list_is_named(
    desk: Desk,
    tools: Tools,
    era: str,
    json: bool,  # noqa: FBT001
) -> None:
    async with connected(desk, tools, era, json_response=json) as (_, client):
        await ask(client, "echo", text="x")

    assert desk.events() == [("admitted", "echo"), ("completed", "echo")]


@ERAS
async def test_a_path_that_a_framework_redirects_is_counted_once(
    desk: Desk, tools: Tools, era: str
) -> None:
    async with connected(desk, tools, era, streamable_http_path="/mcp/") as (_, client):
        passed = await ask(client, "limited")
        refused = await ask(client, "limited")

    assert passed.content[0].text == "done"
    assert code_of(refused) == "limit.rate"
    assert [event for event, _ in desk.events()] == ["admitted", "completed", "denied"]


@ERAS
async def test_fastmcps_application_is_guarded(desk: Desk, tools: Tools, era: str) -> None:
    fastmcp = pytest.importorskip("fastmcp", reason="fastmcp is not installed")
    server = fastmcp.FastMCP("web")
    for function in (tools.echo, tools.slow, tools.delete_all):
        server.tool(function)
    async with desk.router() as router:
        app = CallgateASGI(server.http_app(), router, agent="web")
        async with served(app) as url, Client(url, mode=era) as client:
            offered = {tool.name for tool in (await client.list_tools()).tools}
            passed = await ask(client, "echo", text="x")
            late = await ask(client, "slow")
            await until(tools.cancelled.is_set)

    assert offered == {"echo", "slow"}
    assert passed.content[0].text == "x"
    assert code_of(late) == "limit.timeout"


def test_the_example_says_what_it_shows() -> None:
    passed, refused = output_of("mount_asgi")

    assert passed == "a page about owls"
    assert refused.startswith("rate limit of tool web/search reached: 1/hour; try again in")
