from __future__ import annotations

# ruff: noqa: ARG001, FBT001  # ASGI says what a function takes; pytest calls by name
import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from callgate.mounts import asgi
from callgate.mounts.asgi import CallgateASGI, user_caller
from callgate.protocol.mcp import TIMEOUT_MS, VERSION
from tests.canary import canaries, leaks
from tests.mounts.conftest import POLICY, is_idle, until
from tests.mounts.runtimes.asgi import Application, Exchange, call

if TYPE_CHECKING:
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
MODERN = {VERSION: "2026-07-28"}


FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


@FORMS
async def test_an_admitted_call_passes_with_its_answer(
    desk: Desk,
    tools: Tools,
    stream: bool,
) -> None:
    app = Application(tools, stream=stream)
    body = orjson.dumps(call("echo", text="x"))
    async with desk.router() as router:
        exchange = await Exchange(CallgateASGI(app, router, agent="web"), body).run()

    assert exchange.answer["result"]["content"][0]["text"] == "x"
    assert app.bodies == [body]
    assert desk.events() == [("admitted", "echo"), ("completed", "echo")]


async def test_events_pass_as_they_come_and_the_answer_after_its_record(
    desk: Desk, tools: Tools
) -> None:
    recorded: list[list[str]] = []

    async with desk.router() as router:
        app = CallgateASGI(Application(tools, stream=True), router, agent="web")
        exchange = Exchange(app, call("single"))
        send = exchange.send

        async def noted(event: Any) -> None:
            recorded.append([name for name, _ in desk.events()])
            await send(event)

        exchange.send = noted  # type: ignore[method-assign]
        running = asyncio.create_task(exchange.run())
        await until(tools.started.is_set)
        early = [message["method"] for message in exchange.messages]
        tools.free.set()
        await running

    assert early == ["notifications/x"]
    assert b": ping" in exchange.body
    assert exchange.body.endswith(b"\r\n\r\n")
    assert exchange.messages[-1]["id"] == 1
    assert recorded[-2:] == [["admitted"], ["admitted", "completed"]]


@FORMS
async def test_a_refusal_is_an_error_result_that_a_model_can_read(
    desk: Desk,
    tools: Tools,
    stream: bool,
) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools, stream=stream), router, agent="web")
        await Exchange(app, call("limited")).run()
        exchange = await Exchange(app, call("limited", "b")).run()

    assert exchange.code == "limit.rate"
    assert exchange.answer["id"] == "b"
    assert exchange.answer["result"]["content"][0]["text"].startswith(
        "rate limit of tool web/limited"
    )
    assert int(dict(exchange.sent[0]["headers"])[b"retry-after"]) > 3000
    assert tools.calls == ["limited"]


@pytest.mark.parametrize(("meta", "expected"), [(MODERN, "complete"), (None, None)])
async def test_a_refusal_is_in_the_form_of_its_era(
    desk: Desk, tools: Tools, meta: Any, expected: Any
) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = await Exchange(app, call("delete_all", meta=meta)).run()

    assert exchange.answer["result"].get("resultType") == expected


async def test_refusals_may_be_errors_of_the_protocol(desk: Desk, tools: Tools) -> None:
    policy = POLICY.replace("  web:\n", "  web:\n    denials: error\n")
    async with desk.router(text=policy) as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = await Exchange(app, call("delete_all")).run()

    assert exchange.answer["error"]["data"]["code"] == "policy.denied"


@pytest.mark.parametrize(
    ("headers", "meta"),
    [
        ({"callgate_timeout_ms": "30"}, None),
        ({}, {TIMEOUT_MS: 30}),
        ({"callgate_timeout_ms": "9000"}, {TIMEOUT_MS: 30}),
    ],
    ids=["header", "meta", "the shorter"],
)
async def test_a_client_may_ask_for_less_time(
    desk: Desk, tools: Tools, headers: dict[str, str], meta: Any
) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = await Exchange(app, call("single", meta=meta), **headers).run()

    assert exchange.code == "limit.timeout"


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "soon", "", "٣", "1" * 30])
async def test_a_header_that_is_no_time_is_refused(desk: Desk, tools: Tools, text: str) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = await Exchange(app, call("limited"), callgate_timeout_ms=text).run()

    assert exchange.code == "tool.invalid_input"
    assert tools.calls == []


