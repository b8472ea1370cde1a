"""A raw, pipelined MCP client: as little as possible between the clock and what is measured.

Frames are made before the clock starts. A burst keeps `window` of them in flight: as many as
were answered by one read are sent by one write. Every answer is kept and looked at after the
clock has stopped: each id once, and no error among them.

`Pipes` speaks stdio. `Http` speaks streamable HTTP to bridges that offer nothing else, with
`window` kept-alive connections of one request at a time, as HTTP/1.1 has it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from benchmarks.mix import mixed
from benchmarks.stdio_echo import MIXED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

READ_BYTES = 64 * 1024
SAFE_BYTES = 32 * 1024
"""So much fits into a pipe however it was made: it may be written without looking."""
PATIENCE_S = 60
GOODBYE_S = 10

FIRST_ID = 1_000_000_000
"""Ids have one width, so frames of one size stay of one size."""
ID = re.compile(rb'"id": ?(\d{10})\b')
HEAD = b'{"jsonrpc":"2.0","id":'
MIDDLE = b',"method":"tools/call","params":{"name":"%b","arguments":{"text":"'
TAIL = b'"}}}\n'

INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "load", "version": "1"},
}


class Broken(Exception):
    """A contender did not answer, or not what was asked."""


@dataclass(frozen=True, slots=True)
class Burst:
    """What a burst took and what came back."""

    elapsed_ns: int
    answers: bytes
    latencies_ns: list[int] = field(default_factory=list)
    """Of each call, at window 1."""


class Link(Protocol):
    """A connection to a contender that runs."""

    pid: int

    def ask(self, frame: bytes) -> dict[str, Any]:
        """One request, one answer."""

    def tell(self, frame: bytes) -> None:
        """A notification."""

    def burst(self, frames: Sequence[bytes], window: int) -> Burst:
        """All frames, `window` of them in flight."""

    def close(self) -> None:
        """End the contender."""


class Calls:
    """Makes frames whose ids never repeat."""

    def __init__(self) -> None:
        self._last_id = FIRST_ID

    def make(self, tool: str, size: int, count: int) -> list[bytes]:
        """`count` calls of `size` bytes each, newline included."""
        middle = MIDDLE % tool.encode()
        text = b"x" * (size - len(HEAD) - 10 - len(middle) - len(TAIL))
        first = self._last_id + 1
        self._last_id += count
        rest = middle + text + TAIL
        return [b"%b%d%b" % (HEAD, number, rest) for number in range(first, first + count)]

    def mix(self, tools: Mapping[str, str], count: int) -> list[bytes]:
        """`count` calls of the mix, by the names under which its tools are called here."""
        frames = []
        for tool, size in mixed(count):
            self._last_id += 1
            text = b"x" * (size - len(b'{"text":""}'))
            middle = MIDDLE % tools[tool].encode()
            frames.append(b"%b%d%b%b%b" % (HEAD, self._last_id, middle, text, TAIL))
        return frames

    def request(self, method: str, params: dict[str, Any]) -> bytes:
        """One request."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        return orjson.dumps(message) + b"\n"


def check(frames: Sequence[bytes], answers: bytes) -> None:
    """Every call was answered once, and none with an error."""
    asked = [ID.search(frame) for frame in frames]
    wanted = sorted(match[1] for match in asked if match)
    if sorted(ID.findall(answers)) != wanted:
        raise Broken("not every call was answered once")
    if b'"isError":true' in answers or b'"isError": true' in answers or b'"error":' in answers:
        raise Broken("a call was answered with an error")


