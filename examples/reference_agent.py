"""A reference agent in one file: five honest tools and eight that misbehave on demand.

    python reference_agent.py                       MCP on stdin and stdout, both eras (--era)
    python reference_agent.py --protocol runtime    runtime protocol v1 on a socket

For the runtime protocol the socket is the descriptor CALLGATE_CHANNEL_FD or the path
CALLGATE_SOCKET, and the one-time token is CALLGATE_SESSION_TOKEN.

It needs the standard library only. One thread reads frames; each call runs in a thread of its
own, with an event that a cancel sets; a lock keeps frames whole on their way out. The tools
know neither protocol: they take a `Call` and return a dictionary or raise `Failed`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import io

VERSION = "1.0.0"
STATELESS = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
META_VERSION = "io.modelcontextprotocol/protocolVersion"
MAX_FRAME_BYTES = 4_194_304
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
MAX_SECONDS = 3600.0

Schema = dict[str, Any]


class Failed(Exception):
    """The tool failed; `code` is for programs, the text for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Cancelled(Exception):
    """The caller does not want the answer any more."""


class Call:
    """A running call, as a tool sees it."""

    def __init__(self, wire: Wire, key: Any, arguments: dict[str, Any], token: Any = None) -> None:
        self.wire = wire
        self.key = key
        self.arguments = arguments
        self.token = token
        self.cancelled = threading.Event()
        self.envelope: dict[str, Any] = {}
        self.seq = 0

    def sleep(self, seconds: float) -> None:
        """Wait, unless the call is cancelled."""
        if self.cancelled.wait(seconds):
            raise Cancelled

    def number(self, name: str, default: float, most: float) -> float:
        """A number from the arguments, within bounds."""
        value = self.arguments.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise Failed("tool.invalid_input", f"{name} must be a number from 0 to {most:g}")
        return value


# The tools.


def hello_world(call: Call) -> dict[str, Any]:
    """Greets."""
    name = call.arguments.get("name", "world")
    if not isinstance(name, str):
        raise Failed("tool.invalid_input", "name must be a string")
    return {"greeting": f"hello, {name}"}


def stream_counter(call: Call) -> dict[str, Any]:
    """Counts aloud."""
    count = int(call.number("count", 3, 100_000))
    pause_s = call.number("interval_ms", 0, 60_000) / 1000
    for number in range(1, count + 1):
        call.sleep(pause_s)
        call.seq += 1
        call.wire.stream(call, number, count)
    return {"count": count}


def sleep(call: Call) -> dict[str, Any]:
    """Sleeps until it is over or cancelled."""
    seconds = call.number("seconds", 1, MAX_SECONDS)
    call.sleep(seconds)
    return {"slept": seconds}


def invalid_input(call: Call) -> dict[str, Any]:
    """Takes an integer and nothing else."""
    value = call.arguments.get("value")
    if isinstance(value, bool) or not isinstance(value, int) or len(call.arguments) != 1:
        raise Failed("tool.invalid_input", "value must be an integer")
    return {"value": value}


def large_output(call: Call) -> dict[str, Any]:
    """Answers with as many bytes as asked for."""
    return {"data": "x" * int(call.number("bytes", 1024, MAX_OUTPUT_BYTES))}


def ignore_cancel(call: Call) -> dict[str, Any]:
    """Misbehaves: sleeps through a cancel and then answers all the same."""
    time.sleep(call.number("seconds", 1, MAX_SECONDS))
    call.cancelled.clear()
    return {"ignored": True}


def answer_twice(call: Call) -> dict[str, Any]:
    """Misbehaves: answers, and answers again."""
    call.wire.answer(call, {"answer": 1})
    return {"answer": 2}


def flood(call: Call) -> dict[str, Any]:
    """Misbehaves: sends messages that nobody asked for."""
    frames = int(call.number("frames", 10_000, 10_000_000))
    for _ in range(frames):
        call.wire.unasked()
    return {"frames": frames}


def noise(call: Call) -> dict[str, Any]:
    """Misbehaves: writes what is no message."""
    for _ in range(int(call.number("lines", 10, 1_000_000))):
        call.wire.write(b"warning: something was printed to standard output")
    return {}


def never_end_line(call: Call) -> dict[str, Any]:
    """Misbehaves: begins a message and never ends it."""
    call.wire.write_part(b"x" * int(call.number("bytes", 1024, 1 << 40) or 1))
    return {}


def crash(call: Call) -> dict[str, Any]:
    """Misbehaves: ends the process in the middle of the call."""
    number = int(call.number("signal", 0, 64))
    if number:
        os.kill(os.getpid(), number)
    os._exit(int(call.number("code", 1, 255)))


