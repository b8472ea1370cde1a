"""The way out of an MCP message over HTTP: the application's answer, held until it may go.

A plain response is held whole. Of an event stream everything passes as it comes but the event
that answers the request: that one is held, so that the record of a call is written before its
caller hears of it. What an application says after the call was ended for it is dropped.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from callgate.errors import FrameTooLarge, LimitInfo
from callgate.protocol import jsonrpc
from callgate.protocol.jsonrpc import Response
from callgate.protocol.problem import ProtocolError
from callgate.protocol.results import NO_TOOLS, is_failure, without_tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from callgate.errors import CallgateError
    from callgate.mounts.asgi_request import Event, Send
    from callgate.protocol.problem import Id

_TYPE: Final = b"content-type"
_LENGTH: Final = b"content-length"
_EVENT_STREAM: Final = b"text/event-stream"
_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EVENT_END_BYTES: Final = 4
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_HTTP_ERRORS: Final = 400


class AnswerTooLarge(OSError):
    """One message of the application's is over `max_frame_bytes`.

    To the application it is a connection that broke; it may swallow it, so `Reply` remembers.
    """


class Reply:
    """What an application sends in answer to one request; itself the `send` that it is given."""

    def __init__(self, send: Send, own_id: Id, limit: int | None) -> None:
        self._send = send
        self._id = own_id
        self._limit = limit
        self.start: Event | None = None
        """The status and the headers that the application has begun with."""
        self._streams = False
        self._over = False
        """The request has been answered: whatever comes is too late."""
        self._buffer = bytearray()
        """A plain body, or an event that is not complete."""
        self._searched = 0
        """Where in it no event ends."""
        self._answer = b""
        """The event that answers, if it was seen."""
        self._unreadable = False
        self.oversized = False
        self.result: Raw | None = None
        """The result that the application answered with."""
        self.failed = False
        """Whether it answered with an error, of whichever kind."""

    async def __call__(self, event: Event) -> None:
        if self.oversized:
            raise AnswerTooLarge
        if self._over:
            return
        if event["type"] == "http.response.start":
            self.start = event
            self.failed = event["status"] >= _HTTP_ERRORS
            self._streams = _header(event, _TYPE).startswith(_EVENT_STREAM)
            if self._streams:
                await self._send(event)
        elif event["type"] == "http.response.body":
            self._buffer += event.get("body", b"")
            if self._streams:
                await self._pass_events()
            self._check(len(self._buffer))
            if not self._streams and not event.get("more_body", False):
                self._read(bytes(self._buffer))

    async def release(self, change: Callable[[Raw], Raw] | None = None) -> None:
        """Send the answer that was held; `change` makes its result another one."""
        self._over = True
        if self.start is None:
            return  # the server says what it says of an application that does not answer
        answer = self._answer if self._streams else bytes(self._buffer)
        rest = bytes(self._buffer) if self._streams else b""
        if change is not None and (self.result is not None or self._unreadable):
            result = NO_TOOLS if self.result is None else change(self.result)
            message = jsonrpc.encode_result(self._id, result)
            answer = _with_data(answer, message) if self._streams else message
            _set_length(self.start, len(answer))
        if not self._streams:
            await self._send(self.start)
        await self._end(answer + rest)

    async def refuse(self, body: bytes, error: CallgateError) -> None:
        """Answer in the application's place, in the form that it has begun."""
        self._over = True
        if self._streams:
            await self._end(b"event: message\r\ndata: " + body.strip() + b"\r\n\r\n")
        else:
            await answer(self._send, 200, body, error)

    def too_large(self, agent: str) -> FrameTooLarge:
        """Make the error for an answer over `max_frame_bytes`."""
        limit = LimitInfo("frame_bytes", f"agent:{agent}", self._limit or 0)
        return FrameTooLarge(agent=agent, limit=limit)

    async def _pass_events(self) -> None:
        """Pass on the complete events but the one that answers; nothing may overtake that."""
        while not self._answer:
            end = _EVENT_END.search(self._buffer, self._searched)
            if end is None:
                self._searched = max(0, len(self._buffer) - _EVENT_END_BYTES)
                return
            event = bytes(self._buffer[: end.end()])
            del self._buffer[: end.end()]
            self._searched = 0
            self._check(len(event))
            if self._read(_data(event)):
                self._answer = event
            else:
                await self._send({"type": "http.response.body", "body": event, "more_body": True})

    def _read(self, data: bytes) -> bool:
        """Return True if this message is the answer; keep its result."""
        if not data:
            return False
        try:
            message = jsonrpc.decode(data)
        except ProtocolError as error:
            # Somebody who is less strict than we are may read it as an answer.
            self._unreadable = error.is_response is not False
            return self._unreadable
        if not isinstance(message, Response) or message.id != self._id:
            return False
        if len(message.result):
            self.result = message.result
            self.failed = self.failed or is_failure(message.result)
        else:
            self.failed = True
        return True

    def _check(self, size: int) -> None:
        if self._limit is not None and size > self._limit:
            self.oversized = True
            raise AnswerTooLarge

    async def _end(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def offered(result: Raw, is_hidden: Callable[[str], bool]) -> Raw:
    """Return a list of tools without the hidden ones; an empty list if it cannot be read."""
    try:
        return without_tools(result, is_hidden)
    except ProtocolError:
        return NO_TOOLS


async def answer(send: Send, status: int, body: bytes, error: CallgateError) -> None:
    """Send a whole response of ours."""
    headers = [(_TYPE, b"application/json"), (_LENGTH, b"%d" % len(body))]
    if error.retry_after_ms is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_ms / 1000)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _header(start: Event, name: bytes) -> bytes:
    found = (value for key, value in start.get("headers", ()) if key.lower() == name)
    return bytes(next(found, b"")).lower()


def _set_length(start: Event, length: int) -> None:
    kept = [(key, value) for key, value in start.get("headers", ()) if key.lower() != _LENGTH]
    start["headers"] = [*kept, (_LENGTH, b"%d" % length)]


def _lines(event: bytes) -> list[bytes]:
    return [line for line in _LINE_END.split(event) if line]


def _data(event: bytes) -> bytes:
    """Return what the `data` lines of an event say."""
    parts = [line[5:].removeprefix(b" ") for line in _lines(event) if line.startswith(b"data:")]
    return b"\n".join(parts)


def _with_data(event: bytes, message: bytes) -> bytes:
    """Return a copy of an event with other data."""
    kept = [line for line in _lines(event) if not line.startswith(b"data:")]
    return b"\r\n".join((*kept, b"data: " + message.strip())) + b"\r\n\r\n"
