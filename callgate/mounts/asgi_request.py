"""The way in of an MCP message over HTTP: its headers, its body, and the body once more.

A body is read whole, within a size and a time, because what it asks for decides whether it is
passed on. The application then gets it as one message, and after that whatever the server says,
which is a disconnect.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from callgate.errors import FrameTooLarge, LimitInfo, ProtocolInvalid
from callgate.protocol.mcp import CallTool
from callgate.protocol.problem import ProtocolError, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from callgate.protocol.mcp import Message

    Scope = MutableMapping[str, Any]
    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TIMEOUT: Final = b"callgate-timeout-ms"
_SESSION: Final = b"mcp-session-id"
_LENGTH: Final = b"content-length"
_ENCODINGS: Final = b"accept-encoding"
_METHOD: Final = b"mcp-method"
_NAME: Final = b"mcp-name"

_REDIRECTS: Final = frozenset({307, 308})
"""Those that keep the method and the body."""
_WRAPPED: Final = re.compile(r"=\?base64\?(.*)\?=")
"""How a header carries a name that is no plain text (revision 2026-07-28)."""


class ClientGone(Exception):
    """The client went away before it had sent its message."""


class BodyTooSlow(ProtocolInvalid):
    """The message did not arrive in time."""

    def describe(self) -> str:
        return "the message did not arrive in time"


class BodyTooLarge(FrameTooLarge):
    """The message is over `max_frame_bytes`; `head` is where its id may be."""

    def __init__(self, agent: str, limit: int, head: bytes = b"") -> None:
        super().__init__(agent=agent, limit=LimitInfo("frame_bytes", f"agent:{agent}", limit))
        self.head = head


def header(scope: Scope, name: bytes) -> str | None:
    """Return a header. Raise if it stands there twice: two readers could take two."""
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise ProtocolError(Reason.DUPLICATE_KEY)
    return found[0].decode("latin-1") if found else None


def check_headers(scope: Scope, message: Message) -> None:
    """Raise if a header contradicts the body: applications may route by either."""
    header(scope, _SESSION)
    header(scope, _TIMEOUT)
    own_id = getattr(message, "id", None)
    method = "tools/call" if isinstance(message, CallTool) else getattr(message, "method", None)
    stated = header(scope, _METHOD)
    if stated is not None and method is not None and stated != method:
        raise ProtocolError(Reason.METHOD, rpc_id=own_id)
    stated = header(scope, _NAME)
    if isinstance(message, CallTool) and stated is not None and _unwrapped(stated) != message.name:
        raise ProtocolError(Reason.TOOL_NAME, rpc_id=own_id)


def session_of(scope: Scope) -> str | None:
    """Return the session of the older era that a request belongs to."""
    return header(scope, _SESSION)


def requested_ms(scope: Scope, message: CallTool) -> int | str | None:
    """Return the shorter of the timeouts that header and message ask for, or an invalid text."""
    text = header(scope, _TIMEOUT)
    if text is None:
        return message.timeout_ms
    if not (text.isascii() and text.isdecimal() and len(text) < 16):  # noqa: PLR2004  # 10**15 ms
        return text
    return int(text) if message.timeout_ms is None else min(int(text), message.timeout_ms)


def readable_scope(scope: Scope) -> Scope:
    """Return a copy of the scope that asks for an answer that callgate can read."""
    headers = [(key, value) for key, value in scope["headers"] if key != _ENCODINGS]
    return {**scope, "headers": headers, "extensions": {}}


def scope_for(scope: Scope, body: bytes, method: str | None = None) -> Scope:
    """Return the scope of a message of ours to the session of another request."""
    theirs = (_LENGTH, _METHOD, _NAME, _ENCODINGS)
    headers = [(key, value) for key, value in scope["headers"] if key not in theirs]
    headers.append((_LENGTH, b"%d" % len(body)))
    if method is not None and header(scope, _METHOD) is not None:
        headers.append((_METHOD, method.encode()))
    return {**scope, "headers": headers, "extensions": {}}


def redirected(scope: Scope, start: Event | None) -> Scope | None:
    """Return the scope that a response redirects to, if that is this one but for a last slash."""
    if start is None or start["status"] not in _REDIRECTS:
        return None
    locations = [value for key, value in start.get("headers", ()) if key.lower() == b"location"]
    if len(locations) != 1 or scope["path"] == "/":
        return None
    target = urlsplit(bytes(locations[0]).decode("latin-1"))
    path: str = scope["path"]
    other = path[:-1] if path.endswith("/") else f"{path}/"
    same_host = not target.netloc or target.netloc == header(scope, b"host")
    same_query = target.query == scope.get("query_string", b"").decode("latin-1")
    within = {other, scope.get("root_path", "") + other}
    if not (same_host and same_query and unquote(target.path) in within):
        return None
    moved = {**scope, "path": other}
    raw = scope.get("raw_path")
    if raw:
        moved["raw_path"] = raw[:-1] if raw.endswith(b"/") else raw + b"/"
    return moved


async def read_body(
    scope: Scope, receive: Receive, agent: str, limit: int | None, timeout_s: float
) -> bytes:
    """Return the whole body; raise `BodyTooLarge`, `BodyTooSlow` or `ClientGone`."""
    stated = header(scope, _LENGTH)
    if limit is not None and stated is not None and stated.isdecimal() and int(stated) > limit:
        raise BodyTooLarge(agent, limit)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise ClientGone
                body += event.get("body", b"")
                if limit is not None and len(body) > limit:
                    raise BodyTooLarge(agent, limit, bytes(body[:1024]))
                if not event.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise BodyTooSlow from None


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once, then what the server says."""
    return again({"type": "http.request", "body": body, "more_body": False}, receive)


def again(event: Event, receive: Receive) -> Receive:
    """Return a `receive` that gives an event once more, then what the server says."""
    given = False

    async def receive_again() -> Event:
        nonlocal given
        if given:
            return await receive()
        given = True
        return event

    return receive_again


def _unwrapped(text: str) -> str | None:
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped is None:
        return text
    try:
        return base64.b64decode(wrapped[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
