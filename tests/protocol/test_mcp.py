from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from callgate.errors import PolicyDenied
from callgate.protocol import mcp, mcp_encode
from callgate.protocol.jsonrpc import Response
from callgate.protocol.mcp import CallTool, Cancelled, Notification, Progress, Request
from callgate.protocol.problem import ProtocolError, Reason

ERA = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def call(params: str | dict[str, Any], own_id: str = "7") -> bytes:
    text = params if isinstance(params, str) else compact(params).decode()
    return f'{{"jsonrpc":"2.0","id":{own_id},"method":"tools/call","params":{text}}}'.encode()


def refused(frame: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        mcp.decode(frame)
    return caught.value


def read(frame: bytes) -> CallTool:
    message = mcp.decode(frame)
    assert isinstance(message, CallTool)
    return message


class TestShortcut:
    """The shortcut says what the walk says, or nothing."""

    blanks = st.sampled_from(["", "", "", " ", "\t", "\r", "\n"])
    keys = st.sampled_from(
        [
            "jsonrpc",
            "id",
            "method",
            "params",
            "result",
            "error",
            "name",
            "arguments",
            "_meta",
            "Name",
            "name\\u0000",
            "na\\u006de",
            "ID",
            "x",
            "progressToken",
            "task",
            "requestId",
            "callgate/timeout_ms",
            "é",
        ]
    )
    scalars = st.sampled_from(
        [
            "1",
            "-0",
            "1.5",
            "null",
            "true",
            '"2.0"',
            '"tools/call"',
            '"a"',
            '"\\u0061"',
            '""',
            '"é"',
            '"notifications/cancelled"',
            "9007199254740993",
            '"\\ud800"',
            "NaN",
        ]
    )

    @staticmethod
    def written(pairs: list[tuple[str, str]], blank: str) -> str:
        members = f",{blank}".join(f'"{key}":{blank}{value}' for key, value in pairs)
        return "{" + members + "}"

    objects = st.builds(written, st.lists(st.tuples(keys, scalars), max_size=4), blanks)
    nested = st.builds(written, st.lists(st.tuples(keys, scalars | objects), max_size=4), blanks)
    good = st.tuples(
        st.just(("jsonrpc", '"2.0"')),
        st.tuples(st.just("id"), st.sampled_from(["1", '"a"', '"é"', "null", "1.0"])),
        st.one_of(
            st.tuples(
                st.just(("method", '"tools/call"')),
                st.tuples(
                    st.just("params"),
                    st.builds(
                        written,
                        st.tuples(
                            st.just(("name", '"a"')),
                            st.just(("arguments", '{"x":[1]}')),
                            st.tuples(st.just("_meta"), objects),
                        ).flatmap(lambda pairs: st.permutations(pairs).map(lambda p: p[:3])),
                        blanks,
                    ),
                ),
            ),
            st.tuples(st.tuples(st.just("result"), objects)),
        ),
    ).map(lambda parts: [parts[0], parts[1], *parts[2]])
    frames = st.builds(
        lambda pairs, extra, blank: TestShortcut.written(pairs + extra, blank).encode(),
        good.flatmap(st.permutations),
        st.lists(st.tuples(keys, scalars | nested), max_size=1),
        blanks,
    )

    @staticmethod
    def outcome(decode: Any, frame: bytes) -> Any:
        try:
            return decode(frame)
        except ProtocolError as error:
            return error.reason, error.id, error.is_response

    @given(frames)
    @example(call('{"name":"a","arguments":{}}'))
    @example(json.dumps(json.loads(call('{"name":"a","arguments":{}}'))).encode())
    def test_it_agrees_with_the_walk(self, frame: bytes) -> None:
        assert self.outcome(mcp.decode, frame) == self.outcome(mcp._decode_slowly, frame)

    @pytest.mark.parametrize(
        "frame",
        [
            call('{"name":"a","arguments":{"x":1}}'),
            json.dumps(json.loads(call('{"name":"a","arguments":{"x":1}}'))).encode(),
            call({"name": "a", "arguments": {"x": 1}, "_meta": {"progressToken": 3}}),
            call({"name": "a", "arguments": {"x": 1}, "_meta": ERA}),
            call('{"name":"a","arguments":{"x":"é"}}'),
            b'{"params":{"arguments":{},"name":"a"},"method":"tools/call","id":1,"jsonrpc":"2.0"}',
            b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}',
            b'{"jsonrpc": "2.0", "id": 1, "result": {"content": []}}',
        ],
    )
    def test_it_takes_what_clients_and_servers_write(
        self, frame: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = mcp._decode_slowly(frame)
        monkeypatch.delattr(mcp, "_decode_slowly")

        assert mcp.decode(frame) == expected

    @pytest.mark.parametrize(
        "frame",
        [
            # As many characters as json.dumps would have put in blanks.
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"","name":"a","arguments":1}}',
            b'{"jsonrpc": "2.0", "id": 1, "result": {},"id":2}',
            b'{"jsonrpc":"2.0","id":1,"id":2,"result":{}}',
            b'{"jsonrpc":"2.0","result":1,"id":1,"id":21}',
        ],
    )
    def test_a_double_key_as_long_as_the_blanks_is_found(self, frame: bytes) -> None:
        assert refused(frame).reason == Reason.DUPLICATE_KEY


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"\xa6"}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"\xff","arguments":{}}}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":"\xff"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","\xff":"a"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"_meta":{"progressToken":"\xff"}}}',
    ],
)
def test_bytes_that_are_no_text_are_refused_wherever_they_stand(frame: bytes) -> None:
    error = refused(frame)

    assert (error.reason, error.id) == (Reason.UTF8, 7)


