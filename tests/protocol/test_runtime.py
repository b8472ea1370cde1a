from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from callgate.protocol import runtime
from callgate.protocol.framing import Lengths
from callgate.protocol.members import NOTHING
from callgate.protocol.problem import INVALID_REQUEST, PARSE_ERROR, ProtocolError, Reason
from callgate.protocol.runtime import Message, Side, check_tools, decode, encode, seek_call
from callgate.protocol.runtime_table import (
    AgentError,
    Body,
    Call,
    Cancel,
    CancelAck,
    CoreError,
    Error,
    Goodbye,
    Heartbeat,
    Hello,
    Offer,
    Ping,
    Pong,
    Refused,
    Register,
    Registered,
    Rejected,
    Result,
    Server,
    Stream,
    Tool,
    Unregister,
    Unregistered,
    Welcome,
)

TS = "2026-01-16T12:00:00Z"
ERROR = Error("tool.failed", "it failed", Raw(b'{"k":1}'), retryable=False, where="agent.x")
TOOL = Tool("a/t", "t", "does t", Raw(b'{"type":"object"}'), Raw(b"{}"), ("streaming",), True)
BODIES: list[Body] = [
    Hello("secret", "a", "1.0", Offer((1,), ("tools",)), "hash", Raw(b'{"name":"x"}')),
    Welcome(1, "s", 5000, 4_194_304, Server("0.1", "i")),
    Goodbye("restart", 100),
    Register((TOOL, Tool("a/u", "u", "", Raw(b"{}"))), replace=True),
    Registered(("a/t",), (Rejected("a/u", ERROR),)),
    Unregister(("a/t",)),
    Unregistered(("a/t",)),
    Call("c", "a/t", Raw(b'{"x":[1]}'), 500, "key", Raw(b'{"type":"agent"}'), Raw(b"{}")),
    Stream("c", 1, "stdout", Raw(b'{"text":"x"}'), done=True),
    Result("c", "succeeded", Raw(b'{"y":2}'), None, TS, TS, Raw(b'{"ms":1}')),
    Result("c", "failed", error=ERROR),
    Cancel("c", "timeout", 5000),
    CancelAck("c", accepted=True, note="ok"),
    Heartbeat("s", 1, 0, "degraded", Raw(b"{}")),
    Ping(),
    Pong(),
    CoreError(),
    AgentError(),
]


def side(body: Body) -> Side:
    return "core" if body.type.startswith("core") else "agent"


def frame(body: Body, **envelope: Any) -> bytes:
    [payload] = Lengths(runtime.MAX_FRAME_BYTES).feed(encode(body, "m1", TS, **envelope))
    assert isinstance(payload, bytes)
    return payload


def written(**members: Any) -> bytes:
    base = {"v": 1, "type": "agent.pong", "id": "m1", "ts": TS, "payload": {}}
    return json.dumps(base | members).encode()


def refused(data: bytes, sender: Side = "agent") -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(data, sender)
    return caught.value


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.type)
def test_each_message_of_the_table_is_read_as_it_is_written(body: Body) -> None:
    chain: dict[str, Any] = {
        "in_reply_to": "m0",
        "request_id": "r",
        "correlation_id": "c",
        "causation_id": "d",
    }

    message = decode(frame(body, **chain), side(body))

    assert message == Message(body, "m1", TS, **chain)


def test_the_whole_table_is_tested() -> None:
    assert {type(body) for body in BODIES} | {Refused} == set(Body.__subclasses__())


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.type)
def test_a_message_with_blanks_and_in_another_order_is_the_same(body: Body) -> None:
    members = json.loads(frame(body))
    turned = json.dumps(dict(reversed(members.items())), indent=1).encode()

    assert type(decode(turned, side(body)).body) is type(body)
    assert json.loads(frame(decode(turned, side(body)).body)) == members


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.type)
def test_a_side_never_reads_its_own_types(body: Body) -> None:
    other: Side = "agent" if side(body) == "core" else "core"

    assert refused(frame(body), other).reason == Reason.TYPE


def test_a_refused_hello_is_told_from_a_welcome() -> None:
    error = Error("protocol.unauthorized", "no")

    message = decode(frame(Refused(), in_reply_to="m0", error=error), "core")

    assert (message.body, message.error) == (Refused(), error)


def test_a_hello_never_shows_its_token() -> None:
    message = decode(frame(BODIES[0]), "agent")

    assert isinstance(message.body, Hello)
    assert message.body.session_token == "secret"  # noqa: S105
    assert "secret" not in repr(message)


def test_unknown_members_are_ignored() -> None:
    body = {"call_id": "c", "status": "succeeded", "new": {"x": [1]}}
    data = written(type="agent.tool.result", payload=body, future=[1, {"id": "x"}])

    assert decode(data, "agent").body == Result("c", "succeeded")


def test_a_large_output_is_passed_over_and_not_built() -> None:
    output = b'{"x":"' + b"y" * 1_000_000 + b'"}'

    message = decode(frame(Result("c", "succeeded", Raw(output))), "agent")

    assert isinstance(message.body, Result)
    assert message.body.output == Raw(output)


