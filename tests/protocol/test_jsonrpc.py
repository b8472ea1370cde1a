"""Every frame has a defined answer: a message, or a reason with the id to answer."""

from __future__ import annotations

import pytest
from msgspec import Raw

from callgate.errors import ProtocolInvalid, RateLimited
from callgate.protocol import jsonrpc
from callgate.protocol.jsonrpc import Notification, Request, Response, encode_json
from callgate.protocol.members import MAX_MEMBERS
from callgate.protocol.problem import INVALID_REQUEST, PARSE_ERROR, ProtocolError, Reason

REQUEST = b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":1}}'


def refused(frame: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        jsonrpc.decode(frame)
    return caught.value


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (REQUEST, Request(7, "ping", Raw(b'{"a":1}'))),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping"}', Request("a", "ping")),
        (b'{"jsonrpc":"2.0","id":"","method":"ping"}', Request("", "ping")),
        (b'{"jsonrpc":"2.0","id":0,"method":"ping","params":null}', Request(0, "ping")),
        (b' { "id" : -1 , "method" : "p" , "jsonrpc" : "2.0" } ', Request(-1, "p")),
        (b'{"jsonrpc":"2.0","method":"n","params":{}}', Notification("n", Raw(b"{}"))),
        (b'{"jsonrpc":"2.0","id":1,"result":{"x":[1]}}', Response(1, Raw(b'{"x":[1]}'))),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', Response(1, Raw(b"null"))),
        (b'{"jsonrpc":"2.0","id":1,"error":{}}', Response(1, error=Raw(b"{}"))),
        (b'{"jsonrpc":"2.0","\\u0069d":1,"method":"\\u0070"}', Request(1, "p")),
        (b'{"jsonrpc":"2.0","id":9007199254740992,"method":"p"}', Request(2**53, "p")),
        (
            b'{"jsonrpc":"2.0","x":{"id":2},"id":1,"method":"p"}',
            Request(1, "p", beside={"x": Raw(b'{"id":2}')}),
        ),
    ],
)
def test_a_good_frame_is_read(frame: bytes, message: object) -> None:
    assert jsonrpc.decode(frame) == message


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", Reason.JSON),
        (b"   ", Reason.JSON),
        (b"nonsense on stdout", Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p"', Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p"} {}', Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":NaN}}', Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":-Infinity}}', Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":"\\ud80"}}', Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":"\x00"}}', Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":01}}', Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p",}', Reason.JSON),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":7,"method":"p"}', Reason.JSON),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":"\xff"}}', Reason.UTF8),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":"\xed\xa0\x80"}}', Reason.UTF8),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":"\xc0\x80"}}', Reason.UTF8),
        (b"[" * 100_000, Reason.DEPTH),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, Reason.DEPTH),
    ],
)
def test_a_frame_that_is_not_json_is_a_parse_error(frame: bytes, reason: Reason) -> None:
    error = refused(frame)

    assert (error.reason, error.jsonrpc) == (reason, PARSE_ERROR)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"[]", Reason.BATCH),
        (b" [" + REQUEST + b"]", Reason.BATCH),
        (b"1", Reason.NOT_OBJECT),
        (b'"x"', Reason.NOT_OBJECT),
        (b"null", Reason.NOT_OBJECT),
        (b"{}", Reason.VERSION),
        (b'{"id":7,"method":"p"}', Reason.VERSION),
        (b'{"jsonrpc":"1.0","id":7,"method":"p"}', Reason.VERSION),
        (b'{"jsonrpc":2.0,"id":7,"method":"p"}', Reason.VERSION),
        (b'{"jsonrpc":"2.0","id":7}', Reason.SHAPE),
        (b'{"jsonrpc":"2.0","result":{}}', Reason.SHAPE),
        (b'{"jsonrpc":"2.0","id":7,"result":{},"error":{}}', Reason.SHAPE),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","result":{}}', Reason.SHAPE),
        (b'{"jsonrpc":"2.0","id":7,"error":"text"}', Reason.SHAPE),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","error":null}', Reason.SHAPE),
        (b'{"jsonrpc":"2.0","id":7,"method":1}', Reason.METHOD),
        (b'{"jsonrpc":"2.0","id":7,"method":""}', Reason.METHOD),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":[1]}', Reason.PARAMS),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":"x"}', Reason.PARAMS),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","method":"q"}', Reason.DUPLICATE_KEY),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","meth\\u006fd":"p"}', Reason.DUPLICATE_KEY),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","x":1,"x":1}', Reason.DUPLICATE_KEY),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","Method":"q"}', Reason.LOOKALIKE_KEY),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","method\\u0000":"q"}', Reason.LOOKALIKE_KEY),
        ('{"jsonrpc":"2.0","id":7,"method":"p","\uff29\uff24":1}'.encode(), Reason.LOOKALIKE_KEY),
        ('{"jsonrpc":"2.0","id":7,"method":"p","re\u017fult":1}'.encode(), Reason.LOOKALIKE_KEY),
        ('{"jsonrpc":"2.0","id":7,"method":"p","id\u200b":1}'.encode(), Reason.LOOKALIKE_KEY),
    ],
)
def test_a_frame_that_is_no_message_is_an_invalid_request(frame: bytes, reason: Reason) -> None:
    error = refused(frame)

    assert (error.reason, error.jsonrpc) == (reason, INVALID_REQUEST)


ODD = ["null", "true", "1.0", "1e2", "9007199254740993", "-9007199254740993", "1" * 256]
"""Ids that readers may take for another, or for none."""
NO_ID = ["[]", "{}", "1" * 5000, '"' + "x" * 257 + '"', r'"\ud83d"']