@pytest.mark.parametrize("brk", [b"\n", b"\r", b"\r\n"])
def test_a_frame_within_a_frame_is_never_passed_on_as_a_line_of_its_own(brk: bytes) -> None:
    inner = call('{"name":"denied"}', "8")
    frame = call('{"name":"a","arguments":{"x":1}}').replace(
        b":1}", b":" + brk + inner + brk + b"}"
    )

    line = mcp_encode.encode_call(read(frame), 5)

    assert inner in line
    assert line.count(b"\r") == 0
    assert line.count(b"\n") == 1


def test_a_call_that_nobody_could_be_answered_is_refused() -> None:
    frame = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a","arguments":{}}}'

    assert refused(frame).reason == Reason.ID


@pytest.mark.parametrize("method", ["TOOLS/CALL", "tools/call\\u0000", "Initialize", " tools/list"])
def test_a_method_that_resembles_one_of_ours_is_refused(method: str) -> None:
    error = refused(f'{{"jsonrpc":"2.0","id":7,"method":"{method}"}}'.encode())

    assert (error.reason, error.id) == (Reason.METHOD, 7)


def test_a_call_is_read() -> None:
    frame = call(
        {
            "name": "search",
            "arguments": {"q": [1, {"a": "b"}]},
            "_meta": {"progressToken": "t", "callgate/timeout_ms": 500, "x/y": {"z": 1}},
            "inputResponses": {"k": 1},
            "task": {"ttl": 5},
        },
        '"id-1"',
    )

    message = read(frame)

    assert message == CallTool(
        id="id-1",
        name="search",
        arguments=Raw(b'{"q":[1,{"a":"b"}]}'),
        token="t",  # noqa: S106
        timeout_ms=500,
        raw_meta=Raw(b'{"progressToken":"t","callgate/timeout_ms":500,"x/y":{"z":1}}'),
        meta={"callgate/timeout_ms": Raw(b"500"), "x/y": Raw(b'{"z":1}')},
        extra={"inputResponses": Raw(b'{"k":1}'), "task": Raw(b'{"ttl":5}')},
    )
    assert message.is_task
    assert not message.is_stateless


def test_a_call_of_the_stateless_era_is_told_from_others() -> None:
    assert read(call({"name": "a", "arguments": {}, "_meta": ERA})).is_stateless
    assert not read(call({"name": "a", "arguments": {}})).is_stateless


