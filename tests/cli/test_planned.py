from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from callgate.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


def explain(folder: Path, agent: str, *options: str) -> tuple[int, str, str]:
    file = folder / "callgate.yaml"
    file.write_text(f"version: 1\nagents:\n  web: {agent}\n")
    arguments = ["explain", str(file), "--agent", "web", "--plan", *options]
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_a_plan_says_of_each_feature_whether_it_would_hold(tmp_path: Path) -> None:
    code, shown, _ = explain(tmp_path, f"{{command: [{sys.executable}]}}", "--json")

    plan = json.loads(shown)["plan"]
    assert code == 0
    assert plan["level"] == "privileged"
    assert plan["argv"][0].endswith(sys.executable.rpartition("/")[2])
    assert plan["effective"]["memory"]["status"] == "absent"


def test_a_program_that_there_is_not_is_a_gap_before_anything_runs(tmp_path: Path) -> None:
    code, _, said = explain(tmp_path, "{command: [no-such-program-here]}")

    assert code == 1
    assert "no-such-program-here" in said


def test_an_agent_without_a_command_cannot_be_planned(tmp_path: Path) -> None:
    code, _, said = explain(tmp_path, "{}")

    assert code == 1
    assert "has no `command`" in said
