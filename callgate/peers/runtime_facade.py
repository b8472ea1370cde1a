"""What an MCP client sees of an agent that speaks the runtime protocol. Pure.

Such an agent has tools and nothing else, so the gate answers for it: who it is, which tools it
has, and what a result means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from callgate.protocol.jsonrpc import encode_json
from callgate.protocol.mcp import VERSION
from callgate.protocol.members import NOTHING, is_object, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from callgate.protocol import runtime_table as table
    from callgate.protocol.mcp import Request
    from callgate.protocol.members import Members

STATELESS: Final = "2026-07-28"
LATEST: Final = "2025-11-25"
KNOWN: Final = (LATEST, "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions with `initialize`; in all of them these answers have the same form."""

_CAPABILITIES: Final = {"tools": {"listChanged": True}}
_COMPLETE: Final = {"resultType": "complete"}
_UNCACHED: Final = {**_COMPLETE, "ttlMs": 0, "cacheScope": "private"}
"""What the era without `initialize` wants in every result, and in lists."""


def answer(request: Request, agent: str, tools: Iterable[table.Tool]) -> bytes | None:
    """The result of a request other than a call; None for a method that there is not."""
    about = {"name": agent, "version": "1"}
    match request.method:
        case "ping":
            return b"{}"
        case "initialize":
            asked = read_text((request.params or {}).get("protocolVersion", Raw(b"null")))
            version = asked if asked in KNOWN else LATEST
            return encode_json(
                {"protocolVersion": version, "capabilities": _CAPABILITIES, "serverInfo": about}
            )
        case "server/discover":
            return encode_json(
                {
                    "supportedVersions": [STATELESS, *KNOWN],
                    "capabilities": _CAPABILITIES,
                    **_UNCACHED,
                    "_meta": {"io.modelcontextprotocol/serverInfo": about},
                }
            )
        case "tools/list":
            stateless = request.meta is not None and VERSION in request.meta
            return tool_list(tools, stateless=stateless)
    return None


def tool_list(tools: Iterable[table.Tool], *, stateless: bool) -> bytes:
    """A `tools/list` result."""
    listed: list[dict[str, Any]] = []
    for tool in tools:
        shown: dict[str, Any] = {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.input_schema,
        }
        if len(tool.output_schema) and is_object(tool.output_schema):
            shown["outputSchema"] = tool.output_schema
        listed.append(shown)
    return encode_json({"tools": listed, **(_UNCACHED if stateless else {})})


def call_result(body: table.Result, *, stateless: bool) -> bytes:
    """A `tools/call` result; a failure says what the agent said."""
    result: dict[str, Any] = dict(_COMPLETE) if stateless else {}
    if body.status != "succeeded":
        text = body.status if body.error is None else body.error.message
        result["isError"] = True
    else:
        text = _text(body.output)
        if len(body.output) and is_object(body.output):
            result["structuredContent"] = body.output
    result["content"] = [{"type": "text", "text": text}]
    return encode_json(result)


def progress(body: table.Stream) -> Members:
    """A streamed piece as the parameters of `notifications/progress`, less the token."""
    try:
        piece = _read_piece(body.data)
    except msgspec.DecodeError:
        piece = _Piece(json=body.data)
    text = _text(piece.json) if piece.text is None else piece.text
    return {"progress": Raw(b"%d" % body.seq), "message": Raw(encode_json(text))}


class _Piece(msgspec.Struct, gc=False):
    text: str | None = None
    json: Raw = NOTHING


_read_piece = msgspec.json.Decoder(_Piece).decode


def _text(output: Raw) -> str:
    """A string is shown as it is, anything else as JSON."""
    if not len(output):
        return ""
    text = read_text(output)
    return bytes(output).decode("utf-8", "replace") if text is None else text
