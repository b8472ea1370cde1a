"""The gate's own voice: members that only a gate may write, taken out of what an agent sends.

Pure. A client knows a gate's refusal by `_meta["callgate/error"]`, or by the code in `error.data`;
an agent that could write either would speak as the gate. Nearly no frame has the letters of our
namespace in it, plain or escaped, and only such a frame is looked into: its `_meta` objects at
every place where a reader of MCP looks for one, as raw text. What is not ours stays as it was, but
for keys that come twice: the last stays, as in most readers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from callgate.errors import CallgateError
from callgate.protocol import mcp
from callgate.protocol.jsonrpc import Response, encode_json
from callgate.protocol.members import NOTHING, Known, Members, is_object, read_text
from callgate.protocol.problem import ProtocolError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from callgate.protocol.mcp import Message

NAMESPACE: Final = "callgate/"
MAX_LEVELS: Final = 12
"""Of what MCP writes itself; the deepest `_meta`, of a resource in a message in a request in a
result, has half as many above it."""

_META: Final = "_meta"
_DATA: Final = frozenset({"structuredContent", "arguments", "inputSchema", "outputSchema"})
"""What a tool says to whoever called it: nobody takes a `_meta` in there for the protocol's."""

_PLAIN: Final = b"callgate"
_BACKSLASH: Final = ord("\\")
_SLASH: Final = ord("/")
_ESCAPE: Final = b"\\u00"
_ESCAPED: Final = re.compile(rb"\\u00(?:6[13578cC]|74|2[fF])")
"""Any letter of the namespace, as JSON may spell it, too."""

_members = msgspec.json.Decoder(Members).decode
_elements = msgspec.json.Decoder(list[Raw]).decode


def may_be_ours(frame: bytes) -> bool:
    """Return True if a frame has to be looked into: a look that reads little.

    The namespace ends with a slash, as itself or behind a backslash; to look for one byte costs
    next to nothing. A search from the end is ten times as fast as one from the beginning.
    """
    escaped = _BACKSLASH in frame
    if not escaped and _SLASH not in frame:
        return False
    if frame.rfind(_PLAIN) >= 0:
        return True
    return escaped and frame.rfind(_ESCAPE) >= 0 and _ESCAPED.search(frame) is not None


def as_an_agent(frame: bytes, message: Message) -> tuple[bytes, Message, int]:
    """Return what an agent said without what only a gate may say, and how much that was."""
    taken = 0
    try:
        if may_be_ours(frame):
            frame, taken = without_ours(frame)
            message = mcp.decode(frame)
        if isinstance(message, Response) and len(message.error):
            error = without_our_data(message.error)
            if error is not None:
                message.error = error
                taken += 1
    except ProtocolError as problem:
        if not isinstance(message, Response | mcp.Request | mcp.CallTool):
            raise
        answers = isinstance(message, Response)
        raise ProtocolError(problem.reason, rpc_id=message.id, is_response=answers) from None
    return frame, message, taken


def without_ours(frame: bytes) -> tuple[bytes, int]:
    """Return a readable frame without members of our namespace, and how many it had."""
    taken: list[str] = []
    try:
        return bytes(_clean(Raw(frame), MAX_LEVELS, taken)), len(taken)
    except msgspec.DecodeError:
        raise ProtocolError(Reason.META) from None


def _clean(raw: Raw, levels: int, taken: list[str]) -> Raw:
    """Return a value without what is ours in it; add to `taken` what that was."""
    text = bytes(raw)
    if not levels or not may_be_ours(text):
        return raw
    if text.startswith(b"["):
        return Raw(encode_json([_clean(one, levels - 1, taken) for one in _elements(text)]))
    if not text.lstrip().startswith(b"{"):
        return raw
    members = _members(text)
    for key, value in members.items():
        if key == _META and is_object(value):
            members[key] = _clean_meta(value, taken)
        elif key not in _DATA:
            members[key] = _clean(value, levels - 1, taken)
    return Raw(encode_json(members))


def _clean_meta(raw: Raw, taken: list[str]) -> Raw:
    members = _members(raw)
    ours = [key for key in members if key.startswith(NAMESPACE)]
    for key in ours:
        del members[key]
    taken += ours
    return Raw(encode_json(members))


_ERROR: Final = Known(("code", "message", "data"))
_CODE: Final = Known(("code",))


def without_our_data(error: Raw) -> Raw | None:
    """Return an agent's error without `data` if that has a code of ours; None if it has none.

    Raises `ProtocolError` if readers may find another `data` in it than we do.
    """
    members = _ERROR.read(error)
    data = members.get("data", NOTHING)
    if not len(data) or not is_object(data) or not _says_a_code(data):
        return None
    del members["data"]
    return Raw(encode_json(members))


def _says_a_code(data: Raw) -> bool:
    try:
        said = _CODE.read(data).get("code", NOTHING)
    except ProtocolError as problem:
        if problem.reason is not Reason.LOOKALIKE_KEY:
            return True  # readers may find different codes in it
        said = _members(data).get("code", NOTHING)
    return len(said) > 0 and read_text(said) in CODES


def _all_errors(kind: type[CallgateError]) -> Iterator[type[CallgateError]]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _all_errors(derived)


def _own_code(kind: type[Any]) -> str:
    return str(vars(kind).get("code", ""))


CODES: Final = frozenset(filter(None, map(_own_code, _all_errors(CallgateError))))
"""Of every error of ours."""
