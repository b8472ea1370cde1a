"""One `tools/call` over HTTP: the application's work on it, and its client's answer.

The application works in a task of its own and is cancelled by a scope, so that a call is answered
at its deadline while a tool in a thread keeps its slot until it has ended. A disconnect, and the
cancel of a session, cancel the task that serves the request; that cancel is taken back here as
`asyncio.timeout` takes back its own, and one from outside is left alone.

An application that has not been asked for its tools yet is asked before the first call, or the
audit could not name that one. One that redirects to the same path with or without a slash at its
end, before it has read the call, is called there at once: a client that followed it would make
two calls of one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson

from callgate.errors import CallCanceled, CallgateError, CallTimedOut
from callgate.mounts.asgi_reply import AnswerTooLarge, Reply
from callgate.mounts.asgi_request import (
    readable_scope,
    redirected,
    replay,
    requested_ms,
    scope_for,
    session_of,
)
from callgate.protocol import jsonrpc
from callgate.protocol.jsonrpc import encode_json
from callgate.protocol.mcp_encode import encode_cancelled, encode_refusal
from callgate.protocol.results import read_tools
from callgate.router.flight import Ending
from callgate.router.local import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable

    from callgate.model import GateSpec
    from callgate.mounts.asgi_request import App, Event, Receive, Scope, Send
    from callgate.mounts.common import Mount
    from callgate.protocol.mcp import CallTool

CANCEL_TIMEOUT_S: Final = 5.0
"""For an application to take a cancel."""
LIST: Final = "tools/list"
_LIST_ID: Final = "callgate-tools"


class Call:
    """One `tools/call` and its answer."""

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
        self._send = send
        self._reply = self._new_reply()
        self._is_read = False
        """Whether the application has asked for the call, so that it may have run the tool."""
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False
        self._gone = asyncio.Event()

    def _new_reply(self) -> Reply:
        return Reply(self._send, self._message.id, self._spec.max_frame_bytes)

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
            await mount.learn(self._names)
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
        scope = readable_scope(self._scope)
        with suppress(AnswerTooLarge):
            await self._app(scope, self._receive(), self._reply)
            moved = None if self._is_read else redirected(scope, self._reply.start)
            if moved is not None:
                self._reply = self._new_reply()
                await self._app(moved, self._receive(), self._reply)
        if self._reply.oversized:
            raise AnswerTooLarge
        result = self._reply.result
        return None if result is None else orjson.Fragment(bytes(result))

    def _receive(self) -> Receive:
        receive = replay(self._body, self._disconnect)

        async def read() -> Event:
            self._is_read = True
            return await receive()

        return read

    async def _names(self) -> Iterable[str]:
        """Ask the application for its tools, on behalf of whoever calls one."""
        message = self._message
        params = {"_meta": message.meta} if message.is_stateless else {}
        body = jsonrpc.encode_request(_LIST_ID, LIST, encode_json(params))
        reply = Reply(_nowhere, _LIST_ID, self._spec.max_frame_bytes)
        scope = readable_scope(scope_for(self._scope, body, LIST))
        await self._app(scope, replay(body, self._disconnect), reply)
        if reply.result is None:
            raise LookupError(LIST)
        return read_tools(reply.result).names

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
