"""What `callgate run` imports, and when: an agent's start waits for nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60
HEAVY = ("pydantic", "orjson", "callgate.policy", "callgate.router", "callgate.gate.stdio")
UNUSED = {"typer", "rich", "click", "anyio", "opentelemetry"}
"""What other commands or programs need, and a gate does not."""

AGENT = """
import json, os, pathlib, sys
pathlib.Path(os.environ["SEEN"] + "-by-agent").write_text(json.dumps([*os.environ]))
sys.stdin.read()
"""

LOOK = """
import gc, json, os, pathlib, sys

def agents():
    "The processes below us that run the agent's program."
    found, below = 0, [str(os.getpid())]
    while below:
        pid = below.pop()
        try:
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\\0")
            found += words[1:2] == [b"-S"]
        except OSError:
            continue
        below += children
    return found

class Look:
    "Sees the first import of each name."
    def __init__(self):
        self.seen = {}
    def find_spec(self, name, path=None, target=None):
        if name not in self.seen:
            self.seen[name] = agents()

look = Look()
sys.meta_path.insert(0, look)
from callgate.cli import main
try:
    main()
finally:
    sys.meta_path.remove(look)
    look.seen["<collector>"] = gc.isenabled() and gc.get_freeze_count()
    pathlib.Path(os.environ["SEEN"]).write_text(json.dumps(look.seen))
"""


def start(place: Path, *options: str) -> dict[str, int]:
    """Each module that a gate imported, and how many agents ran by then."""
    agent = [sys.executable, "-S", "-c", AGENT]
    done = subprocess.run(
        [sys.executable, "-c", LOOK, "run", *options, "--", *agent],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={
            "SEEN": str(place / "seen"),
            "XDG_STATE_HOME": str(place),
            "PYTHONPATH": str(place),
            "PATH": "/usr/bin:/bin",
        },
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads((place / "seen").read_text())
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """By a gate without a policy."""
    return start(tmp_path_factory.mktemp("start"))


def test_nothing_is_imported_that_a_gate_does_not_use(seen: dict[str, int]) -> None:
    assert "callgate.gate.stdio" in seen
    assert seen.keys() & {*UNUSED, "yaml"} == set()


def test_a_gate_with_a_policy_needs_yaml_beside(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("agents: {web: {rate: 5/minute}}\naudit: {path: audit}\n", encoding="utf-8")

    seen = start(tmp_path, "--policy", str(policy))

    assert "yaml" in seen
    assert seen.keys() & UNUSED == set()


@pytest.mark.parametrize("policy", [None, "version: 1\n"])
def test_plugins_of_pydantic_are_not_imported_and_the_agent_is_not_told_so(
    tmp_path: Path, policy: str | None
) -> None:
    package = tmp_path / "watching-1.dist-info"
    package.mkdir()
    (package / "entry_points.txt").write_text("[pydantic]\nwatching = watching:plugin\n")
    (tmp_path / "policy.yaml").write_text(policy or "")
    options = [] if policy is None else ["--policy", str(tmp_path / "policy.yaml")]

    seen = start(tmp_path, *options)

    assert "pydantic" in seen
    assert "watching" not in seen
    assert "PYDANTIC_DISABLE_PLUGINS" not in json.loads((tmp_path / "seen-by-agent").read_text())


def test_a_gate_that_serves_collects_garbage_but_not_among_what_its_start_made(
    seen: dict[str, int],
) -> None:
    assert seen["<collector>"] > len(seen)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_without_a_policy_the_agent_runs_before_anything_heavy_is_imported(
    seen: dict[str, int],
) -> None:
    before = [name for name in HEAVY if seen.get(name, 1) == 0]

    assert seen.keys() >= set(HEAVY)
    assert before == []