def lie_in_heartbeats(call: Call) -> dict[str, Any]:
    """Misbehaves: heartbeats stop, say `unhealthy`, or count calls that are not there."""
    how = call.arguments.get("how", "wrong")
    if how not in ("stop", "unhealthy", "wrong"):
        raise Failed("tool.invalid_input", "how must be stop, unhealthy or wrong")
    call.wire.lie(how, call.number("seconds", 5, MAX_SECONDS))
    return {"lying": how}


Tool = Callable[[Call], dict[str, Any]]


def numbers(*names: str) -> Schema:
    """The schema of a tool that takes these numbers, if any."""
    return {"type": "object", "properties": {name: {"type": "number"} for name in names}}


TOOLS: dict[str, tuple[Tool, Schema]] = {
    "hello_world": (hello_world, {"type": "object", "properties": {"name": {"type": "string"}}}),
    "stream_counter": (stream_counter, numbers("count", "interval_ms")),
    "sleep": (sleep, numbers("seconds")),
    "invalid_input": (
        invalid_input,
        {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]},
    ),
    "large_output": (large_output, numbers("bytes")),
    "ignore_cancel": (ignore_cancel, numbers("seconds")),
    "answer_twice": (answer_twice, numbers()),
    "flood": (flood, numbers("frames")),
    "noise": (noise, numbers("lines")),
    "never_end_line": (never_end_line, numbers("bytes")),
    "crash": (crash, numbers("code", "signal")),
    "lie_in_heartbeats": (
        lie_in_heartbeats,
        {"type": "object", "properties": {"how": {"type": "string"}, "seconds": {}}},
    ),
}


def description(tool: Tool) -> str:
    """What a tool says of itself."""
    return (tool.__doc__ or "").strip()


class Wire:
    """What both protocols share: whole frames out, and the calls that run."""

    def __init__(self, out: BinaryIO | io.BufferedRWPair) -> None:
        self._out = out
        self._writing = threading.Lock()
        self._calls_lock = threading.Lock()
        self.calls: dict[Any, Call] = {}

    def framed(self, data: bytes) -> bytes:
        """A frame as it goes over the wire."""
        raise NotImplementedError

    def answer(self, call: Call, output: dict[str, Any]) -> None:
        """The tool has ended well."""
        raise NotImplementedError

    def fail(self, call: Call, error: Failed) -> None:
        """The tool has failed."""
        raise NotImplementedError

    def stopped(self, call: Call) -> None:
        """The tool has obeyed a cancel."""
        raise NotImplementedError

    def stream(self, call: Call, number: int, count: int) -> None:
        """A piece of output of a running call."""
        raise NotImplementedError

    def unasked(self) -> None:
        """A valid message that nobody asked for."""
        raise NotImplementedError

    def write_part(self, data: bytes) -> None:
        """Begin a frame and never end it: nothing else gets out any more."""
        raise NotImplementedError

    def lie(self, how: str, seconds: float) -> None:
        """Tell untruths in heartbeats; a protocol without them has none to tell."""

    def write(self, data: bytes) -> None:
        """One frame."""
        with self._writing:
            self._out.write(self.framed(data))
            self._out.flush()

    def write_for_ever(self, data: bytes) -> None:
        """Unframed, and the lock is never given back."""
        self._writing.acquire()
        self._out.write(data)
        self._out.flush()
        threading.Event().wait()

    def send(self, message: dict[str, Any]) -> None:
        """One message."""
        self.write(json.dumps(message, separators=(",", ":")).encode())

    def start(self, call: Call, tool: Tool) -> bool:
        """Run a tool in a thread; no if its key is taken."""
        with self._calls_lock:
            if call.key in self.calls:
                return False
            self.calls[call.key] = call
        threading.Thread(target=self._run, args=(call, tool), daemon=True).start()
        return True

    def _run(self, call: Call, tool: Tool) -> None:
        try:
            output = tool(call)
            end: Callable[[], None] = lambda: self.answer(call, output)  # noqa: E731
        except Cancelled:
            end = lambda: self.stopped(call)  # noqa: E731
        except Failed as failed:
            error = failed
            end = lambda: self.fail(call, error)  # noqa: E731
        with self._calls_lock:
            self.calls.pop(call.key, None)
        end()

    def cancel(self, key: Any) -> bool:
        """Ask a call to stop; no if there is none."""
        with self._calls_lock:
            call = self.calls.get(key)
        if call is None:
            return False
        call.cancelled.set()
        return True