async def test_a_disconnect_cancels_the_work(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = Exchange(app, call("single"))
        running = asyncio.create_task(exchange.run())
        await until(tools.started.is_set)
        exchange.gone.set()
        await running
        await until(tools.cancelled.is_set)
        await until(lambda: is_idle(router))
        tools.free.set()
        again = await Exchange(app, call("single")).run()

    assert exchange.sent == []
    assert not running.cancelled()
    assert running.cancelling() == 0
    assert desk.events()[1] == ("cancelled", "single")
    assert again.answer["result"]["content"][0]["text"] == "done"


async def test_a_disconnect_takes_a_waiting_call_out_of_the_queue(desk: Desk, tools: Tools) -> None:
    policy = POLICY.replace("  web:\n", "  web:\n    queue: 4\n")
    async with desk.router(text=policy) as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        first = asyncio.create_task(Exchange(app, call("single")).run())
        await until(tools.started.is_set)
        waiting = Exchange(app, call("single"))
        running = asyncio.create_task(waiting.run())
        await until(lambda: len(router.engine.flights) == 2)
        waiting.gone.set()
        await running
        tools.free.set()
        await first

    assert tools.calls == ["single"]
    assert ("denied", "single") in desk.events()


async def test_a_cancel_from_outside_passes(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        running = asyncio.create_task(Exchange(app, call("single")).run())
        await until(tools.started.is_set)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(tools.cancelled.is_set)


async def test_a_cancel_from_outside_passes_beside_a_disconnect(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = Exchange(app, call("single"))
        running = asyncio.create_task(exchange.run())
        await until(tools.started.is_set)
        exchange.gone.set()
        asyncio.get_running_loop().call_soon(running.cancel)
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_what_an_application_says_too_late_is_dropped(desk: Desk) -> None:
    spoke = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"late"})
            spoke.set()

    async with desk.router() as router:
        exchange = await Exchange(CallgateASGI(app, router, agent="web"), call("slow")).run()
        await until(spoke.is_set)

    assert exchange.code == "limit.timeout"
    assert b"late" not in exchange.body


async def test_a_session_is_told_of_a_timeout(desk: Desk, tools: Tools) -> None:
    app = Application(tools)
    async with desk.router() as router:
        mounted = CallgateASGI(app, router, agent="web")
        exchange = await Exchange(mounted, call("slow", "a"), mcp_session_id="s").run()

    assert exchange.code == "limit.timeout"
    assert orjson.loads(app.bodies[1]) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": "a"},
    }


async def test_a_session_may_cancel_its_call(desk: Desk, tools: Tools) -> None:
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = Exchange(app, call("single"), mcp_session_id="s")
        running = asyncio.create_task(exchange.run())
        await until(tools.started.is_set)
        other = await Exchange(app, cancel, mcp_session_id="other").run()
        assert not tools.cancelled.is_set()
        own = await Exchange(app, cancel, mcp_session_id="s").run()
        await running
        await until(tools.cancelled.is_set)

    assert (other.status, own.status) == (202, 202)
    assert exchange.code == "tool.canceled"
    assert desk.events()[-1] == ("cancelled", "single")


