"""Real servers with and without the gate before them, for clients of any era."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from callgate.audit.events import TERMINAL
from callgate.audit.verify import verify
from tests.router.helpers import audit_lines

PATIENCE_S = 60.0
"""For one exchange; most take a second."""
NPM_S = 300
NPM = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
)


def gate(command: list[str], place: Path) -> list[str]:
    """The command with the gate in front of it, under a policy that refuses nobody."""
    policy = place / "callgate.yaml"
    agent = {"timeout": "30s", "rate": "unlimited", "concurrency": 64, "tasks": "pass"}
    policy.write_text(
        json.dumps({"version": 1, "agents": {"real": agent}, "audit": {"path": "audit"}})
    )
    return [sys.executable, "-m", "callgate", "run", "--policy", str(policy), "--", *command]


def calls_written(place: Path) -> list[str]:
    """How each call ended that the audit has, in the order they began; it must be whole."""
    assert verify(place / "audit").ok
    events = audit_lines(place / "audit")
    begun = [one["request_id"] for one in events if one["event"] == "tool.call.admitted"]
    ended = {one["request_id"]: one["event"] for one in events if one["event"] in TERMINAL}
    assert sorted(begun) == sorted(ended)
    return [ended[request_id].removeprefix("tool.call.") for request_id in begun]


def install_npm(place: Path) -> str:
    """Published servers for Node; why not, or nothing."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), *NPM]
    try:
        done = subprocess.run(command, capture_output=True, timeout=NPM_S, check=False)
    except subprocess.TimeoutExpired:
        return "npm took too long"
    return "" if done.returncode == 0 else f"npm ended with {done.returncode}"


CLIENT_2 = Path(__file__).parents[1] / "gate" / "sdk2_client.py"
CLIENT_S = 90


def seen_by_2(
    python: str, mode: str, calls: list[tuple[str, dict[str, Any]]], command: list[str]
) -> tuple[list[Any], list[Any]]:
    """What a client of the SDK's 2.x sees and hears; `python` is one that has it."""
    done = subprocess.run(
        [python, str(CLIENT_2), mode, json.dumps(calls), *command],
        capture_output=True,
        timeout=CLIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    said = json.loads(done.stdout)
    return said["seen"], said["heard"]
