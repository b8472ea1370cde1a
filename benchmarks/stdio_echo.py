"""The server behind every contender: MCP on raw stdio, as quick as Python allows.

It reads whole reads, decodes every message with orjson, builds its answer, encodes it with
orjson, and writes all answers of a read at once. A server that does less would not be one:
it would not know what it was asked.

`echo` and the twelve tools of the mixed workload give their text back; `pid` says which process
this is, so that its memory is not counted as that of what stands in front of it.
"""

from __future__ import annotations

import os
from typing import Any

import orjson

READ_BYTES = 64 * 1024
"""What a pipe holds. Beyond 200 KB each read would cost ten times as much: a new mapping."""
NEWEST = "2025-06-18"
MIXED = (
    "read_file",
    "write_file",
    "list_directory",
    "search_code",
    "grep",
    "run_tests",
    "git_diff",
    "git_commit",
    "fetch_page",
    "query",
    "create_issue_comment",
    "ls",
)
"""The tools of the mixed workload: each echoes, under a name of its own."""
TOOLS = [
    *(
        {
            "name": name,
            "description": "Give a text back.",
            "inputSchema": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
        }
        for name in ("echo", *MIXED)
    ),
    {
        "name": "pid",
        "description": "Say which process this is.",
        "inputSchema": {"type": "object", "properties": {}},
    },
]


def call(params: dict[str, Any]) -> dict[str, Any]:
    """The result of a tool call."""
    text = str(os.getpid()) if params["name"] == "pid" else params["arguments"]["text"]
    return {"content": [{"type": "text", "text": text}]}


def other(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result of any other request, or None if there is no such method."""
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", NEWEST),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    return {} if method == "ping" else None


def answer(line: bytes) -> bytes:
    """A request's answer; of a notification nothing."""
    message = orjson.loads(line)
    if "id" not in message:
        return b""
    method = message["method"]
    if method == "tools/call":
        result: dict[str, Any] | None = call(message["params"])
    else:
        result = other(method, message.get("params") or {})
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        error = {"code": -32601, "message": "method not found"}
        return orjson.dumps({**head, "error": error}, option=orjson.OPT_APPEND_NEWLINE)
    return orjson.dumps({**head, "result": result}, option=orjson.OPT_APPEND_NEWLINE)


def write(data: bytes) -> None:
    """All of it; a pipe may take less at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main() -> None:
    """Serve until the end of stdin."""
    begun: list[bytes] = []
    while data := os.read(0, READ_BYTES):
        end = data.rfind(b"\n") + 1
        if not end:
            begun.append(data)
            continue
        lines = b"".join([*begun, data[:end]]).splitlines()
        begun = [data[end:]] if end < len(data) else []
        answers = b"".join([answer(line) for line in lines if line])
        if answers:
            write(answers)


if __name__ == "__main__":
    main()