async def test_an_id_that_a_session_has_in_flight_is_refused(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        first = asyncio.create_task(Exchange(app, call("single"), mcp_session_id="s").run())
        await until(tools.started.is_set)
        second = await Exchange(app, call("limited"), mcp_session_id="s").run()
        tools.free.set()
        await first
        third = await Exchange(app, call("limited"), mcp_session_id="s").run()

    assert second.status == 400
    assert third.status == 200


@FORMS
async def test_a_denied_tool_is_refused_and_not_offered(
    desk: Desk,
    tools: Tools,
    stream: bool,
) -> None:
    ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with desk.router() as router:
        app = CallgateASGI(Application(tools, stream=stream), router, agent="web")
        listed = await Exchange(app, ask).run()
        refused = await Exchange(app, call("delete_all")).run()
        await Exchange(app, call("echo", text="x")).run()

    assert listed.answer["result"] == {"tools": [{"name": "echo"}], "x": 1}
    assert stream or dict(listed.sent[0]["headers"])[b"content-length"] == b"%d" % len(listed.body)
    assert refused.code == "policy.denied"
    assert desk.events()[-1] == ("completed", "echo")


async def test_a_list_that_cannot_be_read_offers_nothing(desk: Desk) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        body = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"delete_all"}]},"Result":{}}'
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": body})

    async with desk.router() as router:
        ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        listed = await Exchange(CallgateASGI(app, router, agent="web"), ask).run()

    assert listed.answer["result"] == {"tools": []}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        orjson.dumps([call("delete_all")]),
        orjson.dumps(call("delete_all")).decode().encode("utf-16"),
        b"\xef\xbb\xbf" + orjson.dumps(call("delete_all")),
        orjson.dumps(call("delete_all")).replace(b'"name"', b'"name":"echo","name"'),
        orjson.dumps(call("echo")).replace(b'"arguments"', b'"Name":"delete_all","arguments"'),
    ],
    ids=["empty", "cut", "[]", "batch", "utf-16", "bom", "twice", "lookalike"],
)
async def test_what_cannot_be_read_for_sure_is_not_passed_on(
    desk: Desk, tools: Tools, body: bytes
) -> None:
    app = Application(tools)
    async with desk.router() as router:
        exchange = await Exchange(CallgateASGI(app, router, agent="web"), body).run()

    assert exchange.status == 400
    assert orjson.loads(exchange.body)["error"]["data"]["code"] == "protocol.invalid"
    assert app.bodies == []
    assert b"protocol.frame_rejected" in desk.everything()


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_method": "tools/list"},
        {"mcp_name": "delete_all"},
        {"mcp_name": "=?base64?ZGVsZXRlX2FsbA==?="},
        {"mcp_name": "=?base64?!?="},
    ],
)
async def test_headers_that_contradict_the_body_are_refused(
    desk: Desk, tools: Tools, headers: dict[str, str]
) -> None:
    app = Application(tools)
    async with desk.router() as router:
        mounted = CallgateASGI(app, router, agent="web")
        exchange = await Exchange(mounted, call("echo", text="x"), **headers).run()

    assert exchange.status == 400
    assert app.bodies == []


async def test_headers_that_agree_with_the_body_pass(desk: Desk, tools: Tools) -> None:
    headers = {"mcp_method": "tools/call", "mcp_name": "=?base64?ZWNobw==?="}
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = await Exchange(app, call("echo", text="x"), **headers).run()

    assert exchange.status == 200


@pytest.mark.parametrize("name", [b"mcp-session-id", b"mcp-name", b"callgate-timeout-ms"])
async def test_a_header_that_comes_twice_is_refused(desk: Desk, tools: Tools, name: bytes) -> None:
    app = Application(tools)
    async with desk.router() as router:
        exchange = Exchange(CallgateASGI(app, router, agent="web"), call("echo", text="x"))
        exchange.scope["headers"] = [(name, b"echo"), (name, b"echo")]
        await exchange.run()

    assert exchange.status == 400
    assert app.bodies == []


SMALL = POLICY.replace("  web:\n", "  web:\n    max_frame_bytes: 1KiB\n")


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "found"])
async def test_a_body_that_is_too_large_is_refused(
    desk: Desk,
    tools: Tools,
    stated: bool,
) -> None:
    app = Application(tools)
    body = orjson.dumps(call("echo", "a", text="x" * 2000))
    headers = {"content_length": str(len(body))} if stated else {}
    async with desk.router(text=SMALL) as router:
        exchange = Exchange(CallgateASGI(app, router, agent="web"), b"", **headers)
        exchange.chunks = [body[at : at + 100] for at in range(0, len(body), 100)]
        await exchange.run()

    answer = orjson.loads(exchange.body)
    assert exchange.status == 413
    assert answer["error"]["data"]["code"] == "limit.frame_bytes"
    assert answer["id"] == (None if stated else "a")
    assert len(exchange.chunks) > 5
    assert app.bodies == []


