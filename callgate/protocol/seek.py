"""Find the id of a frame that cannot be read, so that somebody can be told.

Pure. The two ends of the frame are searched: from the front over the members that are
strings or numbers, until the first that is neither; from the back over the last members.
An id that could be another's is worse than none, so doubt means none.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

import msgspec

from callgate.protocol.members import AFTER, KEY, OPENING, SCALAR, SPACE, STRING, read_id, read_text
from callgate.protocol.problem import Id, ProtocolError

SOUGHT_BYTES: Final = 1024
"""Of each end."""

_REQUEST_KEYS: Final = frozenset({"method", "params"})
_RESPONSE_KEYS: Final = frozenset({"result", "error"})

_MEMBER = rb"," + SPACE + rb'"(?:jsonrpc|method)"' + SPACE + rb":" + SPACE + STRING + SPACE
_ID_AT_END = re.compile(
    rb"," + SPACE + rb'"id"' + SPACE + rb":" + SPACE + rb"(" + STRING + rb"|-?[0-9]++)"
    + SPACE + rb"(?:" + _MEMBER + rb")*+\}" + SPACE + rb"\Z",
    re.DOTALL,
)  # fmt: skip
"""What it matches runs to the brace that closes the frame and has no other brace in it, so
in a frame that is JSON it is the envelope's."""

_CALL: Final = b'"tools/call"'
_CALL_AT_END: Final = re.compile(rb'"method"' + SPACE + rb":" + SPACE + _CALL)
_TASK: Final = b'"task"'
"""Who calls for a task waits for one, or for an error."""


class Sought(msgspec.Struct, frozen=True, gc=False):
    """What the ends of a frame give away."""

    id: Id | None
    is_response: bool | None
    """Whether it answers a request of ours; None if the ends do not say."""
    is_call: bool = False
    """Whether it is a tool call, whose caller waits for a tool result."""


def seek(head: bytes, tail: bytes) -> Sought:
    """Search the first and the last bytes of a frame."""
    ids: set[Id] = set()
    is_response: bool | None = None
    is_call = False
    for key, value in _members(head):
        if key == "id":
            _add(ids, value)
        elif key in _REQUEST_KEYS:
            is_response = False
            is_call |= key == "method" and value == _CALL
        elif key in _RESPONSE_KEYS and is_response is None:
            is_response = True
    at_end = _ID_AT_END.search(tail)
    if at_end is not None:
        _add(ids, at_end[1])
        is_call |= _CALL_AT_END.search(at_end[0]) is not None
    is_call = is_call and is_response is not True and _TASK not in head and _TASK not in tail
    return Sought(ids.pop() if len(ids) == 1 else None, is_response, is_call)


def seek_in(frame: bytes) -> Sought:
    """Search a frame that is there as a whole."""
    return seek(frame[:SOUGHT_BYTES], frame[-SOUGHT_BYTES:])


def answered_in(line: bytes) -> list[int]:
    """Return which requests of ours a line that cannot be read seems to answer, a few at most."""
    if b'"jsonrpc"' not in line or b'"method"' in line:
        return []
    if b'"result"' not in line and b'"error"' not in line:
        return []
    found = islice(_ANSWER.finditer(line), MAX_ANSWERS)
    return [int(each[1] or each[2]) for each in found]


MAX_ANSWERS: Final = 64
"""Of one line that are looked at."""

_VERSION = rb'"jsonrpc"' + SPACE + rb":" + SPACE + rb'"2\.0"'
_NUMBER = rb'"id"' + SPACE + rb":" + SPACE + rb"([0-9]{1,16}+)"
_COMMA = SPACE + rb"," + SPACE
_ANSWER = re.compile(_VERSION + _COMMA + _NUMBER + rb"|" + _NUMBER + _COMMA + _VERSION)
"""As SDKs write an envelope: its version and its id side by side."""


def _members(head: bytes) -> list[tuple[str | None, bytes]]:
    """The leading members; the value of the last one is empty if it is cut or nested."""
    found: list[tuple[str | None, bytes]] = []
    opening = OPENING.match(head)
    position = len(head) if opening is None else opening.end()
    while (key := KEY.match(head, position)) is not None:
        value = SCALAR.match(head, key.end())
        after = None if value is None else AFTER.match(head, value.end())
        found.append((read_text(key[1]), b"" if after is None or value is None else value[0]))
        if after is None:
            break
        position = after.end()
    return found


def _add(ids: set[Id], value: bytes) -> None:
    if value == b"null":
        return  # whoever is told of it could not tell it from an answer to nothing
    try:
        ids.add(read_id(value))
    except ProtocolError:
        return
