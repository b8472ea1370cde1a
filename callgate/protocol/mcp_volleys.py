"""Frames of one kind that came together, read as one.

Pure. What `mcp.decode` proves of a frame by its length holds for a sum: whatever is not plain
makes a frame longer than the parts that are read of it, and nothing makes one shorter. So the
parts of all frames together are compared once with the frames together, and if that adds up each
frame is clean. Whatever does not add up, or is of another kind, is left to `mcp.decode`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Raw

from callgate.protocol.framing import Oversized
from callgate.protocol.mcp import CALL_BYTES, RESULT_BYTES, CallTool, Message, decode
from callgate.protocol.members import MAX_ID, check_utf8
from callgate.protocol.problem import Id, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_FRAMES: Final = 64
"""Of a volley and of a pass. What is done once for all of them is next to nothing by then."""
MOST_BYTES: Final = 64 * 1024
"""Of the frames of a volley together: a usual read. Of large frames each costs so much that it
does not matter."""

Read = Message | Oversized | ProtocolError
"""What a frame turned out to be."""

_CR: Final = b"\r"
_LF: Final = b"\n"
_FLAG: Final = b'"isError"'
_NO_FAILURE: Final = b'"isError":false}}'


class Calls(msgspec.Struct, gc=False):
    """Calls of one tool, with nothing but arguments."""

    name: str
    ids: list[Id] | list[int]
    arguments: list[Raw]


class Results(msgspec.Struct, gc=False):
    """Good answers to requests of ours."""

    ids: list[int]
    results: list[Raw]


_Version = Literal["2.0"]
_Number = Annotated[int, msgspec.Meta(ge=-MAX_ID, le=MAX_ID)]


class _Params(msgspec.Struct, gc=False):
    name: str
    arguments: Raw


class _Call(msgspec.Struct, gc=False):
    jsonrpc: _Version
    id: _Number
    method: Literal["tools/call"]
    params: _Params


class _Result(msgspec.Struct, gc=False):
    jsonrpc: _Version
    id: _Number
    result: Raw


_read_call = msgspec.json.Decoder(_Call).decode
_read_result = msgspec.json.Decoder(_Result).decode
_UNFIT: Final = (msgspec.DecodeError, ProtocolError, RecursionError, TypeError, UnicodeDecodeError)
"""No plain frame, or one that was too large to be kept."""


def decode_all(frames: Sequence[bytes | Oversized]) -> Iterator[Read | Calls]:
    """What each frame is, one after another; plain calls of one tool in a row are one."""
    calls = decode_calls(frames) if frames else None
    if calls is not None:
        yield calls
        return
    some: list[CallTool] = []
    for frame in frames:
        message = decode_one(frame)
        if isinstance(message, CallTool) and _fits(message, some):
            some.append(message)
            continue
        yield from _gathered(some)
        some = []
        yield message
    yield from _gathered(some)


def decode_one(frame: bytes | Oversized) -> Read:
    """What a frame is; an error if it is nothing."""
    try:
        return decode(frame) if isinstance(frame, bytes) else frame
    except ProtocolError as error:
        return error


def _fits(call: CallTool, calls: Sequence[CallTool]) -> bool:
    """Whether a call can be in one volley with others: of the same tool, with arguments only."""
    return (
        call.meta is None
        and call.extra is None
        and len(call.arguments) > 0
        and (not calls or calls[0].name == call.name)
    )


def _gathered(some: list[CallTool]) -> Iterator[CallTool | Calls]:
    if len(some) > 1:
        yield Calls(some[0].name, [call.id for call in some], [call.arguments for call in some])
    else:
        yield from some


def decode_calls(frames: Sequence[bytes | Oversized]) -> Calls | None:
    """Plain calls of one tool; None if any of the frames is something else."""
    try:
        size = len(_joined(frames))
        found = list(map(_read_call, frames))  # type: ignore[arg-type]  # else they cannot be joined
    except _UNFIT:
        return None
    params = [call.params for call in found]
    ids = [call.id for call in found]
    arguments = [each.arguments for each in params]
    name, count = params[0].name, len(found)
    plain = count * (CALL_BYTES + len(name)) + sum(map(len, arguments)) + _digits(ids)
    if size != plain or not name or [each.name for each in params].count(name) < count:
        return None
    return Calls(name, ids, arguments)


def decode_results(frames: Sequence[bytes | Oversized]) -> Results | None:
    """Answers, none of which reports a failure; None if any of the frames is something else."""
    try:
        together = _joined(frames)
        flags = together.count(_FLAG)
        if flags and flags != sum([frame.endswith(_NO_FAILURE) for frame in frames]):  # type: ignore[union-attr]  # as below
            return None
        found = list(map(_read_result, frames))  # type: ignore[arg-type]  # else they cannot be joined
    except _UNFIT:
        return None
    ids = [answer.id for answer in found]
    results = [answer.result for answer in found]
    plain = len(found) * RESULT_BYTES + sum(map(len, results)) + _digits(ids)
    return Results(ids, results) if len(together) == plain else None


def _joined(frames: Sequence[bytes | Oversized]) -> bytes:
    """All frames; raises one of `_UNFIT` if they are no text of single lines, or too much."""
    if sum(map(len, frames)) > MOST_BYTES:  # type: ignore[arg-type]  # else it raises
        raise TypeError
    together = b"".join(frames)  # type: ignore[arg-type]  # they are bytes
    if _CR in together or _LF in together:
        raise TypeError
    check_utf8(together)
    return together


def _digits(ids: list[int]) -> int:
    """How many characters these numbers have together."""
    least, most = str(min(ids)), str(max(ids))
    if len(least) == len(most) and least[0] != "-":
        return len(ids) * len(most)
    return sum(map(len, map(str, ids)))
