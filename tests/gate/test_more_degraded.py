"""Containment that is less than was asked for is written down, not only said."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.launcher.helpers import NO_BWRAP
from tests.router.helpers import audit_lines

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60
GATE = f"{NO_BWRAP}from callgate.cli import main; main()"


def run(place: Path, **containment: Any) -> subprocess.CompletedProcess[bytes]:
    """A gate where no bwrap can be found, whose client asks for nothing."""
    agent = {
        "command": [sys.executable, "-c", "import sys; sys.stdin.read()"],
        "containment": {"level": "standard", "disk": "unlimited", **containment},
    }
    policy = place / "callgate.yaml"
    policy.write_text(
        json.dumps({"version": 1, "agents": {"a": agent}, "audit": {"path": "audit"}})
    )
    return subprocess.run(
        [sys.executable, "-c", GATE, "run", "--policy", str(policy)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"PATH": str(place), "XDG_STATE_HOME": str(place)},
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="levels are Linux's")
def test_what_is_missing_under_allow_degraded_is_in_the_audit_and_on_stderr(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, allow_degraded=True, cpu="unlimited", memory="unlimited", pids="unlimited")

    assert done.returncode == 0, done.stderr
    records = list(audit_lines(tmp_path / "audit"))
    (run_id,) = {line["run_id"] for line in records if line["event"] == "agent.run_started"}
    degraded = [line for line in records if line["event"] == "agent.containment_degraded"]
    assert {line["run_id"] for line in degraded} == {run_id}
    effective = {line["limit"]: line["code"] for line in degraded}
    assert effective["namespaces"] == effective["network"] == effective["seccomp"] == "absent"
    assert "memory" not in effective, "nobody asked for it"
    assert "tree_kill" not in effective, "it holds"
    assert len(effective) == len(degraded)
    assert b"degraded containment" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="levels are Linux's")
def test_without_allow_degraded_nothing_is_launched(tmp_path: Path) -> None:
    done = run(tmp_path)

    assert done.returncode == 125
    assert "agent.run_started" not in [line["event"] for line in audit_lines(tmp_path / "audit")]
