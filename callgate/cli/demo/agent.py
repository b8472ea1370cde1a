"""A rogue MCP server, for the demonstration: some tools behave, most do not.

Standard library only, one thread a call, as a hasty author would write it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TOOLS = ("search", "slow", "hang", "flood", "noise", "crash", "hog", "cancelled", "delete_all")
FLOOD_BYTES = 2 * 1024 * 1024
HOG_BYTES = 512 * 1024 * 1024
HOG_STEP_BYTES = 8 * 1024 * 1024

_write = threading.Lock()
_cancelled: dict[Any, threading.Event] = {}
_seen: list[Any] = []


def say(message: dict[str, Any]) -> None:
    """One line on stdout."""
    with _write:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(value: str) -> dict[str, Any]:
    """A tool's result."""
    return {"content": [{"type": "text", "text": value}]}


def hog() -> str:
    """Take memory and keep it."""
    kept: list[bytearray] = []
    while len(kept) * HOG_STEP_BYTES < HOG_BYTES:
        kept.append(bytearray(os.urandom(1) * HOG_STEP_BYTES))
        time.sleep(0.02)
    return "got it all"


def hang(stop: threading.Event) -> str:
    """Answer nobody, unless cancelled."""
    stop.wait(60)
    return "still here"


def noise() -> str:
    """Print what does not belong on stdout."""
    with _write:
        sys.stdout.write("DEBUG: entering handler\n\x00{not json\n")
    return "said it all"


def crash() -> str:
    """Take everybody along."""
    time.sleep(0.1)
    os._exit(3)


def slow() -> str:
    """Take a while."""
    time.sleep(0.3)
    return "done at last"


def run(tool: str, arguments: dict[str, Any], stop: threading.Event) -> str:
    """What each tool does."""
    tools: dict[str, Callable[[], str]] = {
        "search": lambda: f"a page about {arguments.get('query')}",
        "slow": slow,
        "hang": lambda: hang(stop),
        "flood": lambda: "x" * FLOOD_BYTES,
        "noise": noise,
        "crash": crash,
        "hog": hog,
        "cancelled": lambda: str(len(_seen)),
        "delete_all": lambda: "gone",
    }
    return tools[tool]()


def call(message: dict[str, Any]) -> None:
    """Answer one call, unless it was cancelled."""
    stop = _cancelled[message["id"]] = threading.Event()
    params = message["params"]
    result = run(params["name"], params.get("arguments", {}), stop)
    if not stop.is_set():
        say({"id": message["id"], "result": text(result)})


def handle(message: dict[str, Any]) -> None:
    """One message of the client."""
    method, own_id = message.get("method"), message.get("id")
    if method == "notifications/cancelled":
        cancelled = message["params"]["requestId"]
        _seen.append(cancelled)
        if cancelled in _cancelled:
            _cancelled[cancelled].set()
    elif method == "tools/call":
        threading.Thread(target=call, args=(message,), daemon=True).start()
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
        say({"id": own_id, "result": {"tools": tools}})
    elif method == "initialize":
        info = {"name": "rogue", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        say({"id": own_id, "result": {**result, "serverInfo": info}})
    elif own_id is not None:
        say({"id": own_id, "result": {}})


def main() -> None:
    """Serve stdin until its end."""
    for line in sys.stdin:
        handle(json.loads(line))


if __name__ == "__main__":
    main()