@pytest.mark.parametrize(
    ("data", "reason", "number"),
    [
        (b"", Reason.JSON, PARSE_ERROR),
        (b"{", Reason.JSON, PARSE_ERROR),
        (b'{"v":NaN}', Reason.JSON, PARSE_ERROR),
        (b'{"v":' + b"[" * 100_000, Reason.DEPTH, PARSE_ERROR),
        (b'{"x":"\xff"}', Reason.UTF8, PARSE_ERROR),
        (b"[]", Reason.BATCH, INVALID_REQUEST),
        (b"1", Reason.NOT_OBJECT, INVALID_REQUEST),
        (b"null", Reason.NOT_OBJECT, INVALID_REQUEST),
        (b"{}", Reason.ID, INVALID_REQUEST),
        (written(id=1), Reason.ID, INVALID_REQUEST),
        (written(id=None), Reason.ID, INVALID_REQUEST),
        (written(id=""), Reason.ID, INVALID_REQUEST),
        (written(id="x" * 257), Reason.ID, INVALID_REQUEST),
        (written(v=2), Reason.VERSION, INVALID_REQUEST),
        (written(v="1"), Reason.VERSION, INVALID_REQUEST),
        (written(v=True), Reason.VERSION, INVALID_REQUEST),
        (written(type=None), Reason.SHAPE, INVALID_REQUEST),
        (written(ts=1), Reason.SHAPE, INVALID_REQUEST),
        (written(type="agent.unknown"), Reason.TYPE, INVALID_REQUEST),
        (written(payload=None), Reason.PAYLOAD, INVALID_REQUEST),
        (written(payload=[]), Reason.PAYLOAD, INVALID_REQUEST),
        (written(request_id=5), Reason.ID, INVALID_REQUEST),
        (written(error="x"), Reason.PAYLOAD, INVALID_REQUEST),
        (written()[:-1] + b',"id":"m2"}', Reason.DUPLICATE_KEY, INVALID_REQUEST),
        (written(ID="m2"), Reason.LOOKALIKE_KEY, INVALID_REQUEST),
        (written(**{"type\0": "x"}), Reason.LOOKALIKE_KEY, INVALID_REQUEST),
        (
            written(type="agent.tool.result", payload={"call_id": "c"}),
            Reason.PAYLOAD,
            INVALID_REQUEST,
        ),
        (
            written(type="agent.tool.result", payload={"call_id": "c", "status": "done"}),
            Reason.PAYLOAD,
            INVALID_REQUEST,
        ),
        (
            written(type="agent.tool.result", payload={"call_id": "c", "Call_Id": "d"}),
            Reason.LOOKALIKE_KEY,
            INVALID_REQUEST,
        ),
        (
            written(
                type="agent.tool.stream",
                payload={"call_id": "c", "seq": 0, "channel": "log", "data": {}},
            ),
            Reason.PAYLOAD,
            INVALID_REQUEST,
        ),
        (written(type="agent.tools.register"), Reason.PAYLOAD, INVALID_REQUEST),
        (
            written(type="agent.tools.register", payload={"tools": [], "replace": "no"}),
            Reason.PAYLOAD,
            INVALID_REQUEST,
        ),
        (
            written(type="agent.tools.register", payload={"tools": [{}] * 4097}),
            Reason.PAYLOAD,
            INVALID_REQUEST,
        ),
    ],
)
def test_a_bad_message_has_a_defined_answer(data: bytes, reason: Reason, number: int) -> None:
    error = refused(data)

    assert (error.reason, error.jsonrpc) == (reason, number)


def test_a_call_whose_input_is_no_object_is_refused() -> None:
    assert refused(frame(Call("c", "a/t", Raw(b"[]"))), "core").reason == Reason.ARGUMENTS


def test_a_bad_message_keeps_its_id() -> None:
    assert refused(written(type="agent.unknown")).id == "m1"
    assert refused(b'{"v":1,"id":"m1","payload":{"x":NaN}}').id == "m1"


def tools(*entries: dict[str, Any]) -> Register:
    body = decode(written(type="agent.tools.register", payload={"tools": entries}), "agent").body
    assert isinstance(body, Register)
    return body


def test_single_tools_are_rejected_and_the_others_taken() -> None:
    good = {"tool_id": "a/t", "name": "t", "description": "d", "input_schema": {"type": "object"}}

    taken, rejected = check_tools(
        tools(
            good,
            good,
            good | {"tool_id": "b/t"},
            good | {"tool_id": "a/u"},
            {"tool_id": "a/x", "name": "x"},
            good | {"tool_id": "a/y", "name": "y", "input_schema": []},
            good | {"tool_id": "a/z", "name": "z", "input_schema": {"x": "y" * 70_000}},
            good | {"tool_id": "a/w", "name": "w", "Name": "v"},
            good | {"tool_id": "a/v", "name": "v"},
        ),
        "a",
    )

    assert [tool.tool_id for tool in taken] == ["a/t", "a/v"]
    assert [one.tool_id for one in rejected] == ["a/t", "b/t", "a/u", "a/x", "a/y", "a/z", ""]
    assert {one.error.code for one in rejected} == {"tool.invalid"}


def test_the_call_of_a_frame_that_is_too_large_is_found_at_its_ends() -> None:
    large = frame(Result("c1", "succeeded", Raw(b'{"x":"' + b"y" * 9000 + b'"}')))
    turned = json.dumps(dict(reversed(json.loads(large).items()))).encode()

    assert seek_call(large[:1024], large[-1024:]) == "c1"
    assert seek_call(turned[:1024], turned[-1024:]) == "c1"
    assert seek_call(b'{"call_id":"a"', b'"call_id":"b"}') is None
    assert seek_call(b'{"text":"\\"call_id\\":\\"a\\""', b"") is None


def test_what_was_left_out_stays_out() -> None:
    assert json.loads(frame(Result("c", "succeeded")))["payload"] == {
        "call_id": "c",
        "status": "succeeded",
    }
    assert Result("c", "succeeded").output is NOTHING
