"""A noisy agent, a noisy client, and peers that do not read: nobody else is hurt."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.canary import canaries, leaks
from tests.conftest import FULL
from tests.gate.helpers import FOREVER_S, OPEN, REFERENCE, Gate, agent, tool, until, words
from tests.peers.helpers import call, code_of, request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

MB = 1_000_000
LINE_BYTES = 100 * MB
"""The issue's figure."""

# Answers calls of `echo`; whatever `noise` names comes before its answer.
NOISY = """
import json, os, sys

def write(data, fd=1):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]

def noise(what, message):
    size = message["params"]["arguments"].get("size", 0)
    if what == "print":
        write(b"Server is starting...\\n" * 1000)
    elif what == "stderr":
        write(b"e" * size, 2)
    elif what == "unknown ids":
        for n in range(1000):
            write(json.dumps({"jsonrpc": "2.0", "id": 10**6 + n, "result": {}}).encode() + b"\\n")
    elif what == "utf8":
        write(b'{"jsonrpc":"2.0","id":1,"result":{"x":"\\xff\\xfe"}}\\n\\xff\\xff\\n')
    elif what == "long line":
        for _ in range(size // 1_000_000):
            write(b"x" * 1_000_000)
        write(b"\\n")
    elif what == "batch":
        write(b'[{"jsonrpc":"2.0","id":1,"result":{}}]\\n')
    elif what == "bad requests":
        write(b'{"jsonrpc":"2.0","id":"q","method":"x","Method":"y"}\\n' * 1000)

for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/call":
        noise(message["params"]["name"], message)
    if "id" in message and "method" in message:
        result = {"protocolVersion": "2025-11-25", "content": [{"type": "text", "text": "ok"}],
                  "tools": [], "capabilities": {}}
        write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()+b"\\n")
"""

KINDS = ["print", "stderr", "unknown ids", "utf8", "long line", "batch", "bad requests"]


def test_a_noisy_agent_hurts_no_call(tmp_path: Path) -> None:
    with Gate(tmp_path, agent(NOISY)) as gate:
        gate.shake_hands()

        for number, kind in enumerate(KINDS):
            size = LINE_BYTES if kind == "long line" else 5 * MB
            assert words(gate.ask(call(number, kind, {"size": size}))) == "ok", kind
            assert words(gate.ask(call("after", "echo"))) == "ok", kind

        rss = psutil.Process(gate.process.pid).memory_info().rss
        assert rss < 80 * MB
        assert gate.ends() == 0
        assert gate.events("tool.call.").count("completed") == 2 * len(KINDS)
        assert "Traceback" not in gate.stderr


def test_a_noisy_client_hurts_no_call(tmp_path: Path) -> None:
    policy = OPEN.replace("web: {}", "web: {max_frame_bytes: 4MiB}")
    with Gate(tmp_path, REFERENCE, policy) as gate:
        gate.shake_hands()

        gate.send(b"noise\n\xff\xff\n[]\n", b'{"jsonrpc":"2.0","id":"x",\n')
        for _ in range(20 if FULL else 5):
            gate.send(b"x" * MB)
        gate.send(b"\n")

        assert "greeting" in words(gate.ask(tool(1, "hello_world")))
        codes = [message["error"]["data"]["code"] for message in gate.aside]
        assert codes == ["protocol.invalid"] * 4 + ["limit.frame_bytes"]


def test_what_peers_say_is_not_in_our_stderr_or_audit(tmp_path: Path) -> None:
    secrets = canaries(6)
    with Gate(tmp_path, agent(NOISY)) as gate:
        gate.shake_hands()
        for canary in secrets:
            said = canary.secret
            gate.send(said.encode() + b"\n", request(f"m{said}", said, {said: said}))
            gate.ask(call(said, said, {said: said}, progressToken=said))
            gate.ask(call("x", "print", {said: said}))
        gate.process.terminate()
        gate.rest()
        gate.wait()

        written = b"".join(file.read_bytes() for file in (tmp_path / "audit").rglob("*.jsonl"))
        assert leaks(secrets, gate.stderr) == {}
        assert leaks(secrets, written) == {}


# Peers that do not read.

# Echoes, but reads nothing before it is told to by a file.
SLEEPER = """
import json, os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"content": [{"type": "text", "text": "x" * 1000}], "tools": []}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
"""


