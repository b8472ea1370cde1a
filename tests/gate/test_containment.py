"""An agent that reaches a limit of its containment: its callers hear which, and it goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.containment.capabilities import need
from tests.gate.helpers import OPEN, Gate, agent
from tests.peers.helpers import call, code_of, refusal_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

MI = 1024 * 1024
MEMORY = 96 * MI

HOG = """
import json, sys
kept = []
for line in sys.stdin:
    message = json.loads(line)
    params = message.get("params", {})
    if params.get("name") == "hog":
        while True:
            kept.append(b"x" * 1_000_000)
    if "id" in message:
        result = {"protocolVersion": "2025-11-25", "tools": [], "content": [], "capabilities": {}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def policy(restart: str) -> str:
    contained = "containment: {level: privileged, memory: 96Mi}"
    return OPEN.replace("web: {}", f"web: {{{contained}, restart: {restart}}}")


@pytest.mark.parametrize(
    ("restart", "follows"),
    [
        ('{on: failure, backoff: "0s..0s"}', "it will be started again"),
        ("{on: never}", "the next call resumes it"),
    ],
)
def test_a_memory_hog_is_ended_told_paused_and_resumed(
    restart: str, follows: str, tmp_path: Path
) -> None:
    need("cgroup")
    with Gate(tmp_path, agent(HOG), policy(restart)) as gate:
        gate.shake_hands()
        gate.ask(call(1, "fine"))

        refusal = gate.ask(call(2, "hog"))

        assert code_of(refusal) == "resource_limit_exceeded"
        limit = refusal_of(refusal)["limit"]
        assert (limit["type"], limit["scope"], limit["limit"]) == ("memory", "agent:web", MEMORY)
        assert "result" in gate.ask(call(3, "fine"))
        assert follows in gate.stderr
        assert gate.ends() == 0
        runs = [event for event in gate.events("agent.") if event.startswith("run_")]
        assert runs == ["run_started", "run_paused", "run_started", "run_stopped"]


def test_a_gate_whose_agent_is_paused_ends(tmp_path: Path) -> None:
    need("cgroup")
    with Gate(tmp_path, agent(HOG), policy("{on: never}")) as gate:
        gate.shake_hands()
        gate.ask(call(1, "hog"))

        assert gate.ends() == 0
