from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import canaries, leaks
from tests.mounts.conftest import PATIENCE_S, until
from tests.mounts.examples import output_of

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server import create_proxy
from fastmcp.server.auth import AccessToken
from fastmcp.server.providers.addressing import hashed_backend_name
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser

from callgate.mounts.fastmcp import CallgateMiddleware, CallRefusedError
from callgate.protocol.mcp import TIMEOUT_MS
from tests.mounts.runtimes.fastmcp import ask, server_of

if TYPE_CHECKING:
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


def code_of(result: Any) -> str:
    assert result.is_error
    return str(result.meta["callgate/error"]["code"])


@ERAS
async def test_a_refusal_is_an_error_result_that_a_model_can_read(
    desk: Desk, tools: Tools, era: str
) -> None:
    async with desk.router() as router, Client(server_of(tools, router), mode=era) as client:
        await ask(client, "limited")
        result = await ask(client, "limited")

    assert code_of(result) == "limit.rate"
    assert result.content[0].text.startswith("rate limit of tool web/limited reached: 1/hour; try")
    assert result.meta["callgate/error"]["retry_after_ms"] > 0
    assert tools.calls == ["limited"]


async def test_a_client_may_ask_for_less_time(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router, Client(server_of(tools, router)) as client:
        async with asyncio.timeout(PATIENCE_S):
            result = await client.call_tool("single", raise_on_error=False, meta={TIMEOUT_MS: 30})

    assert code_of(result) == "limit.timeout"
    assert tools.cancelled.is_set()


@pytest.mark.parametrize("asked", [0, -1, "30", 1.5, True])
async def test_a_timeout_that_is_none_is_refused(desk: Desk, tools: Tools, asked: Any) -> None:
    async with desk.router() as router, Client(server_of(tools, router)) as client:
        result = await client.call_tool("limited", raise_on_error=False, meta={TIMEOUT_MS: asked})

    assert code_of(result) == "tool.invalid_input"
    assert tools.calls == []


async def test_a_tool_that_is_not_there_is_the_runtimes_to_report(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router, Client(server_of(tools, router)) as client:
        result = await ask(client, SECRET.secret)

    assert "Unknown tool" in result.content[0].text
    assert leaks([SECRET], desk.everything()) == {}


async def test_a_gate_that_fails_lets_nothing_through(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.router() as router, Client(server_of(tools, router)) as client:
        monkeypatch.setattr("callgate.mounts.fastmcp.parse_hashed_backend_name", None)
        result = await ask(client, "echo", text="x")

    assert code_of(result) == "internal"
    assert tools.calls == []


async def test_a_program_that_calls_a_tool_gets_the_refusal_raised(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        server = server_of(tools, router)
        with pytest.raises(CallRefusedError) as raised:
            await server.call_tool("delete_all")

    assert isinstance(raised.value, ToolError)
    assert raised.value.error.code == "policy.denied"


async def test_a_tool_that_calls_another_has_its_refusal_raised(desk: Desk, tools: Tools) -> None:
    async def outer(ctx: Context) -> str:
        try:
            await ctx.fastmcp.call_tool("delete_all")
        except CallRefusedError as error:
            return error.error.code
        return "let through"

    async with desk.router() as router:
        server = server_of(tools, router)
        server.tool(outer)
        async with Client(server) as client:
            result = await ask(client, "outer")

    assert result.data == "policy.denied"


async def test_a_tool_called_by_its_hash_is_under_its_own_name(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        server = server_of(tools, router)
        name = hashed_backend_name("shop", "delete_more")
        digest = name.partition("_")[0]
        meta = {"fastmcp": {"app": "shop", "tool_hash": digest}, "ui": {"visibility": ["app"]}}
        server.tool(tools.delete_all, name="delete_more", meta=meta)
        async with Client(server) as client:
            result = await ask(client, name)

    assert code_of(result) == "policy.denied"
    assert tools.calls == []


async def test_the_tools_of_a_mounted_server_are_under_the_policy(desk: Desk, tools: Tools) -> None:
    inner: FastMCP[Any] = FastMCP("inner")
    inner.tool(tools.slow_sync)
    inner.tool(tools.delete_all, name="all")
    async with desk.router() as router:
        outer: FastMCP[Any] = FastMCP("outer", middleware=[CallgateMiddleware(router, agent="web")])
        outer.mount(inner, namespace="delete")
        outer.mount(inner)
        async with Client(outer) as client:
            denied = await ask(client, "delete_all")
            late = await ask(client, "slow_sync")
            held = await ask(client, "slow_sync")
            tools.thread_free.set()

    assert [code_of(result) for result in (denied, late, held)] == [
        "policy.denied",
        "limit.timeout",
        "limit.concurrency",
    ]


async def test_a_proxy_guards_the_server_behind_it(desk: Desk, tools: Tools) -> None:
    backend: FastMCP[Any] = FastMCP("backend")
    for tool in (tools.echo, tools.slow, tools.delete_all):
        backend.tool(tool)
    async with desk.router() as router:
        proxy = create_proxy(backend)
        middleware = CallgateMiddleware(router, agent="web")
        proxy.add_middleware(middleware)
        async with Client(proxy) as client:
            offered = {tool.name for tool in await client.list_tools()}
            passed = await ask(client, "echo", text="x")
            late = await ask(client, "slow")
            denied = await ask(client, "delete_all")
            # On a slow machine its time may be over before the server behind has begun.
            await until(lambda: tools.cancelled.is_set() or "slow" not in tools.calls)

    assert offered == {"echo", "slow"}
    assert passed.data == "x"
    assert code_of(late) == "limit.timeout"
    assert code_of(denied) == "policy.denied"
    assert middleware._coroutine == dict.fromkeys(("echo", "slow", "delete_all"), True)


async def test_the_subject_of_the_access_token_is_the_caller(desk: Desk, tools: Tools) -> None:
    token = AccessToken(token="t", client_id="app", scopes=[], subject="alice")  # noqa: S106
    async with desk.router() as router:
        server = server_of(tools, router)
        auth_context_var.set(AuthenticatedUser(token))
        await server.call_tool("echo", {"text": "x"})

    assert desk.records()[-1]["caller"] == "alice"


async def test_other_requests_pass_uncounted(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        server = server_of(tools, router)

        @server.resource("data://x")
        def data() -> str:
            return "x"

        async with Client(server) as client:
            await client.list_resources()
            contents = await client.read_resource("data://x")

    assert len(contents) == 1
    assert desk.records() == []


def test_the_example_says_what_it_shows() -> None:
    offered, passed, refused = output_of("mount_fastmcp")

    assert (offered, passed) == ("['search']", "a page about owls")
    assert refused.startswith("rate limit of tool web/search reached: 1/hour; try again in")
