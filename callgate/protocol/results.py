"""What a gate must know of MCP results: tool lists, versions, whether a tool failed.

Pure. These are read after the answer is settled, so that a result nobody asks about is
passed on unread. Each raises `ProtocolError` if the agent's result cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Raw

from callgate.protocol.jsonrpc import encode_json
from callgate.protocol.members import (
    NOTHING,
    Known,
    elements,
    is_object,
    read_text,
    walk,
    without_halves,
)
from callgate.protocol.problem import ProtocolError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

MAX_TOOLS: Final = 4096
"""Of one list. What an agent has beyond that is not offered."""

_LIST: Final = Known(("tools", "nextCursor"))
_INITIALIZE: Final = Known(("protocolVersion", "capabilities", "serverInfo"))
_CAPABILITIES: Final = Known(("tasks", "tools"))
_EMPTY_LIST: Final = Raw(b"[]")
NO_TOOLS: Final = Raw(b'{"tools":[]}')
"""What a client is shown of a list that cannot be read."""


class _Tool(msgspec.Struct, gc=False):
    name: str


class _CallResult(msgspec.Struct, gc=False):
    failed: bool = msgspec.field(default=False, name="isError")


class _Tools(msgspec.Struct, gc=False):
    tells_changes: bool = msgspec.field(default=False, name="listChanged")


class _Capabilities(msgspec.Struct, gc=False):
    tools: _Tools = msgspec.field(default_factory=_Tools)


class _Server(msgspec.Struct, gc=False):
    capabilities: _Capabilities = msgspec.field(default_factory=_Capabilities)


class ToolList(msgspec.Struct, frozen=True):
    """A page of an agent's tools."""

    names: tuple[str, ...]
    next_cursor: str | None


_read_tool = msgspec.json.Decoder(_Tool).decode
_read_server = msgspec.json.Decoder(_Server).decode
_read_call_result = msgspec.json.Decoder(_CallResult).decode


def read_tools(result: Raw) -> ToolList:
    """The names on a page of `tools/list`, and where the next page begins."""
    members = _LIST.read(result)
    names = tuple(name for name, _ in _tools(members.get("tools", _EMPTY_LIST)))
    return ToolList(names, read_text(members.get("nextCursor", NOTHING)))


def without_tools(result: Raw, is_hidden: Callable[[str], bool]) -> Raw:
    """A `tools/list` result without some tools, all else as the agent wrote it."""
    members = _LIST.read(result)
    raw = members.get("tools", _EMPTY_LIST)
    tools = list(_tools(raw))
    shown = [tool for name, tool in tools if not is_hidden(name)]
    if len(shown) == len(tools) < MAX_TOOLS:
        return result
    members["tools"] = Raw(encode_json(shown))
    return Raw(encode_json(members))


def _tools(raw: Raw) -> Iterator[tuple[str, Raw]]:
    for tool in elements(raw, MAX_TOOLS):
        try:
            yield _readable(_read_tool, tool).name, tool
        except msgspec.DecodeError:
            raise ProtocolError(Reason.RESULT) from None


def _readable(read: Callable[[Raw | bytes], T], raw: Raw) -> T:
    """Read a value that may have half of a surrogate pair in a text that is not asked for."""
    try:
        return read(raw)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return read(without_halves(bytes(raw)))


def negotiated_version(result: Raw) -> str | None:
    """The protocol version that an `initialize` result states."""
    return read_text(_INITIALIZE.read(result).get("protocolVersion", NOTHING))


def without_tasks(result: Raw) -> Raw:
    """Return what an agent says of itself without its capability of tasks."""
    members = _INITIALIZE.read(result)
    said = members.get("capabilities", NOTHING)
    if not len(said) or not is_object(said):
        return result
    capabilities = walk(said, _CAPABILITIES)
    if capabilities.pop("tasks", None) is None:
        return result
    members["capabilities"] = Raw(encode_json(capabilities))
    return Raw(encode_json(members))


def tells_changes(result: Raw) -> bool:
    """Whether an `initialize` result says that clients are told when the tools change."""
    try:
        return _readable(_read_server, result).capabilities.tools.tells_changes
    except msgspec.DecodeError:
        return False


def may_be_failure(frame: bytes) -> bool:
    """Whether `is_failure` has to be asked of a frame's result: a look that reads little.

    SDKs end their results with the flag, and it is short work to see that; a frame without a
    capital E has none; else it is sought, from its end.
    """
    return (
        not frame.endswith(_NO_FAILURE) and _CAPITAL_E in frame and frame.rfind(b'"isError"') >= 0
    )


_NO_FAILURE: Final = b'"isError":false}}'
_CAPITAL_E: Final = ord("E")


def is_failure(result: Raw) -> bool:
    """Whether a `tools/call` result says `isError: true`. Scans the whole result."""
    try:
        return _readable(_read_call_result, result).failed
    except msgspec.DecodeError:
        return False