class Bad(Exception):
    """A message that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Mcp(Wire):
    """Newline-delimited JSON-RPC."""

    def __init__(self, source: BinaryIO, out: BinaryIO, era: str = "both") -> None:
        super().__init__(out)
        self._source = source
        self._initialized = False
        self._legacy = era != "stateless"
        self._stateless = era != "legacy"

    def framed(self, data: bytes) -> bytes:
        return data + b"\n"

    def run(self) -> int:
        """Until the other side closes."""
        while line := self._source.readline(MAX_FRAME_BYTES + 1):
            if len(line) > MAX_FRAME_BYTES and not line.endswith(b"\n"):
                while not line.endswith(b"\n") and line:
                    line = self._source.readline(65_536)
                self._error(None, Bad(-32600, "the line is too long"))
            elif line.strip():
                self._take(line)
        return 0

    def _take(self, line: bytes) -> None:
        own_id = None
        try:
            message = json.loads(line)
            own_id = self._id(message)
            self._handle(message, own_id)
        except Bad as bad:
            self._error(own_id, bad)
        except (ValueError, RecursionError):
            self._error(None, Bad(-32700, "the line is no JSON"))

    @staticmethod
    def _id(message: Any) -> int | str | None:
        if not isinstance(message, dict):
            raise Bad(-32600, "a message is one object")
        own_id = message.get("id")
        if isinstance(own_id, bool) or not isinstance(own_id, int | str | None):
            raise Bad(-32600, "an id is a string or an integer")
        return own_id

    def _error(self, own_id: Any, bad: Bad) -> None:
        error = {"code": bad.code, "message": str(bad)}
        if bad.data is not None:
            error["data"] = bad.data
        self.send({"jsonrpc": "2.0", "id": own_id, "error": error})

    def _handle(self, message: dict[str, Any], own_id: Any) -> None:
        method, params = message.get("method"), message.get("params", {})
        if message.get("jsonrpc") != "2.0" or not isinstance(method, str):
            if "result" in message or "error" in message:
                return
            raise Bad(-32600, "neither a request nor a notification")
        if own_id is None:
            if "id" in message:
                raise Bad(-32600, "an id is not null")
            self._notified(method, params)
            return
        if not isinstance(params, dict):
            raise Bad(-32602, "params must be an object")
        meta = params.get("_meta")
        version = meta.get(META_VERSION) if isinstance(meta, dict) else None
        if version not in ((None, STATELESS) if self._stateless else (None,)):
            data = {"supported": [STATELESS, *LEGACY], "requested": version}
            raise Bad(-32022, "the protocol version is not supported", data)
        result = self._request(method, params, own_id, stateless=version == STATELESS)
        if result is not None:
            if version == STATELESS:
                result["resultType"] = "complete"
            self.send({"jsonrpc": "2.0", "id": own_id, "result": result})

    def _notified(self, method: str, params: Any) -> None:
        if method == "notifications/cancelled" and isinstance(params, dict):
            request_id = params.get("requestId")
            if isinstance(request_id, int | str):
                self.cancel(request_id)

    def _request(
        self, method: str, params: dict[str, Any], own_id: Any, *, stateless: bool
    ) -> dict[str, Any] | None:
        """The result, or None if a tool will give it."""
        about = {"serverInfo": {"name": "reference", "version": VERSION}}
        capabilities = {"capabilities": {"tools": {"listChanged": False}, "logging": {}}}
        if method == "initialize" and self._legacy:
            self._initialized = True
            asked = params.get("protocolVersion")
            version = asked if asked in LEGACY else LEGACY[0]
            return {"protocolVersion": version, **capabilities, **about}
        if method == "server/discover" and self._stateless:
            return {"supportedVersions": [STATELESS], **capabilities, **about}
        if method == "ping":
            return {}
        if method != "initialize" and not (self._initialized or stateless):
            raise Bad(-32600, "the session has not begun")
        if method == "tools/list":
            return {"tools": [self._listed(name) for name in TOOLS]}
        if method == "logging/setLevel":
            return {}
        if method != "tools/call":
            raise Bad(-32601, "no such method")
        self._call(params, own_id, stateless=stateless)
        return None

    def _listed(self, name: str) -> dict[str, Any]:
        tool, schema = TOOLS[name]
        return {"name": name, "description": description(tool), "inputSchema": schema}

    def _call(self, params: dict[str, Any], own_id: Any, *, stateless: bool) -> None:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or name not in TOOLS:
            raise Bad(-32602, "no such tool")
        if not isinstance(arguments, dict):
            raise Bad(-32602, "arguments must be an object")
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        call = Call(self, own_id, arguments, token)
        call.envelope = {"resultType": "complete"} if stateless else {}
        if not self.start(call, TOOLS[name][0]):
            raise Bad(-32600, "the id is in use")

    def _result(self, call: Call, text: str, **more: Any) -> None:
        content = [{"type": "text", "text": text}]
        result = {"content": content, **more, **call.envelope}
        self.send({"jsonrpc": "2.0", "id": call.key, "result": result})

    def answer(self, call: Call, output: dict[str, Any]) -> None:
        if not call.cancelled.is_set():
            text = output["data"] if "data" in output else json.dumps(output)
            self._result(call, text, isError=False)

    def fail(self, call: Call, error: Failed) -> None:
        self._result(call, f"{error.code}: {error}", isError=True)

    def stopped(self, call: Call) -> None:
        """A cancelled request is not answered."""

    def stream(self, call: Call, number: int, count: int) -> None:
        if call.token is not None:
            params = {"progressToken": call.token, "progress": number, "total": count}
            self._notify("notifications/progress", params)

    def unasked(self) -> None:
        self._notify("notifications/message", {"level": "info", "data": "flood"})

    def write_part(self, data: bytes) -> None:
        self.write_for_ever(data)

    def _notify(self, method: str, params: dict[str, Any]) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})


class Runtime(Wire):
    """Length-prefixed messages on a socket."""

    def __init__(self, stream: io.BufferedRWPair, agent_id: str, token: str) -> None:
        super().__init__(stream)
        self._source = stream
        self._agent_id = agent_id
        self._token = token
        self._started = time.monotonic()
        self._session_id = ""
        self._lie = ""
        self._lie_until = 0.0

    def framed(self, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + data

    def say(self, kind: str, payload: dict[str, Any], **envelope: Any) -> str:
        """One message; returns its id."""
        own_id = str(uuid.uuid4())
        now = datetime.now(tz=UTC).isoformat()
        frame = {"v": 1, "type": kind, "id": own_id, "ts": now, **envelope, "payload": payload}
        self.send(frame)
        return own_id

    def run(self) -> int:
        """Hello, tools, heartbeats; then calls until the other side closes."""
        protocol = {
            "supported_versions": [1],
            "capabilities": ["tools", "streaming", "cancellation"],
        }
        payload = {"agent_id": self._agent_id, "agent_version": VERSION, "protocol": protocol}
        self.say("agent.hello", {"session_token": self._token, **payload})
        welcome = self._read()
        if welcome is None or welcome.get("type") != "core.welcome" or welcome.get("error"):
            return 1
        self._session_id = welcome["payload"]["session_id"]
        interval_s = welcome["payload"]["heartbeat_interval_ms"] / 1000
        self.say("agent.tools.register", {"tools": [self._described(name) for name in TOOLS]})
        threading.Thread(target=self._beat, args=(interval_s,), daemon=True).start()
        while (message := self._read()) is not None:
            if message:
                self._take(message)
            if message.get("type") == "core.goodbye":
                break
        return 0

    def _described(self, name: str) -> dict[str, Any]:
        tool, schema = TOOLS[name]
        return {
            "tool_id": f"{self._agent_id}/{name}",
            "name": name,
            "description": description(tool),
            "input_schema": schema,
        }

    def _read(self) -> dict[str, Any] | None:
        """The next message, {} if it is none, None at the end or if it is too long to read."""
        header = self._source.read(4)
        if len(header) < 4:  # noqa: PLR2004  # the header
            return None
        (length,) = struct.unpack(">I", header)
        if length > MAX_FRAME_BYTES:
            return None
        data = self._source.read(length)
        if len(data) < length:
            return None
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            message = None
        good = isinstance(message, dict) and isinstance(message.get("payload"), dict)
        if not good or message.get("v") != 1:
            self._error(message if isinstance(message, dict) else {}, "protocol.invalid")
            return {}
        return message  # type: ignore[no-any-return]

    def _error(self, message: dict[str, Any], code: str) -> None:
        error = {"code": code, "message": "the message was not taken", "where": "agent.reference"}
        self.say("agent.error", {}, error=error, **self._reply(message))

    @staticmethod
    def _reply(message: dict[str, Any]) -> dict[str, Any]:
        own_id = message.get("id")
        return {"in_reply_to": own_id} if isinstance(own_id, str) else {}

    def _take(self, message: dict[str, Any]) -> None:
        kind, payload = message.get("type"), message["payload"]
        if kind == "core.tool.call":
            self._call(message, payload)
        elif kind == "core.tool.cancel":
            accepted = self.cancel(payload.get("call_id"))
            self.say(
                "agent.tool.cancel_ack",
                {"call_id": payload.get("call_id"), "accepted": accepted},
                **self._reply(message),
            )
        elif kind == "core.ping":
            self.say("agent.pong", {}, **self._reply(message))
        elif kind not in ("core.tools.registered", "core.tools.unregistered", "core.goodbye"):
            self._error(message, "protocol.invalid")

    def _call(self, message: dict[str, Any], payload: dict[str, Any]) -> None:
        call_id, tool_id, arguments = (
            payload.get("call_id"),
            payload.get("tool_id"),
            payload.get("input"),
        )
        if not isinstance(call_id, str) or not isinstance(tool_id, str):
            self._error(message, "protocol.invalid")
            return
        call = Call(self, call_id, arguments if isinstance(arguments, dict) else {})
        chain = ("request_id", "correlation_id", "causation_id")
        call.envelope = {key: message[key] for key in chain if key in message}
        agent_id, _, name = tool_id.rpartition("/")
        if agent_id != self._agent_id or name not in TOOLS:
            self.fail(call, Failed("tool.unknown", "there is no such tool"))
        elif not isinstance(arguments, dict):
            self.fail(call, Failed("tool.invalid_input", "input must be an object"))
        elif not self.start(call, TOOLS[name][0]):
            self._error(message, "protocol.invalid")

    def _result(self, call: Call, status: str, **more: Any) -> None:
        payload = {"call_id": call.key, "status": status, **more}
        self.say("agent.tool.result", payload, **call.envelope)

    def answer(self, call: Call, output: dict[str, Any]) -> None:
        self._result(call, "succeeded", output=output)

    def fail(self, call: Call, error: Failed) -> None:
        details = {"code": error.code, "message": str(error), "retryable": False}
        self._result(call, "failed", error=details)

    def stopped(self, call: Call) -> None:
        error = {"code": "tool.canceled", "message": "the call was cancelled"}
        self._result(call, "canceled", error=error)

    def stream(self, call: Call, number: int, count: int) -> None:
        data = {"json": {"number": number, "of": count}}
        payload = {"call_id": call.key, "seq": call.seq, "channel": "partial_result", "data": data}
        self.say("agent.tool.stream", payload, **call.envelope)

    def unasked(self) -> None:
        payload = {"call_id": "nobody's", "seq": 1, "channel": "log", "data": {"text": "flood"}}
        self.say("agent.tool.stream", payload)

    def write_part(self, data: bytes) -> None:
        self.write_for_ever(struct.pack(">I", len(data) + 1) + data)

    def lie(self, how: str, seconds: float) -> None:
        self._lie, self._lie_until = how, time.monotonic() + seconds

    def _beat(self, interval_s: float) -> None:
        while True:
            now = time.monotonic()
            lie = self._lie if now < self._lie_until else ""
            if lie != "stop":
                payload = {
                    "session_id": self._session_id,
                    "uptime_ms": int((now - self._started) * 1000),
                    "inflight_calls": 999_999 if lie == "wrong" else len(self.calls),
                    "status": "unhealthy" if lie == "unhealthy" else "ok",
                }
                self.say("agent.heartbeat", payload)
            time.sleep(interval_s)


def channel() -> io.BufferedRWPair:
    """The socket that the environment names, as a file."""
    if "CALLGATE_CHANNEL_FD" in os.environ:
        connection = socket.socket(fileno=int(os.environ["CALLGATE_CHANNEL_FD"]))
    else:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(os.environ["CALLGATE_SOCKET"])
    return connection.makefile("rwb")


def main() -> int:
    """Run until the other side closes."""
    parser = argparse.ArgumentParser(description="A reference agent for both protocols.")
    parser.add_argument("--protocol", choices=("mcp", "runtime"), default="mcp")
    parser.add_argument("--era", choices=("legacy", "stateless", "both"), default="both")
    parser.add_argument("--agent-id", default="reference")
    options = parser.parse_args()
    try:
        if options.protocol == "mcp":
            code = Mcp(sys.stdin.buffer, sys.stdout.buffer, options.era).run()
        else:
            token = os.environ.pop("CALLGATE_SESSION_TOKEN", "")
            code = Runtime(channel(), options.agent_id, token).run()
    except (BrokenPipeError, ConnectionError, KeyboardInterrupt):
        code = 0
    os._exit(code)  # calls that still run shall not keep the process


if __name__ == "__main__":
    main()