@FORMS
@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
async def test_an_answer_that_is_too_large_is_refused(
    desk: Desk,
    stream: bool,
    method: str,
) -> None:
    kind = b"text/event-stream" if stream else b"application/json"
    swallowed: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        )
        for _ in range(20):
            try:
                await send({"type": "http.response.body", "body": b"x" * 100, "more_body": True})
            except OSError:
                swallowed.append(True)
        await send({"type": "http.response.body", "body": b""})

    async with desk.router(text=SMALL) as router:
        ask = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "echo"}}
        exchange = await Exchange(CallgateASGI(app, router, agent="web"), ask).run()

    assert swallowed
    assert b"limit.frame_bytes" in exchange.body
    assert len(exchange.body) < 1000


async def test_a_body_that_trickles_is_given_up(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "BODY_TIMEOUT_S", 0.05)
    app = Application(tools)

    async with desk.router() as router:
        exchange = Exchange(CallgateASGI(app, router, agent="web"), b"")

        async def receive() -> Any:
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b" ", "more_body": True}

        exchange.receive = receive  # type: ignore[method-assign]
        await exchange.run()

    assert exchange.status == 408
    assert app.bodies == []


async def test_a_client_that_leaves_before_it_has_asked_is_forgotten(
    desk: Desk, tools: Tools
) -> None:
    app = Application(tools)
    async with desk.router() as router:
        exchange = Exchange(CallgateASGI(app, router, agent="web"), b"")
        exchange.chunks = []
        exchange.gone.set()
        await exchange.run()

    assert exchange.sent == []
    assert app.bodies == []


async def test_a_task_is_refused_unless_the_policy_lets_tasks_pass(
    desk: Desk, tools: Tools
) -> None:
    body = call("echo", text="x")
    body["params"]["task"] = {}
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        refused = await Exchange(app, body).run()
        await router.reload(
            desk.router(text=POLICY.replace("  web:\n", "  web:\n    tasks: pass\n")).policy
        )
        passed = await Exchange(app, body).run()

    assert refused.code == "policy.denied"
    assert ("denied", None) in desk.events()
    assert "isError" not in passed.answer["result"]


async def test_other_messages_pass_and_their_disconnect_reaches_the_application(
    desk: Desk, tools: Tools
) -> None:
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"]
        if (await receive())["type"] == "http.disconnect":
            left.set()

    async with desk.router() as router:
        ask = {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}
        exchange = Exchange(CallgateASGI(app, router, agent="web"), ask)
        exchange.gone.set()
        await exchange.run()

    assert left.is_set()
    assert desk.records() == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
async def test_requests_without_a_body_pass_unread(desk: Desk, method: str) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend((scope, receive, send))

    async with desk.router() as router:
        exchange = Exchange(CallgateASGI(app, router, agent="web"), b"", method=method)
        await exchange.run()

    assert seen == [exchange.scope, exchange.receive, exchange.send]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "QUERY"])
async def test_requests_with_a_body_are_read(desk: Desk, tools: Tools, method: str) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web")
        exchange = await Exchange(app, call("delete_all"), method=method).run()

    assert exchange.code == "policy.denied"


@pytest.mark.parametrize(
    ("path", "guarded"),
    [("/mcp", True), ("/mcp/", True), ("/mcp/x", True), ("/mcpx", False), ("/token", False)],
)
async def test_with_a_path_what_is_elsewhere_passes(
    desk: Desk,
    tools: Tools,
    path: str,
    guarded: bool,
) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web", path="/mcp/")
        exchange = await Exchange(app, call("delete_all"), path=path).run()

    assert ("isError" in exchange.answer["result"]) is guarded


async def test_a_path_is_that_of_the_application_and_not_of_the_server(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web", path="/mcp")
        exchange = Exchange(app, call("delete_all"), path="/api/mcp")
        exchange.scope["root_path"] = "/api"
        await exchange.run()

    assert exchange.code == "policy.denied"


async def test_a_path_that_only_begins_like_the_servers_is_guarded(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web", path="/mcp")
        exchange = Exchange(app, call("delete_all"), path="/mcp")
        exchange.scope["root_path"] = "/m"
        await exchange.run()

    assert exchange.code == "policy.denied"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_an_event_is_found_however_it_is_cut(desk: Desk, end: bytes) -> None:
    line = end[: len(end) // 2]
    result = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"echo"},{"name":"delete_x"}]}}'
    stream = b": hi" + end + b"id: 1" + line + b"data: " + result + end + b"event: end"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for byte in stream:
            body = bytes([byte])
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with desk.router() as router:
        ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        exchange = await Exchange(CallgateASGI(app, router, agent="web"), ask).run()

    assert exchange.answer["result"] == {"tools": [{"name": "echo"}]}
    assert exchange.body.startswith(b": hi" + end + b"id: 1\r\ndata: ")
    assert exchange.body.endswith(b"event: end")