def test_arguments_are_never_decoded() -> None:
    arguments = '{"a":1,"a":2,"x":1e999,"y":123456789012345678901234567890}'

    assert (
        bytes(read(call(f'{{"name":"a","arguments":{arguments}}}')).arguments) == arguments.encode()
    )


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ("{}", Reason.TOOL_NAME),
        ("null", Reason.TOOL_NAME),
        ('{"name":null,"arguments":{}}', Reason.TOOL_NAME),
        ('{"name":1,"arguments":{}}', Reason.TOOL_NAME),
        ('{"name":"","arguments":{}}', Reason.TOOL_NAME),
        ("[]", Reason.PARAMS),
        ('{"name":"a","name":"b"}', Reason.DUPLICATE_KEY),
        ('{"name":"a","arguments":{},"arguments":{}}', Reason.DUPLICATE_KEY),
        ('{"name":"a","n\\u0061me":"b"}', Reason.DUPLICATE_KEY),
        ('{"name":"a","Name":"b"}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","NAME":"b"}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","name\\u0000":"b"}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","name\\u0000\\u0000x":"b"}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","\\u000bname ":"b"}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","\uff4eame":"b"}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","ta\u017fk":{}}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","Arguments":{}}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","_META":{}}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","' + "\\u0000" * 100 + 'name":"b"}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","_meta":1}', Reason.META),
        ('{"name":"a","_meta":[]}', Reason.META),
        ('{"name":"a","_meta":{"x":"' + "y" * 65_536 + '"}}', Reason.META),
        ('{"name":"a","_meta":{"progressToken":[]}}', Reason.PROGRESS_TOKEN),
        ('{"name":"a","_meta":{"progressToken":1,"progressToken":2}}', Reason.DUPLICATE_KEY),
        ('{"name":"a","_meta":{"ProgressToken":2}}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","_meta":{"callgate/timeout_ms":0}}', Reason.TIMEOUT),
        ('{"name":"a","_meta":{"callgate/timeout_ms":-5}}', Reason.TIMEOUT),
        ('{"name":"a","_meta":{"callgate/timeout_ms":9007199254740993}}', Reason.TIMEOUT),
        ('{"name":"a","_meta":{"callgate/timeout_ms":true}}', Reason.TIMEOUT),
        ('{"name":"a","_meta":{"callgate/timeout_ms":1.5}}', Reason.TIMEOUT),
        ('{"name":"a","_meta":{"callgate/timeout_ms":"5"}}', Reason.TIMEOUT),
        ('{"name":"a","_meta":{"Callgate/Timeout_MS":5}}', Reason.LOOKALIKE_KEY),
        ('{"name":"a","_meta":null,"arguments":null}', None),
    ],
)
def test_params_that_readers_take_differently_are_refused(
    params: str, reason: Reason | None
) -> None:
    frame = call(params)
    if reason is None:
        assert read(frame).name == "a"
        return

    error = refused(frame)

    assert (error.reason, error.id, error.is_response) == (reason, 7, False)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ('{"name":"a","name":"b","arguments":%s}', Reason.DUPLICATE_KEY),
        ('{"name":"a","arguments":%s,"Name":"b"}', Reason.LOOKALIKE_KEY),
        ('{"arguments":%s,"name":"a","arguments":{}}', Reason.DUPLICATE_KEY),
        ('{"arguments":%s,"name":""}', Reason.TOOL_NAME),
    ],
)
def test_a_large_frame_is_no_way_around(params: str, reason: Reason) -> None:
    arguments = json.dumps({"x": "y" * 100_000})

    assert refused(call(params % arguments)).reason == reason


def test_what_a_client_says_of_itself_is_read_once_and_keeps_no_frame() -> None:
    params = {"name": "a", "arguments": {"x": "y" * 1000}, "_meta": ERA | {"one": "of its own"}}
    frame = call(params)
    references = sys.getrefcount(frame)
    first, second = read(frame).meta, read(call(params)).meta

    assert first is second
    assert first == {key: Raw(compact(value)) for key, value in params["_meta"].items()}  # type: ignore[attr-defined]
    assert sys.getrefcount(frame) == references


