"""Any MCP server that is an ASGI application, of either era, behind the router.

    app = CallgateASGI(server.streamable_http_app(), router, agent="web")

Theory of operation. A pure ASGI class: nothing between it and the server hides a disconnect. The
body of each request is read whole, under a size and a time, and decoded by the strict codec of
`callgate.protocol`; what that refuses is answered with a JSON-RPC error and never passed on,
since a laxer reader behind could find a tool call in it. That goes for batches, too, which MCP
withdrew. A `tools/call` runs under the router; of a `tools/list` the denied tools are taken out;
all else passes.

The call's time is its own: at the deadline the client is answered here, whatever the application
does. The application is then cancelled, as it is when the client disconnects; a session of the
older era works elsewhere than in the request, so it is also sent the protocol's own cancel.

The router must be running while requests are served; with `run_router=True` the server's lifespan
starts and stops it, so that `uvicorn module:app` needs no more than this.

Every request is taken for MCP unless `path` says where MCP is. The transport of 2024 (a stream
from `GET`, answers of 202) gives its answers elsewhere: there rates and denials hold, and the
time and the number of calls at once do not.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

from callgate.errors import CallgateError
from callgate.mounts.asgi_call import LIST, Call
from callgate.mounts.asgi_reply import AnswerTooLarge, Reply, answer, offered
from callgate.mounts.asgi_request import (
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    again,
    check_headers,
    read_body,
    readable_scope,
    replay,
    session_of,
)
from callgate.mounts.common import Mount, token_subject
from callgate.protocol import jsonrpc, mcp
from callgate.protocol.mcp import CallTool, Cancelled, Request
from callgate.protocol.problem import ProtocolError, Reason
from callgate.protocol.results import read_tools
from callgate.protocol.seek import seek

if TYPE_CHECKING:
    from msgspec import Raw

    from callgate.model import GateSpec
    from callgate.mounts.asgi_request import App, Receive, Scope, Send
    from callgate.mounts.common import Caller
    from callgate.policy import Policy
    from callgate.protocol.problem import Id
    from callgate.router import Router

BODY_TIMEOUT_S: Final = 30.0
"""For a whole body. A client that has the message sends it at once; one that trickles waits to
wear the server out."""
_WITHOUT_BODY: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS"})


def user_caller(scope: Scope) -> str | None:
    """Return whom an authentication in front of this has found: a token's subject or a user.

    None if there is none, or if it stands behind this and has not spoken yet. A token that
    nobody has checked proves nothing and is not looked at.
    """
    user = scope.get("user")
    name = token_subject(getattr(user, "access_token", None))
    if name is None and user is not None and user.is_authenticated:
        name = user.display_name
    return name


class CallgateASGI:
    """Puts every tool call of an MCP application under the router; hides what is denied.

    `caller` is a name or a function of the ASGI scope. With `path`, what is neither there nor
    below passes unseen: the application must not speak MCP anywhere else. With `run_router` the
    router is entered when the server starts and left when it stops.
    """

    def __init__(
        self,
        app: App,
        router: Router,
        *,
        agent: str,
        caller: Caller = user_caller,
        path: str | None = None,
        run_router: bool = False,
    ) -> None:
        self._app = app
        self._run_router = run_router
        self._mount = Mount(router, agent, caller)
        self._path = None if path is None else path.rstrip("/")
        self._policy: Policy | None = None
        self._gate: GateSpec | None = None
        self._sessions: dict[tuple[str, Id], Call] = {}
        """Calls in flight of sessions of the older era, which cancel them by their id."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" and self._run_router:
            await self._lifespan(scope, receive, send)
            return
        if scope["type"] == "websocket" and self._guards(scope):
            await send({"type": "websocket.close", "code": 1008})  # what it carries is not read
            return
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY or not self._guards(scope):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
            message = mcp.decode(body)
            check_headers(scope, message)
        except ClientGone:
            return
        except CallgateError as error:
            await self._reject(error, send)
            return
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
            fault = self._mount.internal_error(error)
            await answer(send, 500, jsonrpc.encode_error(None, fault), fault)
            return
        if isinstance(message, CallTool):
            await self._call(message, body, scope, receive, send)
        elif isinstance(message, Request) and message.method == LIST:
            await self._list(message, body, scope, receive, send)
        else:
            if isinstance(message, Cancelled):
                self._cancelled(message, scope)
            await self._app(scope, replay(body, receive), send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Enter the router when the server starts, and leave it when the server stops."""
        startup = await receive()
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._mount.router)
            except Exception as error:  # noqa: BLE001  # a server that cannot start says so
                reason = self._mount.internal_error(error).describe()
                await send({"type": "lifespan.startup.failed", "message": reason})
                return
            await self._app(scope, again(startup, receive), send)

    def _guards(self, scope: Scope) -> bool:
        if self._path is None:
            return True
        # Frameworks differ on whether a path has the server's part in it: guard either reading.
        path: str = scope["path"]
        within = path.removeprefix(scope.get("root_path", ""))
        below = f"{self._path}/"
        return self._path in {path, within} or path.startswith(below) or within.startswith(below)

    @property
    def _spec(self) -> GateSpec:
        policy = self._mount.router.policy
        if self._gate is None or policy is not self._policy:
            self._policy = policy
            self._gate = policy.gate(self._mount.agent)
        return self._gate

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        limit = self._spec.max_frame_bytes
        return await read_body(scope, receive, self._mount.agent, limit, BODY_TIMEOUT_S)

    async def _reject(self, error: CallgateError, send: Send) -> None:
        """Answer a message that the application will not see."""
        own_id: Id | None = None
        status = 400
        reason = error.code
        if isinstance(error, ProtocolError):
            own_id = error.id
            reason = error.reason
        elif isinstance(error, BodyTooLarge):
            own_id = seek(error.head, b"").id
            status = 413
        elif isinstance(error, BodyTooSlow):
            status = 408
        self._mount.reject(reason)
        await answer(send, status, jsonrpc.encode_error(own_id, error), error)

    async def _list(
        self, message: Request, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        reply = Reply(send, message.id, self._spec.max_frame_bytes)
        with suppress(AnswerTooLarge):
            await self._app(readable_scope(scope), replay(body, receive), reply)
        if reply.oversized:
            error = reply.too_large(self._mount.agent)
            await reply.refuse(jsonrpc.encode_error(message.id, error), error)
            return

        def change(result: Raw) -> Raw:
            with suppress(ProtocolError):
                self._mount.declare(read_tools(result).names)
            return offered(result, lambda tool: not self._mount.offers(tool, scope))

        await reply.release(change)

    async def _call(
        self, message: CallTool, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        call = Call(self._app, self._mount, self._spec, message, body, scope, send)
        session = session_of(scope)
        if session is None:
            await call.run(receive)
            return
        key = (session, message.id)
        if key in self._sessions:
            await self._reject(ProtocolError(Reason.ID, rpc_id=message.id), send)
            return
        self._sessions[key] = call
        try:
            await call.run(receive)
        finally:
            del self._sessions[key]

    def _cancelled(self, message: Cancelled, scope: Scope) -> None:
        call = self._sessions.get((session_of(scope) or "", message.request_id))
        if call is not None:
            call.stop()
