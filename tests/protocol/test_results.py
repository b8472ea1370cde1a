from __future__ import annotations

import json

import pytest
from msgspec import Raw

from callgate.protocol import results
from callgate.protocol.problem import ProtocolError, Reason
from callgate.protocol.results import MAX_TOOLS, ToolList

LIST = Raw(
    b'{"tools": [ {"name":"read","inputSchema":{"type" : "object"}} , {"name":"delete"} ],'
    b' "nextCursor":"c2","_meta":{"k" :1}}'
)


def test_the_names_and_the_cursor_of_a_list_are_read() -> None:
    assert results.read_tools(LIST) == ToolList(("read", "delete"), "c2")
    assert results.read_tools(Raw(b"{}")) == ToolList((), None)


def test_a_hidden_tool_is_left_out_and_all_else_stays_as_it_was() -> None:
    shown = bytes(results.without_tools(LIST, lambda name: name == "delete"))

    assert json.loads(shown) == {
        "tools": [{"name": "read", "inputSchema": {"type": "object"}}],
        "nextCursor": "c2",
        "_meta": {"k": 1},
    }
    assert b'{"type" : "object"}' in shown
    assert b'{"k" :1}' in shown


def test_a_list_without_hidden_tools_is_passed_on_untouched() -> None:
    assert results.without_tools(LIST, lambda _: False) is LIST


def test_a_list_is_read_and_offered_up_to_its_bound() -> None:
    tools = [{"name": f"t{i}"} for i in range(MAX_TOOLS + 5)]
    raw = Raw(json.dumps({"tools": tools}).encode())

    assert len(results.read_tools(raw).names) == MAX_TOOLS
    offered = json.loads(bytes(results.without_tools(raw, lambda _: False)))
    assert len(offered["tools"]) == MAX_TOOLS


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (b'{"tools":{}}', Reason.RESULT),
        (b'{"tools":[1]}', Reason.RESULT),
        (b'{"tools":[{"name":1}]}', Reason.RESULT),
        (b'{"tools":[{}]}', Reason.RESULT),
        (b'{"tools":[],"tools":[]}', Reason.DUPLICATE_KEY),
        (b'{"tools":[],"Tools":[]}', Reason.LOOKALIKE_KEY),
        (b"[]", Reason.NOT_OBJECT),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(result: bytes, reason: Reason) -> None:
    with pytest.raises(ProtocolError) as caught:
        results.read_tools(Raw(result))

    assert caught.value.reason == reason


def test_the_negotiated_version_is_read() -> None:
    result = Raw(b'{"protocolVersion":"2025-11-25","capabilities":{}}')

    assert results.negotiated_version(result) == "2025-11-25"
    assert results.negotiated_version(Raw(b"{}")) is None


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (b'{"content":[],"isError":true}', True),
        (b'{"content":[{"isError":true}],"isError":false}', False),
        (b'{"content":[]}', False),
        (b'{"isError":"yes"}', False),
        (b"null", False),
    ],
)
def test_a_failed_tool_is_told_from_one_that_worked(result: bytes, *, failed: bool) -> None:
    assert results.is_failure(Raw(result)) is failed


@pytest.mark.parametrize(
    ("result", "asked"),
    [
        (b'{"content":[],"isError":true}', True),
        (b'{"isError":true,"content":[{"type":"text","text":"EEE"}]}', True),
        (b'{"content":[],"isError":false}', False),
        (b'{"isError":true,"structuredContent":{"isError":false}}', True),
        (b'{"content":[{"type":"text","text":"EEE"}]}', False),
        (b'{"content":[]}', False),
    ],
)
def test_only_a_result_that_may_have_failed_is_read(result: bytes, *, asked: bool) -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"result":' + result + b"}"

    assert results.may_be_failure(frame) is asked
