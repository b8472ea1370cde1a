"""ASGI: a small MCP application behind the mount, asked as a server would ask it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import orjson

from callgate.mounts.asgi import CallgateASGI
from tests.mounts.conftest import PATIENCE_S, functions_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router
    from tests.mounts.conftest import Tools

LIST = {"jsonrpc": "2.0", "id": 0, "method": "tools/list"}


class Application:
    """A small MCP application: answers as JSON or as an event stream."""

    def __init__(self, tools: Tools, *, stream: bool = False) -> None:
        self.tools = tools
        self.stream = stream
        self.names = ["echo", "delete_all"]
        self.bodies: list[bytes] = []
        self.lists = 0
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        event = await receive()
        assert not event["more_body"]
        message = orjson.loads(event["body"])
        if message.get("id") == "callgate-tools":  # the gate's own question, once
            self.lists += 1
        else:
            self.bodies.append(event["body"])
        if "id" not in message:
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body"})
            return
        if self.stream:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            ping = (
                b': ping\n\nevent: message\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'
            )
            await send({"type": "http.response.body", "body": ping, "more_body": True})
        try:
            result = await self.answer(message)
        except ValueError as error:
            content = [{"type": "text", "text": str(error)}]
            result = {"content": content, "isError": True}
        body = orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        if self.stream:
            half = len(body) // 2
            await send(
                {
                    "type": "http.response.body",
                    "body": b"id: 7\r\ndata: " + body[:half],
                    "more_body": True,
                }
            )
            await send(
                {
                    "type": "http.response.body",
                    "body": body[half:] + b"\r\n\r\n",
                    "more_body": False,
                }
            )
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def answer(self, message: Any) -> Any:
        if message["method"] == "tools/list":
            return {"tools": [{"name": name} for name in self.names], "x": 1}
        if message["method"] != "tools/call":
            return {}
        params = message["params"]
        tool = getattr(self.tools, params["name"])
        if not asyncio.iscoroutinefunction(tool):
            tool = partial(anyio.to_thread.run_sync, tool)
        text = await tool(**params.get("arguments", {}))
        return {"content": [{"type": "text", "text": text}]}


class Exchange:
    """One request and what came back."""

    def __init__(
        self, app: Any, body: Any, *, path: str = "/mcp", method: str = "POST", **headers: str
    ) -> None:
        self.chunks = [body if isinstance(body, bytes) else orjson.dumps(body)]
        names = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        self.scope = {"type": "http", "method": method, "path": path, "headers": names}
        self.gone = asyncio.Event()
        self.sent: list[Any] = []
        self._app = app

    async def receive(self) -> Any:
        if self.chunks:
            body = self.chunks.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(self.chunks)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Any) -> None:
        self.sent.append(event)

    async def run(self) -> Exchange:
        async with asyncio.timeout(PATIENCE_S):
            await self._app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        (start,) = [event for event in self.sent if event["type"] == "http.response.start"]
        assert [event.get("more_body", False) for event in self.sent[1:]][-1:] == [False]
        return int(start["status"])

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.sent)

    @property
    def messages(self) -> list[Any]:
        """The messages of a stream."""
        lines = self.body.splitlines()
        return [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: ")]

    @property
    def answer(self) -> Any:
        assert self.status == 200
        streams = (b"content-type", b"application/json") not in self.sent[0]["headers"]
        return self.messages[-1] if streams else orjson.loads(self.body)

    @property
    def code(self) -> str:
        result = self.answer["result"]
        assert result["isError"]
        return str(result["_meta"]["callgate/error"]["code"])


def call(tool: str, number: Any = 1, meta: Any = None, **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if meta is not None:
        params["_meta"] = meta
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


class HttpSession:
    """A client of the application."""

    def __init__(self, app: CallgateASGI) -> None:
        self._app = app
        self._newest: Exchange

    async def call(self, tool: str, /, **arguments: Any) -> str:
        self._newest = exchange = Exchange(self._app, call(tool, **arguments))
        await exchange.run()
        return str(exchange.answer["result"]["content"][0]["text"]) if exchange.sent else ""

    async def offered(self) -> set[str]:
        listed = await Exchange(self._app, LIST).run()
        return {tool["name"] for tool in listed.answer["result"]["tools"]}

    async def cancel(self, _: asyncio.Task[str]) -> None:
        """Disconnect."""
        self._newest.gone.set()


@asynccontextmanager
async def connect(
    router: Router,
    tools: Tools,
    *,
    stream: bool = False,
    second: Router | None = None,
    **gate: Any,
) -> AsyncIterator[HttpSession]:
    application = Application(tools, stream=stream)
    application.names = [each.__name__ for each in functions_of(tools)]
    app = CallgateASGI(application, router, agent="web", **gate)
    if second is not None:
        app = CallgateASGI(app, second, agent="web", **gate)
    yield HttpSession(app)