def test_what_differs_in_each_request_is_not_remembered() -> None:
    remembered = mcp._read_same_meta.cache_info()

    read(call({"name": "a", "arguments": {}, "_meta": ERA | {"progressToken": 41}}))

    assert mcp._read_same_meta.cache_info() == remembered


def test_the_trace_context_is_found_whatever_it_holds() -> None:
    meta = {"traceparent": "00-x", "baggage": "a=b", "tracestate": 5, "other": "c"}

    assert read(call({"name": "a", "_meta": meta})).trace() == {
        "traceparent": "00-x",
        "baggage": "a=b",
    }
    assert read(call({"name": "a"})).trace() == {}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a","reason":"r"}}',
            Cancelled("a", {"requestId": Raw(b'"a"'), "reason": Raw(b'"r"')}),
        ),
        (
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":4,"progress":0.5}}',
            Progress(4, {"progressToken": Raw(b"4"), "progress": Raw(b"0.5")}),
        ),
        (
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
            Notification("notifications/initialized"),
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}',
            Request(1, "initialize", {"protocolVersion": Raw(b'"2025-11-25"')}),
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":2,"a":1}}}',
            Request(
                1,
                "x",
                {"_meta": Raw(b'{"progressToken":2,"a":1}')},
                2,
                Raw(b'{"progressToken":2,"a":1}'),
                {"a": Raw(b"1")},
            ),
        ),
    ],
)
def test_other_messages_are_read(frame: bytes, message: object) -> None:
    assert mcp.decode(frame) == message


@pytest.mark.parametrize(
    ("params", "method", "reason"),
    [
        ("{}", "cancelled", Reason.ID),
        ('{"requestId":{}}', "cancelled", Reason.ID),
        ('{"requestId":1,"requestid":2}', "cancelled", Reason.LOOKALIKE_KEY),
        ("{}", "progress", Reason.PROGRESS_TOKEN),
        ('{"progressToken":[]}', "progress", Reason.PROGRESS_TOKEN),
    ],
)
def test_a_notification_of_nothing_in_particular_is_refused(
    params: str, method: str, reason: Reason
) -> None:
    error = refused(
        f'{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}'.encode()
    )

    assert (error.reason, error.id) == (reason, None)


