"""kill -9 of the agent, kill -9 of the gate: again and again, and nobody is forgotten.

A few rounds here; `CALLGATE_RELIABILITY=full` does the figures of the issue.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from callgate.audit.events import TERMINAL
from callgate.audit.verify import verify
from tests.conftest import FULL
from tests.gate.helpers import RESTARTED, Gate, until, words
from tests.peers.helpers import call, code_of, request
from tests.router.helpers import assert_each_admitted_call_ends_once

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

AGENT_KILLS = 500 if FULL else 5
GATE_KILLS = 100 if FULL else 3
IN_FLIGHT = 50
P99_S = 0.25 if FULL else 2.0
"""The issue's figure, on a machine that does nothing else; a tenth of it is usual."""
SLOTS = 60

# Hangs on `hang`; else says who it is. Lists as many tools as it was told.
AGENT = """
import os, sys, json
tools = [{"name": "t%d" % n, "inputSchema": {}} for n in range(int(sys.argv[1]))]
write = sys.stdout.write
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or message.get("params", {}).get("name") == "hang":
        continue
    content = [{"type": "text", "text": str(os.getpid())}]
    result = {"protocolVersion": "2025-11-25", "capabilities": {}, "content": content}
    if message["method"] == "tools/list":
        result = {"tools": tools}
    write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\\n")
    sys.stdout.flush()
"""


def command(tools: int = 0) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", AGENT, str(tools)]


def descriptors(process: psutil.Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))  # noqa: PTH208  # only how many


def p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[int(len(ordered) * 0.99)]


class Killer:
    """Kills the agent with calls in flight, and counts how each was answered."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.answers: Counter[Any] = Counter()
        self.codes: Counter[str] = Counter()
        self.waits_s: list[float] = []

    def round(self, number: int) -> None:
        gate = self.gate
        ids = [f"{number}:{one}" for one in range(IN_FLIGHT)]
        gate.send(*(call(one, "hang") for one in ids))
        pid = int(words(gate.ask(call("who", "echo"))))  # so the agent has read all of them

        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()

        for _ in ids:
            message = gate.receive()
            self.waits_s.append(time.monotonic() - killed)
            self.answers[message["id"]] += 1
            self.codes[code_of(message)] += 1
        assert int(words(gate.ask(call("next", "echo")))) != pid


def test_the_agent_is_killed_and_every_caller_is_answered_once(tmp_path: Path) -> None:
    policy = RESTARTED.replace("concurrency: 200", f"concurrency: {SLOTS}, queue: 0")
    with Gate(tmp_path, command(), policy) as gate:
        gate.shake_hands()
        killer = Killer(gate)
        process = psutil.Process(gate.process.pid)
        killer.round(0)
        before = descriptors(process)

        for number in range(1, AGENT_KILLS):
            killer.round(number)

        until(lambda: descriptors(process) <= before)
        kinds = Counter(child.status() for child in process.children())
        assert kinds[psutil.STATUS_ZOMBIE] == 0
        assert len(gate.look_at_tree()) == 2  # a warden and an agent
        assert set(killer.answers.values()) == {1}
        assert len(killer.answers) == AGENT_KILLS * IN_FLIGHT
        assert killer.codes == {"agent.crashed": AGENT_KILLS * IN_FLIGHT}
        assert gate.aside == []
        worst = p99(killer.waits_s)
        report(agent_kills=AGENT_KILLS, p99_ms=worst * 1000, max_ms=max(killer.waits_s) * 1000)
        assert worst <= P99_S
        assert_no_slot_is_lost(gate)
        gate.process.terminate()
        assert gate.wait() == 0
    assert verify(tmp_path / "audit").ok
    assert assert_each_admitted_call_ends_once(tmp_path / "audit") > AGENT_KILLS * IN_FLIGHT


def assert_no_slot_is_lost(gate: Gate) -> None:
    gate.send(*(call(f"slot {one}", "hang") for one in range(SLOTS)))

    refused = gate.ask(call("one too many", "hang"))

    assert code_of(refused) == "limit.concurrency"
    assert gate.aside == []


TOOLS = 3_000


class Load:
    """Calls each tool once, some at a time, until the gate is gone."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.answered: set[str] = set()
        self._next = 0
        for _ in range(32):
            self.call()

    def call(self) -> None:
        if self._next < TOOLS:
            self._next += 1
            self.gate.send(call(self._next, f"t{self._next - 1}"))

    def go_on(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and len(self.answered) < TOOLS:
            self.take(self.gate.receive())
            self.call()

    def take(self, message: dict[str, Any]) -> None:
        assert "isError" not in message["result"]
        self.answered.add(f"t{message['id'] - 1}")

    def drain(self) -> None:
        """What the gate had written before it was killed."""
        for message in self.gate.rest():
            self.take(message)


def test_the_gate_is_killed_and_no_answer_lacks_its_record(tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311  # the same one every time
    answered = 0
    for _ in range(GATE_KILLS):
        known = len(lines(tmp_path))
        with Gate(tmp_path, command(TOOLS)) as gate:
            gate.shake_hands()
            gate.ask(request("l", "tools/list"))
            gate.look_at_tree()
            load = Load(gate)
            load.go_on(chance.uniform(0.01, 0.15))

            gate.process.kill()

            gate.wait()
            load.drain()
            ended = {
                line.get("tool") for line in lines(tmp_path)[known:] if line["event"] in TERMINAL
            }
            assert load.answered <= ended
            answered += len(load.answered)
    with Gate(tmp_path, command()) as gate:  # whose start recovers what the last one left
        assert gate.ends() == 0

    assert verify(tmp_path / "audit").ok
    ends = defaultdict(list)
    for line in lines(tmp_path):
        if "request_id" in line:
            ends[line["request_id"]].append(line["event"])
    per_call = Counter(
        (events.count("tool.call.admitted"), sum(event in TERMINAL for event in events))
        for events in ends.values()
    )
    report(gate_kills=GATE_KILLS, answered=answered, admitted=per_call[1, 1])
    assert per_call.keys() == {(1, 1)}
    assert answered > GATE_KILLS * 32


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    """Whole records; a torn one may stand at the end."""
    files = sorted((tmp_path / "audit").glob("*/*.jsonl"))
    whole = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
    return [json.loads(line) for line in whole]


def report(**figures: float) -> None:
    """Into a file, if somebody asked for the figures."""
    path = os.environ.get("CALLGATE_FIGURES")
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(figures) + "\n")
