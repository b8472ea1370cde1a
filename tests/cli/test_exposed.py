"""An agent may not be given write access to what guards it, by whatever name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest

import callgate
from callgate.cli.exposed import find_exposed, unexposed
from callgate.policy import Policy, PolicyError
from tests.gate.helpers import REFERENCE, Gate, environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and mounts")

TEXT = """\
version: 1
agents:
  web:
    manifest: {manifest}
    containment:
      level: standard
      mounts:
        - path: {path}
          read_only: {read_only}
audit: {{path: {audit}}}
"""


class House(NamedTuple):
    """Where each thing of ours lies, in directories of their own."""

    root: Path

    def policy(self, mount: object, *, read_only: bool = False) -> Policy:
        text = TEXT.format(
            path=json.dumps(str(mount)),
            read_only=str(read_only).lower(),
            manifest=self.root / "manifests" / "agent.json",
            audit=self.root / "logs" / "audit",
        )
        file = self.root / "etc" / "p.yaml"
        file.write_text(text)
        return Policy.load(file)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state"))
    for name in ("etc", "manifests", "logs/audit", "home/state/callgate", "work"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "manifests" / "agent.json").write_text("{}")
    return House(tmp_path)


def refused(policy: Policy) -> str:
    with pytest.raises(PolicyError) as caught:
        unexposed(policy)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (8, 17)
    assert problem.path == "agents.web.containment.mounts[0].path"
    return problem.found


@pytest.mark.parametrize(
    ("mount", "what"),
    [
        ("etc", "policy file"),
        ("etc/p.yaml", "policy file"),
        (".", "policy file"),
        ("manifests", "manifest"),
        ("manifests/agent.json", "manifest"),
        ("logs", "audit"),
        ("logs/audit", "audit"),
        ("logs/audit/writer/deeper", "audit"),
        ("home", "state"),
        ("home/state/callgate/runs/x", "state"),
    ],
)
def test_a_writable_mount_of_what_guards_an_agent_is_a_problem(
    house: House, mount: str, what: str
) -> None:
    assert what in refused(house.policy(house.root / mount))
    assert what in refused(house.policy(f"../{mount}"))
    assert what in refused(house.policy(f"{house.root}/work/..//{mount}/"))


@pytest.mark.parametrize(
    "path",
    [
        Path(callgate.__file__).parent,
        Path(callgate.__file__).parents[1],
        Path(callgate.__file__).parent / "policy",
        Path(sys.prefix),
        Path(sys.executable).parent,
        Path(sys.executable).resolve(),
        Path(sysconfig.get_path("purelib")),
        Path(sysconfig.get_path("stdlib")) / "asyncio",
    ],
    ids=str,
)
def test_a_writable_mount_of_the_code_is_a_problem(house: House, path: Path) -> None:
    found = refused(house.policy(path))

    assert "code" in found or "Python" in found


def test_what_is_beside_it_may_be_mounted(house: House) -> None:
    unexposed(house.policy(house.root / "work"))
    unexposed(house.policy(house.root / "et"))


def test_a_mount_through_a_link_is_the_same_mount(house: House) -> None:
    (house.root / "work" / "alias").symlink_to("../etc")

    assert "policy file" in refused(house.policy(house.root / "work" / "alias"))


def test_a_link_that_leads_to_the_policy_is_a_part_of_it(house: House) -> None:
    """Who may replace the link says which file is read."""
    house.policy(house.root / "work")
    (house.root / "work" / "current").symlink_to("../etc")
    (house.root / "linked.yaml").symlink_to("work/current/p.yaml")

    assert "policy file" in refused(Policy.load(house.root / "linked.yaml"))


def test_a_file_beside_the_end_of_a_link_may_be_mounted(house: House) -> None:
    (house.root / "etc" / "data").mkdir()
    house.policy(house.root / "etc" / "data")
    (house.root / "current").symlink_to("etc")

    unexposed(Policy.load(house.root / "current" / "p.yaml"))


def test_a_hard_link_to_the_policy_is_the_policy(house: House) -> None:
    house.policy(house.root / "work" / "other.yaml")
    os.link(house.root / "etc" / "p.yaml", house.root / "work" / "other.yaml")

    assert "policy file" in refused(Policy.load(house.root / "etc" / "p.yaml"))


def test_a_read_only_mount_of_the_audit_or_the_state_is_a_warning(house: House) -> None:
    for mount, what in (("logs", "audit"), ("home", "state")):
        policy = house.policy(house.root / mount, read_only=True)
        problems, (warning,) = find_exposed(policy)
        assert problems == []
        assert what in warning.found
    assert find_exposed(house.policy(house.root / "etc", read_only=True)) == ([], [])


def test_at_level_strict_no_mount_is_writable(house: House) -> None:
    policy = house.policy(house.root / "etc")
    file = house.root / "etc" / "p.yaml"
    file.write_text(file.read_text().replace("level: standard", "level: strict"))

    unexposed(Policy.load(policy.source or ""))


BIND = """
import subprocess, sys
from pathlib import Path
root = Path(sys.argv[1])
def mount(*words):
    subprocess.run(["mount", *words], check=True)
mount("--make-rprivate", "/")
(root / "alias").mkdir()
(root / "work" / "inner").mkdir()
mount("--bind", sys.argv[2], str(root / sys.argv[3]))
from callgate.cli.exposed import find_exposed
from callgate.policy import Policy
print([p.found for p in find_exposed(Policy.load(sys.argv[4]))[0]])
"""


@pytest.mark.parametrize(
    ("source", "point", "mount", "policy"),
    [
        ("etc", "alias", "alias", "etc/p.yaml"),
        (".", "alias", "alias", "etc/p.yaml"),
        ("etc", "work/inner", "work", "etc/p.yaml"),  # bubblewrap binds what is below, too
        ("etc", "alias", "etc", "alias/p.yaml"),
        ("etc", "alias", ".", "alias/p.yaml"),
        ("etc/p.yaml", "work/file", "work", "etc/p.yaml"),
    ],
)
def test_a_bind_mount_is_another_name_of_the_same(
    house: House, source: str, point: str, mount: str, policy: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a bind mount")
    house.policy(house.root / mount)
    (house.root / "work" / "file").touch()
    words = [BIND, house.root, house.root / source, point, house.root / policy]
    unshare = ["/usr/bin/unshare", "--mount", sys.executable, "-c"]
    found = subprocess.run(
        [*unshare, *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "writable mount of the policy file" in found.stdout, found.stderr


def test_check_and_run_refuse_it_with_line_and_column(tmp_path: Path) -> None:
    text = "agents:\n  web:\n    containment: {level: standard, mounts: [{path: .}]}\n"
    with Gate(tmp_path, REFERENCE, text) as gate:
        assert gate.wait() == 1
    place = f"{gate.policy}:3:52: "
    assert f"{place}agents.web.containment.mounts[0].path: found a writable mount" in gate.stderr
    checked = subprocess.run(
        [sys.executable, "-m", "callgate", "check", str(gate.policy)],
        check=False,
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=60,
    )
    assert checked.returncode == 1
    assert place in checked.stderr


def test_exec_refuses_such_a_mount_of_its_own(tmp_path: Path) -> None:
    mount = f"{Path(callgate.__file__).parent}:rw"
    words = [sys.executable, "-m", "callgate", "exec", "--mount", mount, "--", "true"]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, env=environment(tmp_path), timeout=60
    )
    assert done.returncode == 2
    assert "callgate's own code" in " ".join(done.stderr.split())
