from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import canaries
from tests.mounts.conftest import PATIENCE_S, until
from tests.mounts.examples import output_of

pytest.importorskip("mcp_types", reason="mcp 2 is not installed")

from mcp import Client, MCPError
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from callgate.mounts.mcp_sdk import authenticated, callgate_middleware
from callgate.protocol.mcp import TIMEOUT_MS
from tests.mounts.runtimes.mcp_sdk import ask, server_of

if TYPE_CHECKING:
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


def text_of(result: Any) -> str:
    return str(result.content[0].text)


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
    assert text_of(result).startswith("rate limit of tool web/limited reached: 1/hour; try again")
    assert tools.calls == ["limited"]


@ERAS
async def test_a_client_may_ask_for_less_time(desk: Desk, tools: Tools, era: str) -> None:
    meta: Any = {TIMEOUT_MS: 30}
    async with desk.router() as router, Client(server_of(tools, router), mode=era) as client:
        async with asyncio.timeout(PATIENCE_S):
            result = await client.call_tool("single", meta=meta)
        await until(tools.cancelled.is_set)

    assert code_of(result) == "limit.timeout"


@pytest.mark.parametrize("params", [None, {}, {"name": 7}, {"name": ["echo"]}])
async def test_a_call_of_no_tool_is_not_passed_on(desk: Desk, params: Any) -> None:
    passed: list[Any] = []

    async def call_next(ctx: Any) -> None:
        passed.append(ctx)

    async with desk.router() as router:
        context = SimpleNamespace(
            method="tools/call", params=params, meta=None, request=None, protocol_version=""
        )
        middleware: Any = callgate_middleware(router, agent="web")
        result = await middleware(context, call_next)

    assert result["_meta"]["callgate/error"]["code"] == "tool.invalid_input"
    assert passed == []


@ERAS
async def test_a_gate_that_fails_lets_nothing_through(
    desk: Desk, tools: Tools, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.router() as router, Client(server_of(tools, router), mode=era) as client:
        monkeypatch.setattr("callgate.mounts.mcp_sdk.TIMEOUT_MS", [])  # cannot be looked up
        result = await client.call_tool("echo", {"text": "x"}, meta={"progress_token": 1})

    assert code_of(result) == "internal"
    assert tools.calls == []


async def test_without_threads_a_call_runs_in_its_requests_task(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        server = server_of(tools, router, threads=False)
        async with Client(server) as client:
            result = await ask(client, "slow")

    assert code_of(result) == "limit.timeout"
    assert tools.cancelled.is_set()
    assert desk.events()[-1] == ("timed_out", "slow")


async def test_the_subject_of_the_access_token_is_the_caller(desk: Desk, tools: Tools) -> None:
    token = AccessToken(token="t", client_id="app", scopes=[], subject="alice")  # noqa: S106
    async with desk.router() as router:
        auth_context_var.set(AuthenticatedUser(token))
        async with Client(server_of(tools, router)) as client:
            await ask(client, "echo", text="x")

    assert desk.records()[-1]["caller"] == "alice"


def test_the_token_of_the_request_comes_before_that_of_its_session() -> None:
    old = AccessToken(token="t", client_id="old", scopes=[])  # noqa: S106
    new = AccessToken(token="t", client_id="new", scopes=[])  # noqa: S106
    auth_context_var.set(AuthenticatedUser(old))

    assert authenticated(SimpleNamespace(scope={"user": AuthenticatedUser(new)})) == "new"
    assert authenticated(SimpleNamespace(scope={})) == "old"


async def test_protocol_errors_of_the_runtime_pass(desk: Desk, tools: Tools) -> None:
    async def refuse(text: str) -> str:
        raise MCPError(code=-32042, message=text)

    async with desk.router() as router:
        server = server_of(tools, router)
        server.add_tool(refuse)
        async with Client(server) as client:
            with pytest.raises(MCPError) as raised:
                await ask(client, "refuse", text="go there")

    assert raised.value.error.code == -32042


async def test_a_low_level_server_is_guarded_too(desk: Desk) -> None:
    async def list_tools(*_: Any) -> ListToolsResult:
        schema = {"type": "object"}
        names = ("echo", "delete_all")
        return ListToolsResult(tools=[Tool(name=name, input_schema=schema) for name in names])

    async def call_tool(*_: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="x")])

    async with desk.router() as router:
        server: Server[Any] = Server("web", on_list_tools=list_tools, on_call_tool=call_tool)
        server.middleware.append(callgate_middleware(router, agent="web"))
        async with Client(server) as client:
            offered = [tool.name for tool in (await client.list_tools()).tools]
            passed = await ask(client, "echo")
            refused = await ask(client, "delete_all")

    assert offered == ["echo"]
    assert text_of(passed) == "x"
    assert code_of(refused) == "policy.denied"


async def test_a_middleware_behind_it_may_answer_with_models(desk: Desk, tools: Tools) -> None:
    async def short(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "tools/list":
            return ListToolsResult(tools=[Tool(name="delete_x", input_schema={"type": "object"})])
        if ctx.method == "tools/call":
            content = [TextContent(type="text", text="no")]
            return CallToolResult(content=content, is_error=True)
        return await call_next(ctx)

    async with desk.router() as router:
        server = server_of(tools, router)
        server.middleware.append(short)
        async with Client(server, mode="legacy") as client:
            offered = (await client.list_tools()).tools
            answer = await ask(client, "echo", text="x")

    assert offered == []
    assert text_of(answer) == "no"
    assert desk.events()[-1][0] == "failed"


def test_the_example_says_what_it_shows() -> None:
    offered, passed, refused = output_of("mount_mcp_sdk")

    assert (offered, passed) == ("['search']", "a page about owls")
    assert refused.startswith("rate limit of tool web/search reached: 1/hour; try again in")