async def test_a_websocket_is_not_let_around_the_gate(desk: Desk) -> None:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def never(*_: Any) -> None:
        raise AssertionError

    async with desk.router() as router:
        app = CallgateASGI(never, router, agent="web")
        await app({"type": "websocket", "path": "/mcp", "headers": []}, never, send)  # type: ignore[arg-type]

    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_the_lifespan_passes(desk: Desk) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    async with desk.router() as router:
        await CallgateASGI(app, router, agent="web")({"type": "lifespan"}, None, None)  # type: ignore[arg-type]

    assert seen == [{"type": "lifespan"}]


class Lifespan:
    """A server that starts an application and stops it."""

    def __init__(self, app: Any) -> None:
        self.sent: list[Any] = []
        self.stop = asyncio.Event()
        self._asked = 0
        self.task = asyncio.create_task(app({"type": "lifespan"}, self.receive, self.send))

    async def receive(self) -> Any:
        self._asked += 1
        if self._asked == 1:
            return {"type": "lifespan.startup"}
        await self.stop.wait()
        return {"type": "lifespan.shutdown"}

    async def send(self, event: Any) -> None:
        self.sent.append(event["type"])


async def test_the_servers_lifespan_may_run_the_router(desk: Desk, tools: Tools) -> None:
    inner = Application(tools)
    received: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await inner(scope, receive, send)
            return
        received.append(await receive())
        await send({"type": "lifespan.startup.complete"})
        received.append(await receive())

    mounted = CallgateASGI(app, desk.router(), agent="web", run_router=True)
    before = await Exchange(mounted, call("echo", text="x")).run()
    lifespan = Lifespan(mounted)
    await until(lambda: bool(lifespan.sent))
    during = await Exchange(mounted, call("echo", text="x")).run()
    lifespan.stop.set()
    await lifespan.task
    after = await Exchange(mounted, call("echo", text="x")).run()

    assert before.code == after.code == "internal"
    assert "isError" not in during.answer["result"]
    assert [event["type"] for event in received] == ["lifespan.startup", "lifespan.shutdown"]


async def test_a_server_whose_router_cannot_start_does_not_start(desk: Desk) -> None:
    (desk.folder / "audit").write_text("in the way")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    lifespan = Lifespan(CallgateASGI(app, desk.router(), agent="web", run_router=True))
    await lifespan.task

    assert lifespan.sent == ["lifespan.startup.failed"]


async def test_no_secret_reaches_the_audit_or_a_refusal(desk: Desk, tools: Tools) -> None:
    secret = SECRET.secret
    async with desk.router() as router:
        app = CallgateASGI(Application(tools), router, agent="web", caller=lambda _: secret)
        await Exchange(app, call("echo", secret, {"x": secret}, text=secret)).run()
        await Exchange(app, call("fail", text=secret)).run()
        refusals = [
            await Exchange(app, call("small", text=secret * 10)).run(),
            await Exchange(app, secret.encode(), callgate_timeout_ms="1").run(),
            await Exchange(app, call("limited"), callgate_timeout_ms="soon").run(),
            await Exchange(
                app, {"jsonrpc": "2.0", "id": 1, "method": secret, "params": secret}
            ).run(),
        ]

    shown = b"".join(exchange.body for exchange in refusals)
    assert leaks([SECRET], desk.everything() + shown) == {}


