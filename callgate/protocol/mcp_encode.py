"""The Model Context Protocol: how a gate passes a message on, and how it refuses one.

Pure. What is passed on is written anew: the members that we decided by from what we read,
the others as they came. Ids and progress tokens become ours on the way to the agent and the
caller's on the way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from callgate.protocol import jsonrpc
from callgate.protocol.jsonrpc import encode_id, encode_json
from callgate.protocol.mcp import CANCELLED, PROGRESS, PROGRESS_TOKEN, TIMEOUT_MS, TRACE
from callgate.protocol.members import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from callgate.errors import CallgateError
    from callgate.protocol.mcp import CallTool, Notification, Request
    from callgate.protocol.members import Members
    from callgate.protocol.problem import Id


def encode_call(
    call: CallTool,
    rpc_id: int,
    token: Id | None = None,
    timeout_ms: int | None = None,
    trace: Mapping[str, str] | None = None,
) -> bytes:
    """A call passed on under an id of ours.

    The caller's progress token is replaced by `token`, or left out. `timeout_ms` and `trace`
    replace what the caller sent, if they are given.
    """
    head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":' % rpc_id
    name, arguments = encode_json(call.name), call.arguments
    has_meta = call.meta is not None or timeout_ms is not None or trace is not None
    if not has_meta and call.extra is None and call.beside is None and len(arguments):
        return b"".join((head, name, b',"arguments":', arguments, b"}}\n"))
    parts: list[bytes | Raw] = [head, name]
    if len(arguments):
        parts += (b',"arguments":', arguments)
    if has_meta:
        parts += (b',"_meta":', _meta(call, token, timeout_ms, trace))
    if call.extra is not None:
        parts += (b",", encode_json(call.extra)[1:-1])
    parts += (b"}", jsonrpc.end_of(call.beside))
    return b"".join(parts)


def encode_request(request: Request, rpc_id: Id, token: Id | None = None) -> bytes:
    """Any other request passed on under an id and a progress token of ours."""
    params = request.params
    if params is None:
        return jsonrpc.encode_request(rpc_id, request.method, beside=request.beside)
    if request.token is not None:
        params = {**params, "_meta": Raw(_with_token(request.meta, token))}
    return jsonrpc.encode_request(rpc_id, request.method, encode_json(params), request.beside)


def encode_notification(notification: Notification) -> bytes:
    """A notification passed on."""
    params = notification.params
    raw = NOTHING if params is None else encode_json(params)
    return jsonrpc.encode_notification(notification.method, raw, notification.beside)


def encode_cancelled(rpc_id: Id, params: Members | None = None) -> bytes:
    """Cancel our request `rpc_id`; the other members are passed on from `params`."""
    members = {**(params or {}), "requestId": Raw(encode_id(rpc_id))}
    return jsonrpc.encode_notification(CANCELLED, encode_json(members))


def encode_progress(token: Id, params: Members) -> bytes:
    """News passed on under the token by which the caller knows its request."""
    members = {**params, PROGRESS_TOKEN: Raw(encode_id(token))}
    return jsonrpc.encode_notification(PROGRESS, encode_json(members))


def encode_refusal(rpc_id: Id, error: CallgateError, *, stateless: bool = False) -> bytes:
    """A refusal as a result: text for the model, the structure in `_meta`.

    Results of the era without `initialize` say that they are complete.
    """
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": error.describe()}],
        "isError": True,
        "_meta": {"callgate/error": error.as_dict()},
    }
    if stateless:
        result["resultType"] = "complete"
    return jsonrpc.encode_result(rpc_id, encode_json(result))


def _meta(
    call: CallTool, token: Id | None, timeout_ms: int | None, trace: Mapping[str, str] | None
) -> bytes | Raw:
    """The call's `_meta` with what is ours in it."""
    if timeout_ms is None and trace is None:
        return call.raw_meta if call.token is None else _with_token(call.meta, token)
    members = dict(call.meta or {})
    if timeout_ms is not None:
        members[TIMEOUT_MS] = Raw(b"%d" % timeout_ms)
    if trace is not None:
        for key in TRACE:
            members.pop(key, None)
        members.update((key, Raw(encode_json(text))) for key, text in trace.items())
    return _with_token(members, token)


def _with_token(members: Members | None, token: Id | None) -> bytes:
    if token is None:
        return encode_json(members or {})
    if not members:
        return b'{"progressToken":' + encode_id(token) + b"}"
    return encode_json({**members, PROGRESS_TOKEN: Raw(encode_id(token))})
