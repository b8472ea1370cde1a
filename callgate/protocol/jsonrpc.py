"""JSON-RPC 2.0, one frame at a time: which of the three kinds it is, and whose.

Pure. `decode` is the whole truth about an envelope and takes its time; `mcp.decode` has a
shortcut for the frames that are nearly all of the traffic, and the two must agree.
Every encoder gives one line with its newline.

Values that are not ours stay `Raw`: views into the frame, which they keep alive. Whoever
keeps a message while a call is in flight keeps its arguments too; keep the id instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from callgate.protocol.members import (
    NOTHING,
    Known,
    Members,
    check_json,
    elements,
    is_object,
    one_line,
    read_id,
    read_text,
)
from callgate.protocol.problem import Id, ProtocolError, Reason
from callgate.protocol.seek import seek_in

if TYPE_CHECKING:
    from callgate.errors import CallgateError

ENVELOPE: Final = Known(("jsonrpc", "id", "method", "params", "result", "error"))

MAX_BATCH: Final = 1024
"""Messages in one batch. Clients that had batches sent a handful."""

_VERSION: Final = b'"2.0"'
_NULL: Final = Raw(b"null")

encode_json: Final = msgspec.json.Encoder().encode


class Request(msgspec.Struct, gc=False):
    """Wants an answer. `params` is the raw object, or `NOTHING`; `beside` has what is not ours."""

    id: Id
    method: str
    params: Raw = NOTHING
    beside: Members | None = None


class Notification(msgspec.Struct, gc=False):
    """Wants none."""

    method: str
    params: Raw = NOTHING
    beside: Members | None = None


class Response(msgspec.Struct, gc=False):
    """An answer to one of our requests: a result or an error, the other is `NOTHING`."""

    id: Id
    result: Raw = NOTHING
    error: Raw = NOTHING
    beside: Members | None = None


def decode(data: bytes) -> Request | Notification | Response:
    """Read one frame, or raise `ProtocolError`."""
    try:
        check_json(data)
        data = one_line(data)
        if data.lstrip().startswith(b"["):
            raise ProtocolError(Reason.BATCH)  # noqa: TRY301  # one place adds the id
        members = ENVELOPE.read(data)
    except ProtocolError as error:
        sought = seek_in(data)
        raise ProtocolError(
            error.reason, rpc_id=sought.id, is_response=sought.is_response
        ) from None
    rpc_id: Id | None = None
    try:
        if "id" in members:
            rpc_id = read_id(members["id"])
            if "method" not in members and isinstance(rpc_id, bytes):
                rpc_id = None
                raise ProtocolError(Reason.ID)  # noqa: TRY301  # no request of ours has such an id
        return _classify(members, rpc_id)
    except ProtocolError as error:
        answers = "method" not in members and not members.keys().isdisjoint(("result", "error"))
        raise ProtocolError(error.reason, rpc_id=rpc_id, is_response=answers) from None


def parts_of(frame: bytes) -> list[bytes]:
    """Return the messages of a batch; any other frame as it is, for `decode` to judge."""
    if not frame.lstrip().startswith(b"["):
        return [frame]
    try:
        check_json(frame)
        parts = elements(Raw(frame.strip()), MAX_BATCH + 1)
    except ProtocolError:
        return [frame]
    return list(map(bytes, parts)) if 0 < len(parts) <= MAX_BATCH else [frame]


def _classify(members: Members, rpc_id: Id | None) -> Request | Notification | Response:
    if read_text(members.get("jsonrpc", _NULL)) != "2.0":
        raise ProtocolError(Reason.VERSION)
    beside = {key: raw for key, raw in members.items() if key not in ENVELOPE.keys} or None
    result, error = members.get("result", NOTHING), members.get("error", NOTHING)
    if "method" in members:
        method = read_text(members["method"])
        if not method:
            raise ProtocolError(Reason.METHOD)
        if len(result) or len(error):
            raise ProtocolError(Reason.SHAPE)
        params = members.get("params", _NULL)
        if params == _NULL:
            params = NOTHING
        elif not is_object(params):
            raise ProtocolError(Reason.PARAMS)
        if rpc_id is None:
            return Notification(method, params, beside)
        return Request(rpc_id, method, params, beside)
    if rpc_id is None or bool(len(result)) == bool(len(error)):
        raise ProtocolError(Reason.SHAPE)
    if len(error) and not is_object(error):
        raise ProtocolError(Reason.SHAPE)
    return Response(rpc_id, result, error, beside)


def encode_request(
    rpc_id: Id, method: str, params: Raw | bytes = NOTHING, beside: Members | None = None
) -> bytes:
    """A request of ours, or one that is passed on under an id of ours."""
    head = (b'{"jsonrpc":"2.0","id":', encode_id(rpc_id), b',"method":', encode_json(method))
    return b"".join((*head, *_params(params), end_of(beside)))


def encode_notification(
    method: str, params: Raw | bytes = NOTHING, beside: Members | None = None
) -> bytes:
    """A notification, ours or passed on."""
    head = (b'{"jsonrpc":"2.0","method":', encode_json(method))
    return b"".join((*head, *_params(params), end_of(beside)))


def encode_response(rpc_id: Id, response: Response) -> bytes:
    """An answer passed on under the id by which the caller knows the request."""
    result = response.result
    if len(result) and response.beside is None:
        return encode_result(rpc_id, result)
    said = (b',"result":', result) if len(result) else (b',"error":', response.error)
    return b"".join((b'{"jsonrpc":"2.0","id":', encode_id(rpc_id), *said, end_of(response.beside)))


def encode_result(rpc_id: Id, result: Raw | bytes) -> bytes:
    """An answer with the given result."""
    if rpc_id.__class__ is int:
        return b"".join((b'{"jsonrpc":"2.0","id":%d,"result":' % rpc_id, result, b"}\n"))
    return b"".join((b'{"jsonrpc":"2.0","id":', encode_id(rpc_id), b',"result":', result, b"}\n"))


def encode_error(rpc_id: Id | None, error: CallgateError) -> bytes:
    """An error answer with its structure; without an id it says null, as JSON-RPC asks."""
    return (
        encode_json(
            {
                "jsonrpc": "2.0",
                "id": None if rpc_id is None else Raw(encode_id(rpc_id)),
                "error": {
                    "code": error.jsonrpc,
                    "message": error.describe(),
                    "data": error.as_dict(),
                },
            }
        )
        + b"\n"
    )


def encode_id(rpc_id: Id) -> bytes:
    """An id as it stands in a frame."""
    if rpc_id.__class__ is int:
        return b"%d" % rpc_id
    return rpc_id if isinstance(rpc_id, bytes) else encode_json(rpc_id)


def _params(params: Raw | bytes) -> tuple[Raw | bytes, ...]:
    return (b',"params":', params) if len(params) else ()


def end_of(beside: Members | None) -> bytes:
    """Return the end of a frame, with members that are passed on unread."""
    return b"}\n" if beside is None else b",%b}\n" % encode_json(beside)[1:-1]
