"""A policy file that changes under a running gate, on the real command line."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.gate.helpers import ASYNCIO, OPEN, REFERENCE, ROOT, Gate, tool, until, words

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="FIFOs and signals")

DENYING = OPEN.replace("web: {}", "web: {rate: 100/minute, tools: {hello_world: deny}}")
WITH_MANIFEST = OPEN.replace("web: {}", "web: {manifest: agent.json}")
DENYING_WITH_MANIFEST = WITH_MANIFEST.replace(
    "agent.json}", "agent.json, tools: {hello_world: deny}}"
)
TERM_S = 15.0
"""The agent's own end may take 7 s; a read that hangs is not waited for."""

# Reads hang, as on a network file system that has gone, once the file `hang` is there.
HANGING = """
import os, time
import callgate.user_files as user_files
read = user_files._read
def slow(path, limit, **options):
    while os.path.exists(os.environ["HANG"]) and "policy.yaml" in str(path):
        open(os.environ["HANG"] + ".begun", "w").close()
        time.sleep(0.05)
    return read(path, limit, **options)
user_files._read = slow
"""


def is_denied(gate: Gate, own_id: int) -> bool:
    return bool(gate.ask(tool(own_id, "hello_world"))["result"].get("isError"))


def replace(gate: Gate, text: str) -> None:
    other = gate.policy.with_suffix(".new")
    other.write_text(text)
    other.replace(gate.policy)


def test_a_policy_that_no_longer_names_the_agent_leaves_it_its_rules(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE, DENYING) as gate:
        gate.shake_hands()
        assert is_denied(gate, 1)

        replace(gate, DENYING.replace("web:", "wbe:"))
        until(lambda: "no longer names agent web" in gate.stderr)

        assert is_denied(gate, 2)
        assert gate.ends() == 0
        (record,) = [one for one in gate.records() if one["event"] == "policy.reload_failed"]
        assert (record["agent"], record["code"]) == ("web", "agent.missing")


def test_a_policy_that_allows_more_is_used_and_each_loosening_is_said_and_recorded(
    tmp_path: Path,
) -> None:
    with Gate(tmp_path, REFERENCE, DENYING) as gate:
        gate.shake_hands()
        assert is_denied(gate, 1)

        replace(gate, OPEN)
        until(lambda: "it allows more" in gate.stderr)

        assert not is_denied(gate, 2)
        assert gate.ends() == 0
        found = [one for one in gate.records() if one["event"] == "policy.loosened"]
        assert {one["severity"] for one in found} == {"security"}
        assert {one["limit"] for one in found} == {
            "rate of agent:web: 100/minute -> unlimited",
            "deny of tool:web/hello_world: denied -> allowed",
        }
        assert all(one["limit"] in gate.stderr for one in found)


def test_a_policy_that_allows_less_is_no_loosening(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE, OPEN) as gate:
        gate.shake_hands()
        replace(gate, DENYING)
        until(lambda: "is in force" in gate.stderr)
        assert is_denied(gate, 1)
        assert gate.ends() == 0
        assert gate.events("policy.") == ["loaded", "loaded"]


@pytest.mark.parametrize("broken", ["", "version: 1\n", "agents:\n  web:\n    tools:\n   hel"])
def test_a_truncated_file_leaves_what_is_denied_denied(tmp_path: Path, broken: str) -> None:
    with Gate(tmp_path, REFERENCE, DENYING) as gate:
        gate.shake_hands()
        gate.policy.write_text(broken)
        until(lambda: "stays as it was" in gate.stderr or "no longer names" in gate.stderr)
        assert is_denied(gate, 1)
        assert gate.ends() == 0


@pytest.mark.parametrize("kind", ["fifo", "device", "huge", "broken", "gone"])
def test_a_manifest_that_cannot_be_read_any_more_stops_no_reload(tmp_path: Path, kind: str) -> None:
    manifest = tmp_path / "agent.json"
    manifest.write_text('{"execution_limits": {"max_concurrent_calls": 7}}')
    with Gate(tmp_path, REFERENCE, WITH_MANIFEST) as gate:
        gate.shake_hands()
        assert not is_denied(gate, 1)

        manifest.unlink()
        match kind:
            case "fifo":
                os.mkfifo(manifest)
            case "device":
                manifest.symlink_to("/dev/zero")
            case "huge":
                with manifest.open("wb") as file:
                    file.truncate(1 << 40)
            case "broken":
                manifest.write_text("{")
        replace(gate, DENYING_WITH_MANIFEST)
        until(lambda: "is in force" in gate.stderr)

        assert "what it said before holds" in gate.stderr
        assert is_denied(gate, 2)
        assert terminated(gate) == 0
        assert "reload_failed" in gate.events("policy.")


def test_a_policy_that_becomes_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE, DENYING) as gate:
        gate.shake_hands()
        gate.policy.unlink()
        os.mkfifo(gate.policy)
        gate.process.send_signal(signal.SIGHUP)
        until(lambda: "not a regular file" in gate.stderr)
        assert is_denied(gate, 1)
        assert terminated(gate) == 0


def test_a_policy_behind_links_is_reloaded_as_kubernetes_swaps_it(tmp_path: Path) -> None:
    for name, text in (("one", OPEN), ("two", DENYING)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(text)
    (tmp_path / "data").symlink_to("one")
    (tmp_path / "linked.yaml").symlink_to("data/policy.yaml")
    options = ("--policy", str(tmp_path / "linked.yaml"), "--agent", "web")
    with Gate(tmp_path, REFERENCE, None, *options) as gate:
        gate.shake_hands()
        assert not is_denied(gate, 1)
        (tmp_path / "swap").symlink_to("two")
        (tmp_path / "swap").replace(tmp_path / "data")
        until(lambda: "is in force" in gate.stderr)
        assert is_denied(gate, 2)
        assert gate.ends() == 0


def test_sigterm_ends_the_gate_while_a_read_of_the_policy_hangs(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HANGING)
    hang = tmp_path / "hang"
    paths = os.pathsep.join(map(str, (tmp_path / "site", ASYNCIO, ROOT)))
    env = {"HANG": str(hang), "PYTHONPATH": paths}
    with Gate(tmp_path, REFERENCE, OPEN, env=env) as gate:
        gate.shake_hands()
        hang.touch()
        gate.process.send_signal(signal.SIGHUP)
        until((tmp_path / "hang.begun").exists)

        assert "hello" in words(gate.ask(tool(1, "hello_world")))
        until(lambda: "no answer in 3 s" in gate.stderr)
        assert "hello" in words(gate.ask(tool(2, "hello_world")))
        assert terminated(gate) == 0


def terminated(gate: Gate) -> int:
    began = time.monotonic()
    gate.process.send_signal(signal.SIGTERM)
    gate.rest()
    code = gate.wait()
    assert time.monotonic() - began < TERM_S
    return code
