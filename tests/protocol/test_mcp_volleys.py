"""Frames that are read as one are read as they would be one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from callgate.protocol.framing import Oversized
from callgate.protocol.mcp import CALL_BYTES, CallTool
from callgate.protocol.mcp_volleys import (
    MOST_BYTES,
    Calls,
    decode_all,
    decode_calls,
    decode_one,
    decode_results,
)
from callgate.protocol.members import MAX_ID
from callgate.protocol.problem import ProtocolError
from tests.conftest import FULL
from tests.fuzz.frames import Frames

VOLLEYS = 50_000 if FULL else 3_000


def call(
    own_id: object = 1, name: str = "echo", arguments: str = '{"x":1}', more: str = ""
) -> bytes:
    params = f'{{"name":"{name}","arguments":{arguments}{more}}}'
    text = f'{{"jsonrpc":"2.0","id":{own_id},"method":"tools/call","params":{params}}}'
    return text.encode()


def answer(own_id: object = 1, result: str = '{"content":[]}') -> bytes:
    return f'{{"jsonrpc":"2.0","id":{own_id},"result":{result}}}'.encode()


def seen(messages: Any) -> list[Any]:
    """What there is of each message; errors equal only themselves."""
    return [
        (one.reason, one.id, one.is_response) if isinstance(one, ProtocolError) else one
        for one in messages
    ]


def singly(calls: Calls) -> list[CallTool]:
    pairs = zip(calls.ids, calls.arguments, strict=True)
    return [CallTool(own_id, calls.name, arguments) for own_id, arguments in pairs]


def expanded(frames: list[bytes | Oversized]) -> list[Any]:
    found: list[Any] = []
    for message in decode_all(frames):
        found += singly(message) if isinstance(message, Calls) else [message]
    return found


@pytest.mark.parametrize(
    "frames",
    [
        [call(1), call(2, arguments='{"text":"a longer one"}'), call(300)],
        [call(-5), call(0), call(MAX_ID)],
        [call(-5), call(3), call(10)],
        [call(1, arguments='{"x":"é"}'), call(2)],
        [b'{"params":{"arguments":{},"name":"a"},"method":"tools/call","id":1,"jsonrpc":"2.0"}']
        * 2,
    ],
)
def test_calls_of_one_tool_are_read_as_one(frames: list[bytes]) -> None:
    calls = decode_calls(frames)

    assert calls is not None
    assert singly(calls) == [decode_one(frame) for frame in frames]


SPOILT = [
    call(2, "other"),
    call('"text"'),
    call(MAX_ID + 1),
    call("2.0"),
    call("null"),
    call(2, "", "{}"),
    call(2, more=',"_meta":{"progressToken":1}'),
    call(2, more=',"task":{}'),
    call(2, more=',"name":"echo"'),
    call(2, more=',"Name":"other"'),
    call(2).replace(b'"id"', b'"id":1,"id"'),
    call(2).replace(b'"name"', b'"n\\u0061me"'),
    call(2).replace(b":", b": ", 1),
    call(2).replace(b"tools/call", b"tools/lisT"),
    call(2).replace(b"2.0", b"1.0"),
    call(2, arguments='{"x":"\xff"}').replace("ÿ".encode(), b"\xff"),
    call(2, arguments='{"x":\r1}'),
    call(2, arguments='{"x":\n1}'),
    call(2)[:-1],
    b"rubbish",
    answer(2),
    Oversized(b"", b"", 5_000_000),
]


@pytest.mark.parametrize("frame", SPOILT)
def test_one_that_is_something_else_spoils_it_for_all(frame: bytes | Oversized) -> None:
    assert decode_calls([call(1), frame, call(3)]) is None


def test_a_blank_is_not_made_up_for_by_a_neighbour() -> None:
    """No frame can be shorter than its parts."""
    with_blank = call(2).replace(b"{", b"{ ", 1)
    for short in (call("-0"), call(3, "e\u00e9"), call(3, arguments="1")):
        assert decode_calls([with_blank, short]) is None


def test_a_tool_has_a_name() -> None:
    assert decode_calls([call(1, ""), call(2, "")]) is None


def test_large_frames_are_read_one_by_one() -> None:
    large = call(1, arguments='"' + "x" * (MOST_BYTES // 2) + '"')

    assert decode_calls([large, large]) is None
    assert decode_calls([large]) is not None


def test_calls_between_other_frames_are_gathered() -> None:
    spaced = call(1).replace(b",", b", ").replace(b":", b": ")
    frames = [spaced, call('"b"'), call(3, "other"), call(4), call(5), answer(6), call(7)]

    found = list(decode_all(frames))

    assert [type(one).__name__ for one in found] == [
        *("Calls", "CallTool", "Calls", "Response", "CallTool")
    ]
    assert expanded(list(frames)) == [decode_one(frame) for frame in frames]


@pytest.mark.parametrize(
    "frames",
    [
        [answer(1), answer(2, '{"content":[],"isError":false}')],
        [answer(1, '{"content":[{"type":"text","text":"\\"isError\\":true"}]}')] * 2,
        [answer(1, '{"content":[{"type":"text","text":"Error"}]}')] * 2,
    ],
)
def test_good_answers_are_read_as_one(frames: list[bytes]) -> None:
    found = decode_results(frames)

    assert found is not None
    assert found.ids == [decode_one(frame).id for frame in frames]  # type: ignore[union-attr]
    assert found.results == [decode_one(frame).result for frame in frames]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "frame",
    [
        answer(2, '{"content":[],"isError":true}'),
        answer(2, '{"isError":true,"content":[]}'),
        answer(2, '{"isError":false,"content":[]}'),
        answer(2, '{"isError":true,"isError":false}'),
        b'{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"no"}}',
        answer('"2"'),
        answer(2).replace(b":", b": ", 1),
        answer(2, '{"x":\r1}'),
        call(2),
        b"rubbish",
    ],
)
def test_an_answer_that_may_be_a_failure_or_is_none_spoils_it_for_all(frame: bytes) -> None:
    assert decode_results([answer(1), frame]) is None


def test_any_frames_together_are_what_they_are_one_by_one() -> None:
    source, draw = Frames(seed=20261118), random.Random(1)  # noqa: S311  # frames, not keys
    together = 0
    for _ in range(VOLLEYS):
        frames: list[bytes | Oversized] = []
        for number in range(draw.randrange(1, 5)):
            kind = draw.random()
            plain = call(number, arguments=draw.choice(['{"a":1}', "{}", '{"b":"isError"}']))
            if kind < 0.1:
                plain = source.mutated(plain, source.mcp())
            elif kind < 0.2:
                plain = source.mcp()
            frames.append(plain.replace(b"\n", b" "))
        together += decode_calls(frames) is not None

        assert seen(expanded(frames)) == seen(decode_one(frame) for frame in frames)
    assert VOLLEYS / 4 < together < VOLLEYS


def test_any_answers_together_are_what_they_are_one_by_one() -> None:
    source, draw = Frames(seed=20261119), random.Random(2)  # noqa: S311  # frames, not keys
    together = 0
    for _ in range(VOLLEYS):
        frames: list[bytes | Oversized] = []
        for number in range(draw.randrange(1, 5)):
            plain = answer(number, draw.choice(["{}", '{"content":[]}', '{"isError":false}']))
            if draw.random() < 0.15:
                plain = source.mutated(plain, source.mcp())
            frames.append(plain.replace(b"\n", b" "))
        found = decode_results(frames)
        if found is None:
            continue
        together += 1
        alone = [decode_one(frame) for frame in frames]
        assert [(one.id, one.result) for one in alone] == [  # type: ignore[union-attr]
            *zip(found.ids, found.results, strict=True)
        ]
    assert VOLLEYS / 4 < together < VOLLEYS


def test_what_proves_frames_clean_is_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison a double key would pass."""
    double = [call(1, more=',"name":"echo"')] * 2
    assert decode_calls(double) is None

    more = CALL_BYTES + len(',"name":"echo"')
    monkeypatch.setattr("callgate.protocol.mcp_volleys.CALL_BYTES", more)

    assert decode_calls(double) is not None