class TestPassingOn:
    def again(self, line: bytes) -> Any:
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        return json.loads(line)

    @pytest.mark.parametrize("own", [json.dumps, compact])
    def test_a_plain_call_gets_our_id(self, own: Any) -> None:
        text = own(json.loads(call({"name": 'tö"ol', "arguments": {"a": [1.50]}})))
        message = read(text if isinstance(text, bytes) else text.encode())

        assert self.again(mcp_encode.encode_call(message, 99)) == {
            "jsonrpc": "2.0",
            "id": 99,
            "method": "tools/call",
            "params": {"name": 'tö"ol', "arguments": {"a": [1.5]}},
        }

    def test_arguments_and_unknown_members_are_passed_on_byte_for_byte(self) -> None:
        message = read(
            call('{"name":"a","arguments":{"a" : 1.50},"x":{"y" :2e5},"task":{},"_meta":{"z" : 1}}')
        )

        line = mcp_encode.encode_call(message, 1)

        assert b'"arguments":{"a" : 1.50}' in line
        assert b'"x":{"y" :2e5}' in line
        assert b'"_meta":{"z" : 1}' in line
        assert self.again(line)["params"]["task"] == {}

    def test_a_call_without_arguments_gets_none(self) -> None:
        line = mcp_encode.encode_call(read(call('{"name":"a"}')), 1)

        assert self.again(line)["params"] == {"name": "a"}

    @pytest.mark.parametrize(
        ("meta", "token", "sent"),
        [
            ({"progressToken": "t"}, 5, {"progressToken": 5}),
            ({"progressToken": 1}, None, {}),
            ({"progressToken": 1, "x": [2]}, 5, {"progressToken": 5, "x": [2]}),
            ({"progressToken": 1, "x": [2]}, None, {"x": [2]}),
            (ERA, None, ERA),
            (ERA | {"progressToken": 0}, 5, ERA | {"progressToken": 5}),
        ],
    )
    def test_the_progress_token_is_ours(
        self, meta: dict[str, Any], token: int | None, sent: dict[str, Any]
    ) -> None:
        message = read(call({"name": "a", "arguments": {}, "_meta": meta}))

        line = mcp_encode.encode_call(message, 1, token)

        assert self.again(line)["params"]["_meta"] == sent

    @pytest.mark.parametrize("meta", [None, {}, {"progressToken": 1, "tracestate": "old", "x": 1}])
    def test_remaining_time_and_trace_replace_the_callers(
        self, meta: dict[str, Any] | None
    ) -> None:
        params = {"name": "a", "arguments": {}} | ({} if meta is None else {"_meta": meta})
        message = read(call(params))
        token = 9 if message.token is not None else None

        line = mcp_encode.encode_call(message, 1, token, 250, {"traceparent": "new"})

        kept = {"progressToken": 9, "x": 1} if meta else {}
        assert self.again(line)["params"]["_meta"] == kept | {
            "callgate/timeout_ms": 250,
            "traceparent": "new",
        }

    def test_other_requests_get_our_id_and_token(self) -> None:
        frame = {"jsonrpc": "2.0", "id": "c", "method": "resources/read"}
        params = {"uri": "x:y", "_meta": {"progressToken": 1, "k": 2}}
        with_token, without = (
            mcp.decode(compact(frame | {"params": params})),
            mcp.decode(compact(frame)),
        )
        assert isinstance(with_token, Request)
        assert isinstance(without, Request)

        assert self.again(mcp_encode.encode_request(with_token, 3, 4)) == frame | {
            "id": 3,
            "params": {"uri": "x:y", "_meta": {"progressToken": 4, "k": 2}},
        }
        assert self.again(mcp_encode.encode_request(without, 3)) == frame | {"id": 3}

    def test_notifications_are_passed_on(self) -> None:
        frame = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}}
        message = mcp.decode(compact(frame))
        assert isinstance(message, Notification)

        assert self.again(mcp_encode.encode_notification(message)) == frame
        assert self.again(mcp_encode.encode_notification(Notification("n"))) == {
            "jsonrpc": "2.0",
            "method": "n",
        }

    def test_cancel_and_progress_get_the_other_sides_names(self) -> None:
        reason = {"requestId": Raw(b"1"), "reason": Raw(b'"r"')}
        progress = {"progressToken": Raw(b"1"), "progress": Raw(b"0.50")}

        assert self.again(mcp_encode.encode_cancelled(5, reason))["params"] == {
            "requestId": 5,
            "reason": "r",
        }
        assert self.again(mcp_encode.encode_cancelled("x"))["params"] == {"requestId": "x"}
        line = mcp_encode.encode_progress("tok", progress)
        assert self.again(line)["params"] == {"progressToken": "tok", "progress": 0.5}
        assert b"0.50" in line

    def test_a_refusal_is_a_result_that_a_model_can_read(self) -> None:
        error = PolicyDenied(agent="web", tool="search")

        answer = self.again(mcp_encode.encode_refusal("é", error))

        assert answer == {
            "jsonrpc": "2.0",
            "id": "é",
            "result": {
                "content": [{"type": "text", "text": str(error)}],
                "isError": True,
                "_meta": {"callgate/error": error.as_dict()},
            },
        }

    def test_a_refusal_in_the_stateless_era_says_that_it_is_complete(self) -> None:
        answer = self.again(mcp_encode.encode_refusal(1, PolicyDenied(), stateless=True))

        assert answer["result"]["resultType"] == "complete"


def test_a_result_of_a_megabyte_is_a_view_of_its_frame() -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 1_000_000 + b'"}'

    message = mcp.decode(frame)

    assert isinstance(message, Response)
    assert memoryview(message.result).obj is not None
    assert len(message.result) == 1_000_002


def test_what_stands_beside_a_call_counts_while_it_waits() -> None:
    plain = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{}}%b}'
    small, large = mcp.decode(plain % b""), mcp.decode(plain % (b',"x":"%b"' % (b"y" * 1000)))
    assert isinstance(small, CallTool)
    assert isinstance(large, CallTool)

    assert large.kept()[1] == small.kept()[1] + 1002