async def test_a_gate_that_fails_lets_nothing_through(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Application(tools)

    def broken(*_: object) -> None:
        raise ValueError(SECRET.secret)

    monkeypatch.setattr(asgi, "check_headers", broken)
    async with desk.router() as router:
        exchange = await Exchange(
            CallgateASGI(app, router, agent="web"), call("echo", text="x")
        ).run()

    assert exchange.status == 500
    assert orjson.loads(exchange.body)["error"]["data"]["code"] == "internal"
    assert app.bodies == []
    assert leaks([SECRET], exchange.body) == {}


async def test_an_application_that_raises_is_the_servers_to_report(desk: Desk) -> None:
    failure = ValueError("mine")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"sorry"})
        raise failure

    async with desk.router() as router:
        exchange = Exchange(CallgateASGI(app, router, agent="web"), call("echo"))
        with pytest.raises(ValueError, match="mine") as raised:
            await exchange.run()

    assert raised.value is failure
    assert (exchange.status, exchange.body) == (500, b"sorry")
    assert desk.records()[-1]["code"] == "tool.failed"


async def test_a_status_that_is_no_answer_passes_and_is_audited_as_a_failure(desk: Desk) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b"<html>"})

    async with desk.router() as router:
        exchange = await Exchange(CallgateASGI(app, router, agent="web"), call("echo")).run()

    assert (exchange.status, exchange.body) == (404, b"<html>")
    assert desk.records()[-1]["code"] == "tool.failed"


async def test_answers_are_asked_for_uncompressed(desk: Desk) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])

    async with desk.router() as router:
        mounted = CallgateASGI(app, router, agent="web")
        await Exchange(mounted, call("echo"), accept_encoding="gzip", accept="x").run()

    assert seen[-1] == [(b"accept", b"x")]
    assert all(name != b"accept-encoding" for headers in seen for name, _ in headers)


class User:
    is_authenticated = True
    display_name = "alice"


class Token:
    client_id = "app"
    subject = "bob"


class TokenUser(User):
    access_token = Token()


@pytest.mark.parametrize(
    ("user", "expected"), [(None, None), (User(), "alice"), (TokenUser(), "bob")]
)
def test_an_authenticated_user_is_the_caller(user: Any, expected: str | None) -> None:
    assert user_caller({"user": user}) == expected


class Moved:
    """An application that answers at `/mcp/`, and redirects what is sent to `/mcp`."""

    def __init__(self, app: Application, location: str, *, reads: bool = False) -> None:
        self._app = app
        self._location = location
        self._reads = reads
        self.redirects = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/mcp/":
            await self._app(scope, receive, send)
            return
        if self._reads:
            await receive()
        self.redirects += 1
        headers = [(b"location", self._location.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body"})


@pytest.mark.parametrize("location", ["/mcp/", "http://here/mcp/"])
async def test_a_redirect_to_the_same_path_with_a_slash_is_one_call(
    desk: Desk, tools: Tools, location: str
) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Moved(Application(tools), location), router, agent="web")
        first = await Exchange(app, call("limited"), host="here").run()
        second = await Exchange(app, call("limited"), path="/mcp/", host="here").run()

    assert first.answer["result"]["content"][0]["text"] == "done"
    assert second.code == "limit.rate"
    assert tools.calls == ["limited"]
    assert [event for event, _ in desk.events()] == ["admitted", "completed", "denied"]


@pytest.mark.parametrize(
    ("location", "reads"),
    [
        ("http://elsewhere/mcp/", False),
        ("/other/", False),
        ("/mcp/?x=1", False),
        ("/mcp/", True),  # it has the call, and may have run the tool
    ],
)
async def test_any_other_redirect_is_the_clients_to_follow(
    desk: Desk, tools: Tools, location: str, reads: bool
) -> None:
    async with desk.router() as router:
        app = CallgateASGI(Moved(Application(tools), location, reads=reads), router, agent="web")
        exchange = await Exchange(app, call("limited"), host="here").run()

    assert exchange.status == 307
    assert tools.calls == []


async def test_the_tools_are_asked_for_again_after_a_caller_who_may_not_list(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Private(Application):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if (b"authorization", b"yes") in scope["headers"]:
                await super().__call__(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body"})

    monkeypatch.setattr("callgate.mounts.common.LEARN_AGAIN_NS", 0)
    private = Private(tools)
    async with desk.router() as router:
        app = CallgateASGI(private, router, agent="web")
        await Exchange(app, call("echo", text="x")).run()
        for _ in range(3):
            await Exchange(app, call("echo", text="x"), authorization="yes").run()

    assert [name for _, name in desk.events()] == [None, None, *["echo"] * 6]
    assert private.lists == 1
