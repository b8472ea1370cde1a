"""The codecs: what it costs to read a frame, route it and pass it on.

The base of a small frame is `orjson.loads` and `orjson.dumps` of the same frame, which decide
nothing and would pass two equal keys on. The base of a large one is what cannot be avoided:
one scan that finds it valid and one copy.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from benchmarks import report
from benchmarks.harness import (
    FULL_ROUNDS,
    QUICK_ROUNDS,
    Contender,
    Ready,
    Result,
    Target,
    compare,
)
from callgate.protocol import mcp, mcp_encode, runtime
from callgate.protocol.framing import Lines
from callgate.protocol.jsonrpc import Response, encode_response
from callgate.protocol.runtime_table import Call
from callgate.protocol.runtime_table import Result as ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Work = Callable[[bytes], Any]

LANES = {"search_documents": "a lane"}
ARGUMENTS = {
    "query": "the quick brown fox jumps over the lazy dog",
    "limit": 10,
    "tags": ["a", "b"],
    "exact": True,
}
PARAMS: dict[str, Any] = {"name": "search_documents", "arguments": ARGUMENTS}
REQUEST = {"jsonrpc": "2.0", "id": 12, "method": "tools/call"}
ERA = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "client", "version": "1.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

CALL = orjson.dumps({**REQUEST, "params": PARAMS})
SPACED = json.dumps({**REQUEST, "params": PARAMS}).encode()
WITH_TOKEN = orjson.dumps({**REQUEST, "params": {**PARAMS, "_meta": {"progressToken": 7}}})
STATELESS = orjson.dumps({**REQUEST, "params": {**PARAMS, "_meta": ERA}})
ANSWER = orjson.dumps(
    {"jsonrpc": "2.0", "id": 12, "result": {"content": [{"type": "text", "text": "x" * 120}]}}
)
TS = "2026-01-16T12:00:00Z"
OUTPUT = msgspec.Raw(orjson.dumps({"hits": ["a", "b", "c"], "text": "x" * 60}))
RUNTIME_ANSWER = runtime.encode(
    ToolResult("call-12", "succeeded", OUTPUT), "m-12", TS, request_id="r-12"
)[4:]

MEGABYTE = 1_000_000
TEXT = {"text": "y" * MEGABYTE}
ROWS = {"rows": [{"number": i, "text": f"row {i}"} for i in range(MEGABYTE // 28)]}
READ_BYTES = 65_536

TARGETS = (
    Target("a 200-byte call: read, route, pass on", "call", "orjson-call", 2.5),
    Target("a 1 MB argument that is text", "text", "scan-text", 1.5),
    Target("a 1 MB argument of many objects", "rows", "scan-rows", 1.5),
)


def large(arguments: dict[str, Any]) -> bytes:
    """A call with these arguments."""
    return orjson.dumps({**REQUEST, "params": {"name": "search_documents", "arguments": arguments}})


def by_orjson(frame: bytes) -> bytes:
    """Decode everything and encode it again."""
    return orjson.dumps(orjson.loads(frame))


def call(frame: bytes) -> bytes:
    """Read, find the lane, pass on under our id."""
    message = mcp.decode(frame)
    assert isinstance(message, mcp.CallTool)
    LANES[message.name]
    return mcp_encode.encode_call(message, 4711, None if message.token is None else 4711)


def answer(frame: bytes) -> bytes:
    """Read, pass on under the caller's id."""
    message = mcp.decode(frame)
    assert isinstance(message, Response)
    return encode_response(12, message)


def runtime_answer(frame: bytes) -> str:
    """Read the result of a runtime agent, typed."""
    body = runtime.decode(frame, "agent").body
    assert isinstance(body, ToolResult)
    return body.call_id


def runtime_call(_: bytes) -> bytes:
    """Write a call to a runtime agent."""
    body = Call("call-12", "web/search_documents", OUTPUT, 5000)
    return runtime.encode(body, "m-12", TS, request_id="r-12", correlation_id="c-12")


_scan = msgspec.json.Decoder(msgspec.Raw).decode


def scan_and_copy(frame: bytes) -> bytearray:
    """One scan, one copy."""
    _scan(frame)
    if not frame.isascii():
        frame.decode()
    return bytearray(frame)


def split(read: bytes) -> int:
    """Cut one read into lines; counted by the line, not by the read."""
    return len(Lines(4_194_304).feed(read))


@asynccontextmanager
async def repeated(work: Work, frame: bytes) -> AsyncIterator[Ready]:
    """The same frame again and again."""

    async def batch(calls: int) -> None:
        for _ in range(calls):
            work(frame)

    work(frame)
    yield Ready(batch)


def contender(key: str, title: str, does: str, lacks: str, work: Work, frame: bytes) -> Contender:
    """One line of the table."""
    return Contender(key, title, does, lacks, partial(repeated, work, frame))


def contenders() -> list[Contender]:
    """All of them."""
    plain = "every check: keys, ids, UTF-8, depth; arguments stay raw."
    nothing = "any check."
    read = CALL + b"\n"
    read *= READ_BYTES // len(read)
    text, rows = large(TEXT), large(ROWS)
    return [
        contender("orjson-call", "orjson, call", "loads and dumps.", nothing, by_orjson, CALL),
        contender("call", "call", f"Reads, routes, passes on; {plain}", "", call, CALL),
        contender("spaced", "call, json.dumps' blanks", "The same.", "", call, SPACED),
        contender(
            "token", "call, progress token", "The same, token remapped.", "", call, WITH_TOKEN
        ),
        contender("era", "call, era 2026-07-28", "The same.", "", call, STATELESS),
        contender("walk", "call, by the walk", "Reads without the shortcut.", "", walk, CALL),
        contender(
            "orjson-answer", "orjson, answer", "loads and dumps.", nothing, by_orjson, ANSWER
        ),
        contender("answer", "answer", f"Reads, passes on; {plain}", "", answer, ANSWER),
        contender(
            "runtime-answer", "runtime answer", "Reads, typed.", "", runtime_answer, RUNTIME_ANSWER
        ),
        contender("runtime-call", "runtime call", "Writes.", "", runtime_call, b""),
        contender(
            "split",
            f"64 KiB read, {len(read) // (len(CALL) + 1)} lines",
            "Cuts it into lines.",
            "decoding.",
            split,
            read,
        ),
        contender("scan-text", "1 MB text", "One scan, one copy.", nothing, scan_and_copy, text),
        contender("text", "1 MB text, call", "As call.", "", call, text),
        contender("scan-rows", "1 MB rows", "One scan, one copy.", nothing, scan_and_copy, rows),
        contender("rows", "1 MB rows, call", "As call.", "", call, rows),
    ]


def walk(frame: bytes) -> mcp.Message:
    """What the shortcut saves."""
    return mcp._decode_slowly(frame)  # noqa: SLF001


async def measure(rounds: int) -> Result:
    """Run the comparison."""
    return await compare(
        "codec",
        "Codecs: the cost of a frame",
        contenders(),
        base="orjson-call",
        rounds=rounds,
        targets=TARGETS,
    )


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    parser = report.arguments("the cost of a frame")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(argv)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    return report.emit(asyncio.run(measure(rounds)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