@pytest.mark.parametrize(
    ("raw", "rest"),
    [*((raw, '"method":"p"') for raw in NO_ID), *((raw, '"result":{}') for raw in NO_ID + ODD)],
)
def test_what_cannot_be_given_back_is_no_id(raw: str, rest: str) -> None:
    error = refused(f'{{"jsonrpc":"2.0","id":{raw},{rest}}}'.encode())

    assert (error.reason, error.id) == (Reason.ID, None)
    assert error.is_response is ("result" in rest)


@pytest.mark.parametrize("raw", ODD)
def test_an_odd_id_of_a_request_is_kept_as_it_is_written(raw: str) -> None:
    message = jsonrpc.decode(f'{{"jsonrpc":"2.0","id": {raw} ,"method":"p"}}'.encode())

    assert isinstance(message, jsonrpc.Request)
    assert message.id == raw.encode()
    for answer in (
        jsonrpc.encode_result(message.id, b"{}"),
        jsonrpc.encode_error(message.id, ProtocolInvalid()),
    ):
        assert f'"id":{raw},'.encode() in answer


@pytest.mark.parametrize(
    ("frame", "own_id", "is_response"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"p","params":{"a":NaN}}', 7, False),
        (b'{"jsonrpc":"2.0","id":"x","result":{"a":NaN}}', "x", True),
        (b'{"result":{"a":"\xff"},"jsonrpc":"2.0","id":7}', 7, True),
        (b'{"jsonrpc":"2.0","method":"p","params":{"a":NaN},"id":7}', 7, False),
        (b'{"jsonrpc":"2.0","id":7,"params":{},"params":{}}', 7, False),
        (b'{"jsonrpc":"2.0","id":7,"id":8,"method":"p"}', None, False),
        (b'{"jsonrpc":"2.0","id":7,"params":{"id":8}', 7, False),
        (b'{"jsonrpc":"2.0","id":7,"params":{"a":1,"id":8}', None, False),
        (b'{"jsonrpc":"2.0","method":"p","params":[]}', None, False),
        (b'{"jsonrpc":"2.0","id":7,"result":1,"error":2}', 7, True),
        (b'{"jsonrpc":"2.0","id":7,"params":3,"method":"x"}', 7, False),
        (b"garbage", None, None),
    ],
)
def test_a_refusal_says_whom_to_answer(
    frame: bytes, own_id: int | str | None, *, is_response: bool | None
) -> None:
    error = refused(frame)

    assert (error.id, error.is_response) == (own_id, is_response)


def test_the_envelope_may_have_strange_members_but_not_without_end() -> None:
    def frame(count: int) -> bytes:
        return encode_json(
            {"jsonrpc": "2.0", "id": 1, "method": "p"} | {f"x{i}": i for i in range(count)}
        )

    many = {f"x{i}": Raw(b"%d" % i) for i in range(MAX_MEMBERS - 3)}
    assert jsonrpc.decode(frame(MAX_MEMBERS - 3)) == Request(1, "p", beside=many)
    assert refused(frame(MAX_MEMBERS - 2)).reason == Reason.TOO_MANY_KEYS


@pytest.mark.parametrize("brk", [b"\n", b"\r", b"\r\n"])
def test_a_line_break_between_tokens_is_never_passed_on(brk: bytes) -> None:
    inner = b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"denied"}}'
    frame = REQUEST.replace(b"1", brk + inner + brk)

    request = jsonrpc.decode(frame)

    assert isinstance(request, Request)
    assert bytes(request.params).split() == [b'{"a":', inner, b"}"]
    assert brk not in bytes(request.params)


def test_a_line_break_inside_a_string_stays_an_error() -> None:
    assert refused(REQUEST.replace(b"1", b'"\n"')).reason == Reason.JSON


def test_a_refusal_never_quotes_the_peer() -> None:
    error = refused(b'{"jsonrpc":"2.0","id":7,"method":"canary","Method":"canary"}')

    assert "canary" not in repr(error.as_dict()) + str(error) + repr(error.args)
    assert error.__cause__ is None


@pytest.mark.parametrize("own_id", [5, -1, "a", 'quo"te', "é"])
@pytest.mark.parametrize(
    "response", [Response(1, Raw(b'{"x": 1}')), Response(1, error=Raw(b'{"code":-1}'))]
)
def test_an_answer_is_passed_on_under_another_id(own_id: int | str, response: Response) -> None:
    line = jsonrpc.encode_response(own_id, response)

    assert line.endswith(b"}\n")
    assert jsonrpc.decode(line[:-1]) == Response(own_id, response.result, response.error)


def test_requests_and_notifications_are_read_as_they_are_written() -> None:
    request = jsonrpc.encode_request("r", "ping", b'{"a":1}')
    notification = jsonrpc.encode_notification("n")

    assert jsonrpc.decode(request[:-1]) == Request("r", "ping", Raw(b'{"a":1}'))
    assert jsonrpc.decode(notification[:-1]) == Notification("n")
    assert request[-1:] == notification[-1:] == b"\n"


def test_an_error_answer_carries_code_and_structure() -> None:
    error = RateLimited(agent="web", retry_after_ms=3200)

    assert jsonrpc.encode_error(3, error) == (
        encode_json(
            {
                "jsonrpc": "2.0",
                "id": 3,
                "error": {"code": -32003, "message": str(error), "data": error.as_dict()},
            }
        )
        + b"\n"
    )
    assert jsonrpc.encode_error(None, error).startswith(b'{"jsonrpc":"2.0","id":null,')
