"""Malformed input that an agent must survive. Pure."""

from __future__ import annotations

from typing import Final

_DEEP: Final = 100_000

NOT_JSON: Final[dict[str, bytes]] = {
    "not JSON": b"this is not JSON",
    "truncated": b'{"jsonrpc":"2.0","id":1,"method":"to',
    "a number": b"1",
    "null": b"null",
    "a string": b'"hello"',
    "an empty array": b"[]",
    "an empty object": b"{}",
    "invalid UTF-8": b'{"x":"\xff\xfe"}',
    "overlong UTF-8": b'{"x":"\xc0\x80"}',
    "a NUL byte": b'{"x":"\x00"}',
    "a byte order mark": b'\xef\xbb\xbf{"x":1}',
    "NaN": b'{"x":NaN}',
    "a lone surrogate": b'{"x":"\\ud800"}',
    "a huge number": b'{"x":' + b"9" * 5000 + b"}",
    "two values": b"{} {}",
    "a deep array": b"[" * _DEEP + b"]" * _DEEP,
    "a deep object": b'{"x":' * _DEEP + b"1" + b"}" * _DEEP,
    "a megabyte of text": b'{"x":"' + b"y" * 1_000_000 + b'"}',
}


def _rpc(rest: bytes) -> bytes:
    return b'{"jsonrpc":"2.0",' + rest + b"}"


MCP: Final[dict[str, bytes]] = {
    "a blank line": b"",
    **NOT_JSON,
    "a batch": b"[" + _rpc(b'"id":"b1","method":"ping"') + b"]",
    "no version": b'{"id":"m1","method":"ping"}',
    "another version": b'{"jsonrpc":"1.0","id":"m2","method":"ping"}',
    "an id of null": _rpc(b'"id":null,"method":"ping"'),
    "an id of true": _rpc(b'"id":true,"method":"ping"'),
    "an id of 1.5": _rpc(b'"id":1.5,"method":"ping"'),
    "an id that is an object": _rpc(b'"id":{},"method":"ping"'),
    "a method that is a number": _rpc(b'"id":"m3","method":5'),
    "neither method nor result": _rpc(b'"id":"m4"'),
    "params that are an array": _rpc(b'"id":"m5","method":"tools/call","params":[1]'),
    "a call without a name": _rpc(b'"id":"m6","method":"tools/call","params":{}'),
    "a tool name that is a number": _rpc(b'"id":"m7","method":"tools/call","params":{"name":1}'),
    "arguments that are an array": _rpc(
        b'"id":"m8","method":"tools/call","params":{"name":"x","arguments":[]}'
    ),
    "a key twice": _rpc(b'"id":"m9","id":"m10","method":"no/such/method"'),
    "an unknown notification": _rpc(b'"method":"notifications/no_such_thing"'),
    "a cancel of nothing": _rpc(
        b'"method":"notifications/cancelled","params":{"requestId":"never sent"}'
    ),
    "a cancel without an id": _rpc(b'"method":"notifications/cancelled","params":{}'),
    "an answer to nothing": _rpc(b'"id":"never asked","result":{}'),
}
"""One line each."""


def _frame(rest: bytes) -> bytes:
    return b'{"ts":"2026-01-16T12:00:00Z",' + rest + b"}"


RUNTIME: Final[dict[str, bytes]] = {
    "an empty frame": b"",
    **NOT_JSON,
    "a batch": b"[{}]",
    "no version": _frame(b'"type":"core.ping","id":"m1","payload":{}'),
    "another version": _frame(b'"v":2,"type":"core.ping","id":"m2","payload":{}'),
    "a version that is text": _frame(b'"v":"1","type":"core.ping","id":"m3","payload":{}'),
    "no type": _frame(b'"v":1,"id":"m4","payload":{}'),
    "an unknown type": _frame(b'"v":1,"type":"core.no_such_thing","id":"m5","payload":{}'),
    "an id of null": _frame(b'"v":1,"type":"core.ping","id":null,"payload":{}'),
    "no payload": _frame(b'"v":1,"type":"core.ping","id":"m6"'),
    "a payload that is an array": _frame(b'"v":1,"type":"core.ping","id":"m7","payload":[]'),
    "a call of nothing": _frame(b'"v":1,"type":"core.tool.call","id":"m8","payload":{}'),
    "an input that is an array": _frame(
        b'"v":1,"type":"core.tool.call","id":"m9",'
        b'"payload":{"call_id":"never","tool_id":"x/y","input":[]}'
    ),
    "a cancel of nothing": _frame(
        b'"v":1,"type":"core.tool.cancel","id":"m10","payload":{"call_id":"never sent"}'
    ),
    "a cancel without an id": _frame(b'"v":1,"type":"core.tool.cancel","id":"m11","payload":{}'),
    "a message of its own side": _frame(b'"v":1,"type":"agent.pong","id":"m12","payload":{}'),
}
"""One frame each, without its length."""
