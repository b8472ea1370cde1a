"""Streams of notifications: the one place where MCP writes a request's id into a payload. Pure.

Since 2026-07-28 a client listens with one long request, and everything that belongs to it says
so in `_meta`, by the id of that request. Ids are ours on the agent's side, so that one has to be
the client's again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from callgate.protocol.jsonrpc import encode_id, encode_json
from callgate.protocol.members import NOTHING, Members, read_id
from callgate.protocol.problem import ProtocolError

if TYPE_CHECKING:
    from callgate.protocol.problem import Id

LISTEN: Final = "subscriptions/listen"
"""Open until somebody ends it, so it has no timeout."""

_KEY: Final = "io.modelcontextprotocol/subscriptionId"
_read = msgspec.json.Decoder(Members).decode


def stream_of(members: Members | None) -> Id | None:
    """Which request's stream some parameters or a result belong to, if to any."""
    raw = NOTHING if members is None else members.get("_meta", NOTHING)
    if not len(raw) or _KEY.encode() not in bytes(raw):
        return None
    try:
        return read_id(_read(raw)[_KEY])
    except (KeyError, msgspec.DecodeError, ProtocolError):
        return None


def renamed(members: Members, gate_id: Id) -> Members:
    """The same, belonging to the stream of a request with another id."""
    meta = {**_read(members["_meta"]), _KEY: Raw(encode_id(gate_id))}
    return {**members, "_meta": Raw(encode_json(meta))}


def renamed_result(result: Raw, gate_id: Id) -> Raw:
    """A stream's last word, under another id."""
    try:
        members = _read(result)
    except msgspec.DecodeError:
        return result
    return result if stream_of(members) is None else Raw(encode_json(renamed(members, gate_id)))