class Feeder:
    """Writes to a gate in a thread, for as long as that is read."""

    def __init__(self, gate: Gate, frames: list[bytes]) -> None:
        self._gate = gate
        self._frames = frames
        self.written = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for frame in self._frames:
            self._gate.send(frame)
            self.written += len(frame)

    def done(self) -> None:
        self._thread.join(FOREVER_S)
        assert not self._thread.is_alive()

    def stands_still(self) -> int:
        """How much was taken when nothing more is."""

        def still() -> bool:
            before = self.written
            time.sleep(0.3)
            return self.written == before and before > 0

        until(still)
        return self.written


def frames(count: int, size: int) -> list[bytes]:
    return [
        json.dumps(call(number, "echo", {"x": "y" * size})).encode() + b"\n"
        for number in range(count)
    ]


UNLIMITED = OPEN.replace("concurrency: 200", "concurrency: unlimited")


def test_a_client_is_not_read_while_the_agent_does_not_read(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Gate(tmp_path, [*agent(SLEEPER), str(go)], UNLIMITED) as gate:
        feeder = Feeder(gate, frames(400, 50_000))  # 20 MB

        taken = feeder.stands_still()

        assert taken < 8 * MB
        assert psutil.Process(gate.process.pid).memory_info().rss < 100 * MB
        go.touch()
        ids = {gate.receive()["id"] for _ in range(400)}
        feeder.done()
        assert ids == set(range(400))


def test_an_agent_is_not_read_while_the_client_does_not_read(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE, UNLIMITED) as gate:
        gate.shake_hands()

        gate.send(*(tool(number, "large_output", bytes=2 * MB) for number in range(20)))

        until(lambda: gate.events("tool.call.").count("admitted") == 20)
        time.sleep(0.5)
        assert psutil.Process(gate.process.pid).memory_info().rss < 100 * MB
        assert gate.events("tool.call.").count("completed") < 15
        sizes = [len(words(gate.receive())) for _ in range(20)]
        assert sizes == [2 * MB] * 20


def test_both_at_once_do_not_deadlock(tmp_path: Path) -> None:
    with Gate(tmp_path, agent(NOISY), UNLIMITED) as gate:
        gate.shake_hands()

        feeder = Feeder(gate, frames(300, 100_000))  # 30 MB there

        ids = {gate.receive()["id"] for _ in range(300)}
        feeder.done()
        assert ids == set(range(300))


def test_a_client_that_asks_and_reads_nothing_is_not_read_any_more(tmp_path: Path) -> None:
    policy = OPEN.replace("web: {}", "web: {tools: {no: deny}}")
    refused = json.dumps(call(1, "no")).encode() + b"\n"
    with Gate(tmp_path, REFERENCE, policy) as gate:
        gate.shake_hands()
        feeder = Feeder(gate, [refused * 1_000] * 60)

        taken = feeder.stands_still()

        assert taken < 45_000 * len(refused)
        assert psutil.Process(gate.process.pid).memory_info().rss < 120 * MB
        answers = 0
        while answers < 60_000:
            assert gate.process.stdout is not None
            assert select.select([gate.process.stdout], [], [], FOREVER_S)[0]
            answers += os.read(gate.process.stdout.fileno(), 1 << 20).count(b"\n")
        feeder.done()
        assert code_of(gate.ask(call("last", "no"))) == "policy.denied"


def test_deadlines_go_on_while_nobody_reads(tmp_path: Path) -> None:
    go = tmp_path / "go"
    policy = UNLIMITED.replace("timeout: 20s", "timeout: 500ms")
    with Gate(tmp_path, [*agent(SLEEPER), str(go)], policy) as gate:
        gate.send(*frames(30, 100_000))

        codes = {code_of(gate.answer_to(number)) for number in range(30)}

        assert codes == {"limit.timeout"}


def test_bandwidth_is_paced_both_ways(tmp_path: Path) -> None:
    policy = OPEN.replace("web: {}", "web: {bandwidth: 8Mbps}")  # 1 MB a second
    with Gate(tmp_path, REFERENCE, policy) as gate:
        gate.shake_hands()
        gate.ask(tool(1, "hello_world"))
        started = time.monotonic()
        gate.ask(tool(2, "hello_world", pad="x" * MB))
        there = time.monotonic()

        gate.ask(tool(3, "large_output", bytes=MB))

        assert there - started > 0.6
        assert time.monotonic() - there > 0.6
        assert gate.ends() == 0
