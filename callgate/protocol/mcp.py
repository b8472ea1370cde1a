"""The Model Context Protocol: what a gate must read of a frame.

Pure. Both eras: up to 2025-11-25 with `initialize`, and 2026-07-28, where each request says
its version in `_meta`.

`decode` has a shortcut. msgspec reads the frame in one pass into the members that a plain
tool call or result has, arguments and result as raw views. If the frame has no other member,
no key twice, no escape and no blank outside of those views, then the lengths of its parts
add up to its own length; and only then, since everything else makes it longer. So one
comparison proves the frame clean, and whatever does not add up is walked by `jsonrpc.decode`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

import msgspec
from msgspec import Raw

from callgate.protocol import jsonrpc
from callgate.protocol.depth import MAX_PLAIN_BYTES, is_too_deep
from callgate.protocol.jsonrpc import Response
from callgate.protocol.members import (
    MAX_ID,
    MAX_ID_CHARS,
    NOTHING,
    Known,
    Members,
    check_utf8,
    read_id,
    read_text,
)
from callgate.protocol.problem import Id, ProtocolError, Reason

CALL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"

METHODS: Final = Known((CALL, CANCELLED, PROGRESS, "initialize", "tools/list"))
"""What is more than passed on. A method that only resembles one of them is refused: a
careless server could run a tool by it."""

PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105  # a name
TIMEOUT_MS: Final = "callgate/timeout_ms"
VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CORRELATION_ID: Final = "callgate/correlation_id"
TRACE: Final = ("traceparent", "tracestate", "baggage")

PARAMS: Final = Known(
    ("name", "arguments", "_meta", "task", "requestId", PROGRESS_TOKEN, "protocolVersion")
)
META: Final = Known(
    (
        PROGRESS_TOKEN,
        TIMEOUT_MS,
        CORRELATION_ID,
        *TRACE,
        VERSION,
        "io.modelcontextprotocol/clientInfo",
        "io.modelcontextprotocol/clientCapabilities",
    )
)

MAX_META_BYTES: Final = 65_536
"""Its members are held apart, unlike arguments. Clients' descriptions of themselves, icons
included, have a few KiB."""

MAX_TIMEOUT_MS: Final = 2**53

_NULL: Final = Raw(b"null")


class CallTool(msgspec.Struct, gc=False):
    """A `tools/call`. `arguments` is raw and may be `NOTHING`; `extra` is the rest of `params`.

    `meta` has the members of `_meta` but for the progress token.
    """

    id: Id
    name: str
    arguments: Raw = NOTHING
    token: Id | None = None
    timeout_ms: int | None = None
    raw_meta: Raw = NOTHING
    meta: Members | None = None
    extra: Members | None = None
    beside: Members | None = None
    """What stands beside `params`."""

    @property
    def is_task(self) -> bool:
        """Whether its work shall outlive the call."""
        return self.extra is not None and "task" in self.extra

    @property
    def is_stateless(self) -> bool:
        """Whether it is of the era without `initialize`."""
        return self.meta is not None and VERSION in self.meta

    def kept(self) -> tuple[CallTool, int]:
        """Return the same call without the frame that it was read from, and its size."""
        call = msgspec.structs.replace(
            self,
            arguments=self.arguments.copy(),
            raw_meta=self.raw_meta.copy(),
            meta=copied(self.meta),
            extra=copied(self.extra),
            beside=copied(self.beside),
        )
        size = len(self.name) + len(self.arguments) + 2 * len(self.raw_meta)
        others = ((self.extra or {}).values(), (self.beside or {}).values())
        return call, size + sum(sum(map(len, values)) for values in others)

    def trace(self) -> dict[str, str]:
        """The W3C carrier as it came: whoever uses it checks it."""
        if self.meta is None:
            return {}
        raw = ((key, self.meta.get(key)) for key in TRACE)
        texts = ((key, read_text(value)) for key, value in raw if value is not None)
        return {key: text for key, text in texts if text is not None}

    def correlation_id(self) -> str | None:
        """Return the text by which the caller knows the work that this call belongs to."""
        raw = None if self.meta is None else self.meta.get(CORRELATION_ID)
        return None if raw is None else read_text(raw)


def copied(members: Members | None) -> Members | None:
    """Return members that do not keep alive the frame that they were read from."""
    return None if members is None else {key: raw.copy() for key, raw in members.items()}


class Request(msgspec.Struct, gc=False):
    """Any other request, in either direction."""

    id: Id
    method: str
    params: Members | None = None
    token: Id | None = None
    raw_meta: Raw = NOTHING
    meta: Members | None = None
    beside: Members | None = None


class Notification(msgspec.Struct, gc=False):
    """Any notification but the two below."""

    method: str
    params: Members | None = None
    beside: Members | None = None


class Cancelled(msgspec.Struct, gc=False):
    """The sender of request `request_id` wants no answer any more."""

    request_id: Id
    params: Members


class Progress(msgspec.Struct, gc=False):
    """News of the request that carried `token`."""

    token: Id
    params: Members


Message = CallTool | Response | Request | Notification | Cancelled | Progress


class _Params(msgspec.Struct, gc=False):
    name: str = ""
    arguments: Raw = NOTHING
    meta: Raw = msgspec.field(default=NOTHING, name="_meta")


class _Frame(msgspec.Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: int | str | None = None
    method: str = ""
    params: _Params | None = None
    result: Raw = NOTHING


_NO_PARAMS: Final = _Params()
_read = msgspec.json.Decoder(_Frame).decode
_read_int = msgspec.json.Decoder(int).decode

CALL_BYTES: Final = len(
    b'{"jsonrpc":"2.0","id":,"method":"tools/call","params":{"name":"","arguments":}}'
)
_META_BYTES: Final = len(b',"_meta":')
RESULT_BYTES: Final = len(b'{"jsonrpc":"2.0","id":,"result":}')

# As json.dumps writes by default. A sum cannot tell a blank from a character of another
# member; but the frame's beginning and its length together leave no room for one.
_SPACED_CALL: Final = (
    b'{"jsonrpc": "2.0", "id": %b, "method": "tools/call", "params": {"name": "%b", "arguments": '
)
_SPACED_CALL_BLANKS: Final = 10
_RESULT_BLANKS: Final = (0, 5)
"""Too few for a second id or result, and all else in a response is dropped."""

_CR: Final = 13
_LF: Final = 10
"""As numbers: looking for a byte costs a tenth of looking for a string of one."""


def decode(data: bytes) -> Message:  # noqa: C901  # the way of every frame, read in one piece
    """Read one frame, or raise `ProtocolError`."""
    if len(data) > MAX_PLAIN_BYTES and is_too_deep(data):
        return _decode_slowly(data)
    try:
        frame = _read(data)
        if _CR not in data and _LF not in data:
            if not data.isascii():
                check_utf8(data)
            rpc_id, params = frame.id, frame.params
            if rpc_id.__class__ is not int:
                message = _plain_with_text_id(data, frame)
            elif not -MAX_ID <= rpc_id <= MAX_ID:
                message = None
            elif frame.method == CALL and params is not None:
                name, arguments = params.name, params.arguments
                rest = len(data) - len(str(rpc_id))
                if rest == CALL_BYTES + len(name) + len(arguments) and name and len(arguments):
                    return CallTool(rpc_id, name, arguments)  # `_plain_call`, at once
                message = _plain_call(data, frame, rest)
            else:
                result = frame.result
                spare = len(data) - RESULT_BYTES - len(str(rpc_id)) - len(result)
                if spare in _RESULT_BLANKS and len(result):
                    return Response(rpc_id, result)
                message = None
            if message is not None:
                return message
    except (msgspec.DecodeError, UnicodeDecodeError, ProtocolError):
        pass  # the walk says what is wrong, and with which id
    return _decode_slowly(data)


def _plain_call(data: bytes, frame: _Frame, rest: int) -> CallTool | None:
    """A call that is proved clean by its length, which is `rest` without the id; or None."""
    params = frame.params or _NO_PARAMS
    name, arguments, meta = params.name, params.arguments, params.meta
    if not name or not len(arguments):
        return None
    spare = rest - CALL_BYTES - len(name) - len(arguments)
    rpc_id: Id = frame.id  # type: ignore[assignment]  # who comes here has looked
    if len(meta):
        if spare == len(meta) + _META_BYTES:
            return CallTool(rpc_id, name, arguments, *_read_meta(meta))
    elif not spare or (
        spare == _SPACED_CALL_BLANKS
        and data.startswith(_SPACED_CALL % (jsonrpc.encode_id(rpc_id), name.encode()))
    ):
        return CallTool(rpc_id, name, arguments)
    return None


def _plain_with_text_id(data: bytes, frame: _Frame) -> CallTool | Response | None:
    """The same for a frame whose id is a text."""
    rpc_id, result = frame.id, frame.result
    if not isinstance(rpc_id, str) or len(rpc_id) > MAX_ID_CHARS:
        return None
    rest = len(data) - len(rpc_id.encode()) - len(b'""')
    if frame.method == CALL:
        return _plain_call(data, frame, rest)
    if len(result) and rest - RESULT_BYTES - len(result) in _RESULT_BLANKS:
        return Response(rpc_id, result)
    return None


def _decode_slowly(data: bytes) -> Message:
    message = jsonrpc.decode(data)
    if isinstance(message, Response):
        return message
    rpc_id = message.id if isinstance(message, jsonrpc.Request) else None
    try:
        if message.method not in METHODS.keys and METHODS.resembled_by(message.method):
            raise ProtocolError(Reason.METHOD)  # noqa: TRY301  # one place adds the id
        params = PARAMS.read(message.params) if len(message.params) else None
        if rpc_id is None:
            return _notification(message.method, params, message.beside)
        return _request(rpc_id, message.method, params, message.beside)
    except ProtocolError as error:
        raise ProtocolError(error.reason, rpc_id=rpc_id, is_response=False) from None


def _request(
    rpc_id: Id, method: str, params: Members | None, beside: Members | None
) -> CallTool | Request:
    raw_meta = NOTHING if params is None else params.get("_meta", NOTHING)
    if raw_meta == _NULL:
        raw_meta = NOTHING
    token, timeout_ms, raw_meta, meta = _read_meta(raw_meta) if len(raw_meta) else _NO_META
    if method != CALL:
        return Request(rpc_id, method, params, token, raw_meta, meta, beside)
    extra = dict(params or {})
    name = read_text(extra.pop("name", _NULL))
    if not name:
        raise ProtocolError(Reason.TOOL_NAME)
    arguments = extra.pop("arguments", NOTHING)
    extra.pop("_meta", None)
    return CallTool(
        rpc_id, name, arguments, token, timeout_ms, raw_meta, meta, extra or None, beside
    )


def _notification(
    method: str, params: Members | None, beside: Members | None
) -> Notification | Cancelled | Progress:
    if method == CALL:
        # Nobody could be told of its end, but a server may run it.
        raise ProtocolError(Reason.ID)
    if method == CANCELLED:
        return Cancelled(read_id((params or {}).get("requestId", NOTHING)), params or {})
    if method == PROGRESS:
        return Progress(_read_token((params or {}).get(PROGRESS_TOKEN, NOTHING)), params or {})
    return Notification(method, params, beside)


_Meta = tuple[Id | None, int | None, Raw, Members | None]
_NO_META: Final[_Meta] = (None, None, NOTHING, None)


def _read_meta(raw: Raw) -> _Meta:
    """Progress token and timeout of a `_meta`; itself; its other members."""
    only_token = _ONLY_TOKEN.fullmatch(raw)
    if only_token is not None:
        return _read_token(only_token[1]), None, raw, _NO_MEMBERS
    if len(raw) > _SAME_META_BYTES:
        return _read_any_meta(raw)
    copy = bytes(raw)
    return _read_any_meta(raw) if _TOKEN_KEY in copy else _read_same_meta(copy)


def _read_any_meta(raw: Raw) -> _Meta:
    if len(raw) > MAX_META_BYTES:
        raise ProtocolError(Reason.META)
    try:
        meta = META.read(raw)
    except ProtocolError as error:
        reason = Reason.META if error.reason == Reason.NOT_OBJECT else error.reason
        raise ProtocolError(reason) from None
    token = timeout_ms = None
    if meta.get(PROGRESS_TOKEN) == _NULL:
        meta.pop(PROGRESS_TOKEN)  # as good as none, and some clients write it
    if PROGRESS_TOKEN in meta:
        token = _read_token(meta.pop(PROGRESS_TOKEN))
    if TIMEOUT_MS in meta:
        timeout_ms = _read_timeout(meta[TIMEOUT_MS])
    return token, timeout_ms, raw, meta


@lru_cache(64)
def _read_same_meta(copy: bytes) -> _Meta:
    """What a client of the stateless era says of itself is the same in each request.

    Reads a copy, so that no frame is kept. Who uses the members does not change them.
    """
    return _read_any_meta(Raw(copy))


_SAME_META_BYTES: Final = 1024
_TOKEN_KEY: Final = PROGRESS_TOKEN.encode()
_ONLY_TOKEN: Final = re.compile(rb'\{"progressToken": ?([0-9]+|"[^"\\]*+")\}')
_NO_MEMBERS: Final[Members] = {}


def _read_token(raw: Raw | bytes) -> Id:
    try:
        return read_id(raw)
    except ProtocolError:
        raise ProtocolError(Reason.PROGRESS_TOKEN) from None


def _read_timeout(raw: Raw) -> int:
    try:
        timeout_ms = _read_int(raw)
    except msgspec.DecodeError:
        timeout_ms = 0
    if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
        raise ProtocolError(Reason.TIMEOUT)
    return timeout_ms
