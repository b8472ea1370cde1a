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

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import orjson

from callgate.errors import CallCanceled, CallgateError, CallTimedOut
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
    requested_ms,
    scope_for,
    session_of,
)
from callgate.mounts.common import Mount, token_subject
from callgate.protocol import jsonrpc, mcp
from callgate.protocol.mcp import CallTool, Cancelled, Request
from callgate.protocol.mcp_encode import encode_cancelled, encode_refusal
from callgate.protocol.problem import ProtocolError, Reason
from callgate.protocol.results import read_tools
from callgate.protocol.seek import seek
from callgate.router.flight import Ending
from callgate.router.local import Reading

if TYPE_CHECKING:
    from msgspec import Raw

    from callgate.model import GateSpec
    from callgate.mounts.asgi_request import App, Event, Receive, Scope, Send
    from callgate.mounts.common import Caller
    from callgate.policy import Policy
    from callgate.protocol.problem import Id
    from callgate.router import Router

BODY_TIMEOUT_S: Final = 30.0
"""For a whole body. A client that has the message sends it at once; one that trickles waits to
wear the server out."""
CANCEL_TIMEOUT_S: Final = 5.0
"""For an application to take a cancel."""
_WITHOUT_BODY: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS"})
_LIST: Final = "tools/list"


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
        self._sessions: dict[tuple[str, Id], _Call] = {}
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
        elif isinstance(message, Request) and message.method == _LIST:
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
        call = _Call(self._app, self._mount, self._spec, message, body, scope, send)
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


class _Call:
    """One `tools/call` and its answer.

    The application works in a task of its own and is cancelled by a scope, so that a call is
    answered at its deadline while a tool in a thread keeps its slot until it has ended. A
    disconnect, and the cancel of a session, cancel the task that serves the request; that cancel
    is taken back here as `asyncio.timeout` takes back its own, and one from outside is left alone.
    """

    def __init__(
        self,
        app: App,
        mount: Mount,
        spec: GateSpec,
        message: CallTool,
        body: bytes,
        scope: Scope,
        send: Send,
    ) -> None:
        self._app = app
        self._mount = mount
        self._spec = spec
        self._message = message
        self._body = body
        self._scope = scope
        self._reply = Reply(send, message.id, spec.max_frame_bytes)
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False
        self._gone = asyncio.Event()

    def stop(self) -> None:
        """Cancel the call and answer its client."""
        if self._task is not None and not self._stopped:
            self._stopped = True
            self._task.cancel()

    async def run(self, receive: Receive) -> None:
        """Serve the request to its end."""
        self._task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call needs a task")
        base = task.cancelling()
        watcher = asyncio.create_task(self._watch(receive))
        try:
            refused = await self._guarded()
        except asyncio.CancelledError:
            if not self._stopped or task.uncancel() > base:
                raise
            refused = CallCanceled(agent=self._mount.agent)
        except Exception:
            await self._reply.release()  # an application may answer and raise
            raise
        finally:
            self._task = None
            watcher.cancel()
        if refused is None:
            await self._reply.release()
        else:
            await self._refuse(refused)

    async def _watch(self, receive: Receive) -> None:
        """Cancel the call, queued or running, when its client disconnects."""
        with suppress(Exception):  # a server that cannot receive has lost its client, too
            while (await receive())["type"] != "http.disconnect":
                pass
        self._gone.set()
        self.stop()

    async def _guarded(self) -> CallgateError | None:
        """Run the call; return its refusal, or None if the application has answered."""
        mount, message, scope = self._mount, self._message, self._scope
        try:
            if message.is_task and self._spec.tasks == "refuse":
                return mount.deny(message.name, scope)
            arguments: Any = (
                orjson.Fragment(bytes(message.arguments)) if len(message.arguments) else {}
            )
            timeout_ms: Any = requested_ms(scope, message)
            trace = message.trace() or None
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
            return mount.internal_error(error)
        try:
            outcome = await mount.run(
                message.name,
                arguments,
                scope,
                self._serve,
                _itself,
                timeout_ms=timeout_ms,
                trace=trace,
                thread=True,
                reading=Reading(self._ending),
            )
        except AnswerTooLarge:
            return self._reply.too_large(mount.agent)
        return outcome if isinstance(outcome, CallgateError) else None

    async def _serve(self) -> Any:
        """Run the application; return its result as something that can be measured."""
        with suppress(AnswerTooLarge):
            scope = readable_scope(self._scope)
            await self._app(scope, replay(self._body, self._disconnect), self._reply)
        if self._reply.oversized:
            raise AnswerTooLarge
        result = self._reply.result
        return None if result is None else orjson.Fragment(bytes(result))

    def _ending(self, _: Any) -> Ending:
        return Ending.FAILED if self._reply.failed else Ending.COMPLETED

    async def _disconnect(self) -> Event:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _refuse(self, error: CallgateError) -> None:
        """Answer the client, and let a session know that the call is over."""
        telling = None
        if isinstance(error, CallTimedOut | CallCanceled) and session_of(self._scope) is not None:
            telling = asyncio.create_task(self._tell_session())
        if not self._gone.is_set():
            await self._reply.refuse(self._refusal(error), error)
        if telling is not None:
            await telling

    def _refusal(self, error: CallgateError) -> bytes:
        message = self._message
        if self._spec.denials == "error":
            return jsonrpc.encode_error(message.id, error)
        return encode_refusal(message.id, error, stateless=message.is_stateless)

    async def _tell_session(self) -> None:
        """Send the protocol's own cancel, as if the client had sent it."""
        body = encode_cancelled(self._message.id)
        with suppress(Exception):
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                receive = replay(body, self._forever)
                await self._app(scope_for(self._scope, body), receive, _nowhere)

    async def _forever(self) -> Event:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}


def _itself(error: CallgateError) -> CallgateError:
    return error


async def _nowhere(_: Event) -> None:
    """Drop what an application answers to a cancel."""
