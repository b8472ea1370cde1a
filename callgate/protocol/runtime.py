"""The runtime protocol v1: one envelope around the payloads of `runtime_table`.

Pure. Either side reads the other's types and writes its own; frames are `framing.Lengths`.
The members of the envelope and of the payload are read as raw text, each once, and then each
by its own type, so that a large output is passed over and never built. Unknown members are
ignored, as the protocol asks, unless they resemble one that is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Raw

from callgate.protocol import runtime_table as table
from callgate.protocol.framing import with_length
from callgate.protocol.jsonrpc import encode_json
from callgate.protocol.members import (
    MAX_ID_CHARS,
    NOTHING,
    SPACE,
    STRING,
    Known,
    Members,
    check_depth,
    check_utf8,
    elements,
    is_object,
    read_text,
)
from callgate.protocol.problem import ProtocolError, Reason
from callgate.protocol.runtime_table import Body, Error, Register, Rejected, Tool
from callgate.protocol.seek import seek_in

if TYPE_CHECKING:
    from collections.abc import Callable

V1: Final = 1
MAX_FRAME_BYTES: Final = 4_194_304
MAX_SCHEMA_BYTES: Final = 65_536
"""Of each of a tool's schemas: they are kept for the life of the agent."""

Side = Literal["core", "agent"]

ENVELOPE: Final = Known(
    (
        "v",
        "type",
        "id",
        "ts",
        "payload",
        "in_reply_to",
        "request_id",
        "correlation_id",
        "causation_id",
        "actor",
        "error",
    )
)
_CHAIN: Final = ("in_reply_to", "request_id", "correlation_id", "causation_id")

Part = TypeVar("Part", bound=msgspec.Struct)


class Message(msgspec.Struct, gc=False):
    """A payload and its envelope."""

    body: Body
    id: str
    ts: str
    in_reply_to: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    actor: Raw = NOTHING
    error: Error | None = None


class _Envelope(msgspec.Struct, omit_defaults=True, gc=False):
    v: int
    type: str
    id: str
    ts: str
    payload: Body
    in_reply_to: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    error: Error | None = None


class _Reader:
    """Reads one class of object: its keys, and each member by its type."""

    __slots__ = ("_decoders", "_keys", "_made", "_required")

    def __init__(self, made: type[msgspec.Struct]) -> None:
        fields = msgspec.structs.fields(made)
        self._made = made
        self._keys = Known(field.encode_name for field in fields)
        self._required = frozenset(field.name for field in fields if field.required)
        self._decoders: dict[str, Callable[[Raw], Any] | None] = {
            field.name: None if field.type is Raw else msgspec.json.Decoder(field.type).decode
            for field in fields
        }

    def members(self, raw: Raw) -> Members:
        return self._keys.read(raw)

    def read(self, members: Members) -> Any:
        """Raises `msgspec.DecodeError` if a member is missing or of another type."""
        found: dict[str, Any] = {}
        for name, decode_member in self._decoders.items():
            raw = members.get(name)
            if raw is not None:
                found[name] = raw if decode_member is None else decode_member(raw)
        if not self._required <= found.keys():
            raise msgspec.ValidationError
        return self._made(**found)


_BODIES: Final[dict[str, _Reader]] = {
    body.type: _Reader(body)
    for body in Body.__subclasses__()
    if body not in (table.Register, table.Refused)
}
_REGISTER: Final = Known(("tools", "replace"))
_TOOL: Final = _Reader(Tool)
_read_error = msgspec.json.Decoder(Error | None).decode
_read_bool = msgspec.json.Decoder(bool).decode


def decode(frame: bytes, sender: Side) -> Message:
    """Read a frame of the other side, or raise `ProtocolError` with its id if it has one."""
    try:
        check_depth(frame)
        check_utf8(frame)
        members = ENVELOPE.read(frame)
    except msgspec.DecodeError:
        raise _unreadable(frame, Reason.JSON) from None
    except ProtocolError as error:
        raise _unreadable(frame, error.reason) from None
    rpc_id = read_text(members.get("id", NOTHING))
    if not rpc_id or len(rpc_id) > MAX_ID_CHARS:
        raise ProtocolError(Reason.ID)
    try:
        return _message(members, rpc_id, sender)
    except msgspec.DecodeError:
        raise ProtocolError(Reason.PAYLOAD, rpc_id=rpc_id) from None
    except ProtocolError as error:
        raise ProtocolError(error.reason, rpc_id=rpc_id) from None


def _unreadable(frame: bytes, reason: Reason) -> ProtocolError:
    if reason == Reason.NOT_OBJECT and frame.lstrip().startswith(b"["):
        reason = Reason.BATCH
    return ProtocolError(reason, rpc_id=seek_in(frame).id)


