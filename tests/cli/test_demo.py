from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from typer.testing import CliRunner

from callgate.cli.demo import scenes, show
from callgate.cli.demo.client import Answer

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
    monkeypatch.setattr(scenes, "POLICY", scenes.POLICY.replace('"delete_*": deny', ""))
    monkeypatch.setattr(scenes, "SCENES", scenes.SCENES[:1])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    result = CliRunner().invoke(show.app, ["--folder", str(tmp_path / "demo")])

    assert result.exit_code == 1
    assert "BROKEN  a denied tool is not offered, and refused" in result.stdout


def test_the_end_says_what_became_of_all_calls(played: tuple[Path, list[str]]) -> None:
    _, lines = played
    start = next(number for number, line in enumerate(lines) if line.endswith(" calls"))
    table = [line.split(maxsplit=2) for line in lines[start + 1 :] if line.startswith("  ")]

    assert sum(int(row[0]) for row in table) == int(lines[start].split()[0])
    assert {"ok", "policy.denied", "limit.rate", "limit.timeout", "cancelled"} <= {
        row[1] for row in table
    }
    assert "try again in" in next(row[2] for row in table if row[1] == "limit.rate")


def test_it_deletes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    result = CliRunner().invoke(show.app, ["--folder", str(tmp_path)])

    assert result.exit_code == 2
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = CliRunner().invoke(show.app, ["--folder", str(tmp_path / "file" / "demo")])

    assert result.exit_code == 2
    assert "--folder" in result.stderr


def test_a_gate_that_does_not_start_is_said_at_once_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "POLICY", scenes.POLICY.replace("timeout: 5s", "timeout: never"))

    result = CliRunner().invoke(show.app, ["--folder", str(tmp_path / "demo")])

    assert result.exit_code == 1
    assert "agents.rogue.timeout" in result.stderr


def test_a_terminal_shows_the_claim_that_is_tried_and_the_last_calls() -> None:
    claims = [show.Claim(scenes.SCENES[0].title, "seen", kept=True)]
    answers = [Answer("search", "limit.rate", "try again in 1 s", 0.0)]
    console = Console(width=80, record=True, file=io.StringIO())

    console.print(show.draw_all(claims, answers))

    drawn = console.export_text()
    assert scenes.SCENES[1].title in drawn
    assert "try again in 1 s" in drawn
    assert "search" in drawn
