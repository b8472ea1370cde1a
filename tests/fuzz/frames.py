"""Frames to throw at the codecs: a grammar's, and what is left of them after mutation."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from msgspec import Raw

from callgate.protocol import runtime
from callgate.protocol.runtime_table import (
    Body,
    Call,
    Error,
    Heartbeat,
    Hello,
    Offer,
    Register,
    Result,
    Stream,
    Tool,
)
from tests.protocol.corpus import Corpus

TOKENS: Final = (
    *(b'"id":', b'"name":', b'"method":', b'"params":', b'"jsonrpc":"2.0",', b'"payload":'),
    *(b'"call_id":"c"', b'"v":1', b"null", b"true", b"1e999", b"-0", b"NaN", b"9007199254740993"),
    *(b"\\u0000", b"\\ud800", b"\\u006e", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b"\r",
        b"\t",
        b" ",
        b"\x00",
        b"\xe2\x80\xa8",
    ),
    *(b"[" * 2000, b'{"a":' * 2000, b"," * 100, b'"x":1,' * 200, b"1" * 5000, b"\\" * 99),
)
MEMBERS: Final = (
    *(b'"id":2,', b'"name":"x",', b'"method":"ping",', b'"params":{},', b'"_meta":{},'),
    *(b'"ID":1,', b'"x":[{}],', b'"input":[],', b'"result":{},', b'"error":null,', b'"task":{},'),
    *(b'"callgate/timeout_ms":-1,', b'"progressToken":null,', b'"tools":1,', b'"requestId":[],'),
    b"".join(b'"x%d":1,' % number for number in range(200)),
)
"""What may stand after an opening brace."""

VALUES: Final = (b"null", b"[]", b"{}", b"0", b"-1", b"1.5", b"true", b'""', b'"x"', b'"\\u0000"')

METHODS: Final = (
    *("initialize", "ping", "tools/list", "resources/read", "notifications/cancelled"),
    *("notifications/progress", "notifications/message", "sampling/createMessage"),
)
PARAMS: Final[tuple[dict[str, Any] | None, ...]] = (
    None,
    {},
    {"requestId": 1, "reason": "r"},
    {"progressToken": "t", "progress": 0.5, "message": "m"},
    {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}},
    {"uri": "x:y", "_meta": {"progressToken": 3, "callgate/timeout_ms": 5}},
    {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "a": [1, {"b": None}]}},
)
BODIES: Final[tuple[Body, ...]] = (
    Hello("token", "a", "1", Offer((1, 2), ("tools",))),
    Register((Tool("a/t", "t", "d", Raw(b'{"type":"object"}')), Tool("a/u", "u", "", Raw(b"{}")))),
    Stream("c", 3, "partial_result", Raw(b'{"json":{"x":[1,2]}}')),
    Result("c", "succeeded", Raw(b'{"hits":["a"]}'), metrics=Raw(b'{"ms":1}')),
    Result("c", "failed", error=Error("tool.failed", "no", Raw(b"{}"), retryable=True)),
    Heartbeat("s", 12, 1, "ok"),
    Call("c", "a/t", Raw(b'{"q":"x"}'), 500),
)


class Frames:
    """An endless source; the same seed gives the same frames."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # frames, not keys
        self._calls = Corpus(seed)

    def mcp(self) -> bytes:
        """A frame of the grammar."""
        kind = self._random.random()
        if kind < 0.6:
            return self._calls.frame()
        own_id = self._random.choice((1, "a", -5, 0))
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": own_id}
        if kind < 0.8:
            method = self._random.choice(METHODS)
            params = self._random.choice(PARAMS)
            if method.startswith("notifications"):
                del message["id"]
            message |= (
                {"method": method} if params is None else {"method": method, "params": params}
            )
        elif kind < 0.95:
            content = [{"type": "text", "text": "x" * self._random.randrange(200)}]
            message["result"] = {"content": content, "isError": kind < 0.9}
        else:
            message["error"] = {"code": -32000, "message": "no"}
        return self._written(message)

    def runtime(self) -> bytes:
        """A frame of the grammar, without its length."""
        body = self._random.choice(BODIES)
        frame = runtime.encode(body, "m", "2026-01-16T12:00:00Z", request_id="r")[4:]
        return frame if self._random.random() < 0.7 else self._written(json.loads(frame))

    def _written(self, value: Any) -> bytes:
        separators = self._random.choice(((",", ":"), (", ", ": ")))
        return json.dumps(value, separators=separators).encode()

    def mutated(self, frame: bytes, other: bytes) -> bytes:
        """A frame after one to three strokes; half of them leave JSON what was JSON."""
        draw = self._random.random
        for _ in range(1 + int(draw() * 3)):
            place = int(draw() * (len(frame) + 1))
            if draw() < 0.5:
                frame = self._broken(frame, place, other)
            elif draw() < 0.5:
                start = frame.rfind(b"{", 0, place + 1) + 1
                frame = frame[:start] + MEMBERS[int(draw() * len(MEMBERS))] + frame[start:]
            else:
                start = frame.rfind(b":", 0, place + 1) + 1
                value = VALUES[int(draw() * len(VALUES))]
                frame = frame[:start] + value + frame[_value_end(frame, start) :]
        return frame

    def _broken(self, frame: bytes, place: int, other: bytes) -> bytes:
        draw = self._random.random
        match int(draw() * 6):
            case 0:
                return frame[:place] + bytes((int(draw() * 256),)) + frame[place + 1 :]
            case 1:
                return frame[:place] + frame[place + 1 + int(draw() * 8) :]
            case 2:
                return frame[:place] + TOKENS[int(draw() * len(TOKENS))] + frame[place:]
            case 3:
                end = place + int(draw() * 40)
                return frame[:end] + frame[place:end] + frame[end:]
            case 4:
                return frame[:place] + other[int(draw() * len(other)) :]
            case _:
                return frame[:place]


def _value_end(frame: bytes, start: int) -> int:
    """Where a value may end: right for numbers, words, short strings and last members."""
    if frame[start : start + 1] in (b"{", b"["):
        return len(frame) - 1
    ends = [end for end in (frame.find(b",", start), frame.find(b"}", start)) if end >= 0]
    return min(ends, default=len(frame))