def _message(members: Members, rpc_id: str, sender: Side) -> Message:
    if bytes(members.get("v", NOTHING)) != b"1":
        raise ProtocolError(Reason.VERSION)
    kind = read_text(members.get("type", NOTHING))
    ts = read_text(members.get("ts", NOTHING))
    payload = members.get("payload", NOTHING)
    if kind is None or ts is None or len(ts) > MAX_ID_CHARS or not len(payload):
        raise ProtocolError(Reason.SHAPE)
    if not is_object(payload):
        raise ProtocolError(Reason.PAYLOAD)
    chain = {key: _chain_id(members[key]) for key in _CHAIN if key in members}
    error = _read_error(members["error"]) if "error" in members else None
    if not kind.startswith(sender):
        raise ProtocolError(Reason.TYPE)
    return Message(
        _body(kind, payload, refused=error is not None),
        rpc_id,
        ts,
        actor=members.get("actor", NOTHING),
        error=error,
        **chain,
    )


def _chain_id(raw: Raw) -> str | None:
    if bytes(raw) == b"null":
        return None
    text = read_text(raw)
    if text is None or len(text) > MAX_ID_CHARS:
        raise ProtocolError(Reason.ID)
    return text


def _body(kind: str, payload: Raw, *, refused: bool) -> Body:
    if kind == Register.type:
        return _register(payload)
    if kind == table.Refused.type and refused:
        return table.Refused()
    reader = _BODIES.get(kind)
    if reader is None:
        raise ProtocolError(Reason.TYPE)
    body: Body = reader.read(reader.members(payload))
    if isinstance(body, table.Call) and not is_object(body.input):
        raise ProtocolError(Reason.ARGUMENTS)
    return body


def _register(payload: Raw) -> Register:
    members = _REGISTER.read(payload)
    if "tools" not in members:
        raise ProtocolError(Reason.PAYLOAD)
    replace = _read_bool(members["replace"]) if "replace" in members else False
    tools = elements(members["tools"], table.MAX_NAMES + 1)
    if len(tools) > table.MAX_NAMES:
        raise ProtocolError(Reason.PAYLOAD)
    return Register(tuple(map(_tool, tools)), replace)


def _tool(raw: Raw) -> Tool | str:
    """A tool, or the id of one that cannot be read."""
    try:
        members = _TOOL.members(raw)
    except ProtocolError:
        return ""
    try:
        tool: Tool = _TOOL.read(members)
    except msgspec.DecodeError:
        return (read_text(members.get("tool_id", NOTHING)) or "")[:MAX_ID_CHARS]
    return tool


def check_tools(register: Register, agent_id: str) -> tuple[list[Tool], list[Rejected]]:
    """Which tools of a registration can be taken, and why the others cannot."""
    taken: dict[str, Tool] = {}
    rejected: list[Rejected] = []
    for tool in register.tools:
        if isinstance(tool, str):
            rejected.append(_rejected(tool, "the description cannot be read"))
        elif tool.tool_id != f"{agent_id}/{tool.name}":
            rejected.append(_rejected(tool.tool_id, "a tool's id is its agent's id, /, its name"))
        elif tool.tool_id in taken:
            rejected.append(_rejected(tool.tool_id, "the tool is named twice"))
        elif max(len(tool.input_schema), len(tool.output_schema)) > MAX_SCHEMA_BYTES:
            rejected.append(_rejected(tool.tool_id, "a schema is too large"))
        elif not is_object(tool.input_schema):
            rejected.append(_rejected(tool.tool_id, "the input schema is no object"))
        else:
            taken[tool.tool_id] = tool
    return list(taken.values()), rejected


def kept(tool: Tool) -> Tool:
    """Return what is needed of a tool, without the frame that it was read from."""
    input_schema, output_schema = tool.input_schema.copy(), tool.output_schema.copy()
    return Tool(tool.tool_id, tool.name, tool.description, input_schema, output_schema)


def _rejected(tool_id: str, why: str) -> Rejected:
    return Rejected(tool_id, Error("tool.invalid", why, retryable=False))


def encode(
    body: Body,
    rpc_id: str,
    ts: str,
    *,
    in_reply_to: str | None = None,
    request_id: str | None = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    error: Error | None = None,
) -> bytes:
    """A whole frame, its length before it."""
    envelope = _Envelope(
        V1,
        body.type,
        rpc_id,
        ts,
        body,
        in_reply_to,
        request_id,
        correlation_id,
        causation_id,
        error,
    )
    return with_length(encode_json(envelope))


_CALL_ID: Final = re.compile(rb'"call_id"' + SPACE + rb":" + SPACE + rb"(" + STRING + rb")")


def seek_call(head: bytes, tail: bytes) -> str | None:
    """The call that an unreadable frame speaks of, if its ends name one and only one."""
    found = {read_text(match) for end in (head, tail) for match in _CALL_ID.findall(end)}
    return found.pop() if len(found) == 1 else None
