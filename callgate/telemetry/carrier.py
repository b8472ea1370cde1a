"""Trace context as peers send it: keep what is well-formed, drop the rest in silence. Pure.

OpenTelemetry's W3C propagators are lenient and log what they reject, a peer's text
included. A carrier that went through `clean` gives them nothing to reject. It also bounds
what a peer can make us keep: the sizes are those of the two W3C recommendations.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, unquote_plus

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)

_MAX_HEADER_CHARS = 8192
_MAX_TRACESTATE_MEMBERS = 32
_MAX_BAGGAGE_MEMBERS = 64
_MAX_BAGGAGE_MEMBER_CHARS = 4096

_TRACESTATE_MEMBER = re.compile(
    r"([a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)

_TOKEN = r"[!#-'*+\-.0-9A-Z^-z|~]+"  # noqa: S105  # RFC 9110's word for a name
_VALUE = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
# The recommendation allows any run of blanks; one each is what senders write, and runs make
# the propagator's own patterns quadratic.
_BAGGAGE_MEMBER = re.compile(
    rf"({_TOKEN})[ \t]?=[ \t]?({_VALUE}(?:[ \t]?;[ \t]?{_TOKEN}(?:[ \t]?=[ \t]?{_VALUE})?)*)"
)


def trace_id(carrier: Mapping[str, Any] | None) -> str | None:
    """The trace a carrier belongs to: 32 lower-case hex digits, not all zero, or None."""
    traceparent = None if carrier is None else carrier.get(TRACEPARENT)
    if not isinstance(traceparent, str):
        return None
    match = _TRACEPARENT.fullmatch(traceparent)
    return None if match is None else match[1]


def clean(carrier: Mapping[str, Any] | None) -> dict[str, str]:
    """The three W3C fields of a carrier, each whole if it is well-formed, else left out.

    A `tracestate` without a valid `traceparent` means nothing and is left out too.
    """
    kept: dict[str, str] = {}
    if carrier is None:
        return kept
    if trace_id(carrier) is not None:
        kept[TRACEPARENT] = carrier[TRACEPARENT]
        _keep(kept, TRACESTATE, _tracestate(_members(carrier.get(TRACESTATE))))
    _keep(kept, BAGGAGE, _baggage(_members(carrier.get(BAGGAGE))))
    return kept


def _keep(kept: dict[str, str], field: str, members: list[str]) -> None:
    if members:
        kept[field] = ",".join(members)


def _members(header: Any) -> list[str]:
    if not isinstance(header, str) or len(header) > _MAX_HEADER_CHARS:
        return []
    return [member for member in (part.strip(" \t") for part in header.split(",")) if member]


def _tracestate(members: list[str]) -> list[str]:
    matches = (_TRACESTATE_MEMBER.fullmatch(member) for member in members)
    keys = {match[1] for match in matches if match is not None}
    return members if len(members) == len(keys) <= _MAX_TRACESTATE_MEMBERS else []


def _baggage(members: list[str]) -> list[str]:
    if len(members) > _MAX_BAGGAGE_MEMBERS or not all(map(_is_baggage_member, members)):
        return []
    return members


def _is_baggage_member(member: str) -> bool:
    match = _BAGGAGE_MEMBER.fullmatch(member)
    if match is None:
        return False
    # The propagator decodes on the way in and encodes anew on the way out, where a longer
    # form would be rejected aloud.
    encoded = sum(len(quote_plus(unquote_plus(part))) for part in match.groups())
    return max(encoded + 1, len(member)) <= _MAX_BAGGAGE_MEMBER_CHARS
