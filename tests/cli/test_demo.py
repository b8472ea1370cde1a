from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from callgate.cli.demo import scenes

if TYPE_CHECKING:
    from pathlib import Path

BOUND_S = 60
"""What the demonstration promises; it takes 8 s."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("demo") / "it"
    state = tmp_path_factory.mktemp("state")
    done = subprocess.run(
        [sys.executable, "-m", "callgate", "demo", "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
        env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(state)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout.splitlines()


def test_every_scene_keeps_its_claim(played: tuple[Path, list[str]]) -> None:
    _, lines = played
    count = len(scenes.SCENES) + 1

    assert sum(line.startswith("kept") for line in lines) == count
    assert f"{count} of {count} claims kept." in lines


def test_it_leaves_a_policy_and_an_audit_to_look_at(played: tuple[Path, list[str]]) -> None:
    folder, lines = played

    assert {"policy.yaml", "audit", "gate.log"} <= {entry.name for entry in folder.iterdir()}
    assert f"policy  {folder / 'policy.yaml'}" in lines


def test_a_pipe_gets_no_colour(played: tuple[Path, list[str]]) -> None:
    _, lines = played

    assert not any("\x1b" in line for line in lines)


def test_a_claim_that_is_not_kept_is_said_and_is_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same demonstration with a policy that does not deny: its first claim must break."""
    from typer.testing import CliRunner  # noqa: PLC0415

    from callgate.cli.demo import show  # noqa: PLC0415

    monkeypatch.setattr(scenes, "POLICY", scenes.POLICY.replace('"delete_*": deny', ""))
    monkeypatch.setattr(scenes, "SCENES", scenes.SCENES[:1])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    result = CliRunner().invoke(show.app, ["--folder", str(tmp_path / "demo")])

    assert result.exit_code == 1
    assert "BROKEN  a denied tool is not offered, and refused" in result.stdout