@contextmanager
def patience(seconds: int = PATIENCE_S) -> Iterator[None]:
    """Give up on a contender that hangs; a timer costs nothing while it does not ring."""

    def give_up(_: int, __: FrameType | None) -> None:
        raise Broken(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Pipes:
    """A contender on stdio: one process, or a chain of them of which the ends are ours."""

    def __init__(self, *commands: Sequence[str], env: dict[str, str], log: str) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        with open(log, "ab") as stderr:  # noqa: PTH123  # a descriptor for children
            source: Any = subprocess.PIPE
            for command in commands:
                process = subprocess.Popen(  # noqa: S603  # what the benchmark is made of
                    command,
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=env,
                    bufsize=0,
                    start_new_session=True,  # as the SDKs start servers; schedulers may care
                )
                if self._processes:
                    source.close()  # the next process has it
                source = process.stdout
                self._processes.append(process)
        first, last = self._processes[0], self._processes[-1]
        assert first.stdin is not None
        assert last.stdout is not None
        self._stdin, self._stdout = first.stdin, last.stdout
        self._write_fd = self._stdin.fileno()
        self._read_fd = self._stdout.fileno()
        self.pid = first.pid

    @property
    def pids(self) -> list[int]:
        """Of the processes that were started here."""
        return [process.pid for process in self._processes]

    def ask(self, frame: bytes) -> dict[str, Any]:
        self.tell(frame)
        begun = b""
        while True:
            data = os.read(self._read_fd, READ_BYTES)
            if not data:
                raise Broken("it ended")
            begun += data
            *lines, begun = begun.split(b"\n")
            for line in lines:
                message: dict[str, Any] = orjson.loads(line)
                if "id" in message and "method" not in message:
                    return message

    def tell(self, frame: bytes) -> None:
        os.write(self._write_fd, frame)

    def burst(self, frames: Sequence[bytes], window: int) -> Burst:
        if window == 1:
            return self._one_by_one(frames)
        if max(map(len, frames)) * window <= SAFE_BYTES:
            return self._pipelined(frames, window)
        return self._polled(frames, window)

    def close(self) -> None:
        self._stdin.close()
        for process in self._processes:
            try:
                process.wait(GOODBYE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(GOODBYE_S)
        self._stdout.close()

    def _one_by_one(self, frames: Sequence[bytes]) -> Burst:
        write_fd, read_fd = self._write_fd, self._read_fd
        answers, latencies = [], []
        clock = time.perf_counter_ns
        started = before = clock()
        for frame in frames:
            os.write(write_fd, frame)
            data = os.read(read_fd, READ_BYTES)
            while not data.endswith(b"\n"):
                data += self._more()
            answers.append(data)
            now = clock()
            latencies.append(now - before)
            before = now
        return Burst(before - started, b"".join(answers), latencies)

    def _pipelined(self, frames: Sequence[bytes], window: int) -> Burst:
        write_fd, read_fd, total = self._write_fd, self._read_fd, len(frames)
        answers = []
        started = time.perf_counter_ns()
        os.write(write_fd, b"".join(frames[:window]))
        sent, done = window, 0
        while done < total:
            data = os.read(read_fd, READ_BYTES) or self._more()
            answers.append(data)
            answered = data.count(b"\n")
            done += answered
            if answered and sent < total:
                os.write(write_fd, b"".join(frames[sent : sent + answered]))
                sent += answered
        return Burst(time.perf_counter_ns() - started, b"".join(answers))

    def _polled(self, frames: Sequence[bytes], window: int) -> Burst:
        """Frames that a pipe does not hold: write what fits, read what is there."""
        write_fd, read_fd, total = self._write_fd, self._read_fd, len(frames)
        answers: list[bytes] = []
        sent = done = 0
        view = memoryview(b"")
        poller = select.poll()
        poller.register(read_fd, select.POLLIN)
        os.set_blocking(write_fd, False)
        try:
            started = time.perf_counter_ns()
            while done < total:
                while view or (sent < total and sent - done < window):
                    if not view:
                        first, sent = sent, _fitting(frames, sent, done + window)
                        view = memoryview(b"".join(frames[first:sent]))
                    try:
                        view = view[os.write(write_fd, view) :]
                    except BlockingIOError:
                        break
                poller.register(write_fd, select.POLLOUT if view else 0)
                if any(fd == read_fd for fd, _ in poller.poll()):
                    data = os.read(read_fd, READ_BYTES) or self._more()
                    answers.append(data)
                    done += data.count(b"\n")
            elapsed_ns = time.perf_counter_ns() - started
        finally:
            os.set_blocking(write_fd, True)
        return Burst(elapsed_ns, b"".join(answers))

    def _more(self) -> bytes:
        data = os.read(self._read_fd, READ_BYTES)
        if not data:
            raise Broken("it ended")
        return data


def _fitting(frames: Sequence[bytes], start: int, end: int) -> int:
    """Up to where frames go out in one write: at least one of them, at most `SAFE_BYTES`."""
    size, at = len(frames[start]), start + 1
    while at < min(end, len(frames)) and size + len(frames[at]) <= SAFE_BYTES:
        size += len(frames[at])
        at += 1
    return at


class Http:
    """A bridge that was started on a port of this machine."""

    def __init__(
        self, command: Sequence[str], *, port: int, path: str, env: dict[str, str], log: str
    ) -> None:
        with open(log, "ab") as stderr:  # noqa: PTH123  # a descriptor for children
            self._process = subprocess.Popen(  # noqa: S603  # what the benchmark is made of
                command,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=env,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._port = port
        self._session = b""
        self._head = (
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\n"
            b"MCP-Protocol-Version: 2025-06-18\r\n"
        ) % (path.encode(), port)
        self._sockets: list[socket.socket] = []
        while not self._connect(1):
            if self._process.poll() is not None:
                raise Broken(f"it ended with {self._process.returncode}")
            time.sleep(0.01)

    def ask(self, frame: bytes) -> dict[str, Any]:
        head, body = self._exchange(frame)
        session = re.search(rb"(?i)\r\nmcp-session-id: *([^\r]+)", head)
        if session:
            self._session = b"Mcp-Session-Id: %b\r\n" % session[1]
        found = re.search(rb'\{"(?:jsonrpc|result|id)".*\}', body)
        if found is None:
            raise Broken("an answer without a message")
        message: dict[str, Any] = orjson.loads(found[0])
        return message

    def tell(self, frame: bytes) -> None:
        self._exchange(frame)

    def burst(self, frames: Sequence[bytes], window: int) -> Burst:
        if not self._connect(window):
            raise Broken("it takes no connection")
        requests = [self._request(frame) for frame in frames]
        left = iter(requests)
        answers, latencies = [], []
        poller = select.poll()
        waiting: dict[int, tuple[socket.socket, bytearray]] = {}
        clock = time.perf_counter_ns
        started = before = clock()
        for each in self._sockets[:window]:
            request = next(left, None)
            if request is not None:
                waiting[each.fileno()] = each, bytearray()
                poller.register(each.fileno(), select.POLLIN)
                each.sendall(request)
        while waiting:
            for fd, _ in poller.poll():
                each, begun = waiting[fd]
                begun += each.recv(READ_BYTES) or self._gone()
                if not _is_complete(begun):
                    continue
                answers.append(bytes(begun))
                if window == 1:
                    now = clock()
                    latencies.append(now - before)
                    before = now
                request = next(left, None)
                if request is None:
                    del waiting[fd]
                else:
                    begun.clear()
                    each.sendall(request)
        elapsed_ns = clock() - started
        return Burst(elapsed_ns, b"".join(answers), latencies)

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._process.terminate()
        try:
            self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(GOODBYE_S)

    def _connect(self, count: int) -> bool:
        # A server ends what was idle for some seconds, as it may.
        for each in [one for one in self._sockets if _has_ended(one)]:
            self._sockets.remove(each)
            each.close()
        while len(self._sockets) < count:
            try:
                made = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
            except OSError:
                return False
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(made)
        return True

    def _request(self, frame: bytes) -> bytes:
        length = b"Content-Length: %d\r\n\r\n" % len(frame)
        return self._head + self._session + length + frame

    def _exchange(self, frame: bytes) -> tuple[bytes, bytes]:
        answer = bytearray()
        if not self._connect(1):
            raise Broken("it takes no connection")
        self._sockets[0].sendall(self._request(frame))
        while not _is_complete(answer):
            answer += self._sockets[0].recv(READ_BYTES) or self._gone()
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        return head, body

    @staticmethod
    def _gone() -> bytes:
        raise Broken("it closed the connection")


def _has_ended(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


def _is_complete(answer: bytearray) -> bool:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(answer[:end]).lower()
    length = re.search(rb"\r\ncontent-length: *(\d+)", head)
    if length:
        return len(answer) >= end + 4 + int(length[1])
    if b"\r\ntransfer-encoding: chunked" in head:
        return answer.endswith(b"\r\n0\r\n\r\n")
    return True


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def shake_hands(link: Link, calls: Calls) -> dict[str, str]:
    """Open the session; the tools' names by what they are called at the server."""
    answer = link.ask(calls.request("initialize", INITIALIZE))
    if "result" not in answer:
        raise Broken("it refused the session")
    link.tell(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    listed = link.ask(calls.request("tools/list", {}))["result"]["tools"]
    offered = [tool["name"] for tool in listed]
    names: dict[str, str] = {}
    for known in ("echo", "pid", *MIXED):
        found = [name for name in offered if name.endswith(known)]
        if found:
            names[known] = min(found, key=len)  # some put the server's name before it
    if not {"echo", "pid"} <= set(names):
        raise Broken("it does not offer the server's tools")
    return names


def call(link: Link, calls: Calls, tool: str, arguments: dict[str, Any]) -> str:
    """The text that a tool answers."""
    answer = link.ask(calls.request("tools/call", {"name": tool, "arguments": arguments}))
    with suppress(KeyError, IndexError, TypeError):
        return str(answer["result"]["content"][0]["text"])
    raise Broken("a call was not answered with a text")
