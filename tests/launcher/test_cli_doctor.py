from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from callgate.launcher.host import survey
from callgate.launcher.local.workspace import default_root
from tests.launcher.helpers import NO_BWRAP, on_a_terminal

if TYPE_CHECKING:
    from pathlib import Path

DOCTOR = [sys.executable, "-c", "from callgate.cli.doctor import app; app()"]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def run(*words: str, first: str = "") -> tuple[int, str, str]:
    program = [*DOCTOR[:2], first + DOCTOR[2]]
    done = subprocess.run(
        [*program, *words], capture_output=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def findings(text: str) -> dict[str, dict[str, Any]]:
    return {each["feature"]: each for each in orjson.loads(text)["findings"]}


def test_the_answer_is_whether_level_standard_can_be_had() -> None:
    host = survey.with_sandbox(survey.survey())
    able = host.bwrap.present and host.seccomp.present and host.landlock_abi > 0

    status, shown, _ = run("--json")

    assert (status, orjson.loads(shown)["ok"]) == (0 if able else 1, able)
    assert findings(shown)["level standard"]["status"] == ("enforced" if able else "absent")


@pytest.mark.skipif(sys.platform != "linux", reason="probes Linux")
def test_without_bwrap_the_answer_is_no_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    status, shown, _ = run("--json", first=NO_BWRAP)

    found = findings(shown)
    assert status == 1
    assert "apt install bubblewrap" in found["sandbox"]["fix"]
    assert found["level standard"]["status"] == "absent"
    assert "bwrap is not installed" in found["level standard"]["why"]
    assert found["level privileged"]["status"] == "enforced"


@pytest.mark.skipif(sys.platform != "linux", reason="probes Linux")
def test_the_verdict_and_one_thing_to_do_stand_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    _, shown, _ = run(first=NO_BWRAP)

    verdict, todo, *_ = shown.splitlines()
    assert verdict == "agents cannot be contained at level standard here"
    assert todo.startswith("first: ")
    assert "apt install bubblewrap" in todo


def test_a_pipe_gets_plain_text_and_nothing_is_left_behind() -> None:
    before = directories()

    status, shown, remarks = run()

    lines = shown.splitlines()
    can = "can" if status == 0 else "cannot"
    assert lines[0] == f"agents {can} be contained at level standard here"
    blank = lines.index("")
    assert blank == (1 if status == 0 else 2)
    assert lines[blank + 1].split() == ["feature", "status", "why", "fix"]
    assert "\x1b" not in shown
    assert remarks == ""
    assert directories() <= before


def test_a_terminal_gets_colours_and_sees_what_is_tried() -> None:
    _, shown = on_a_terminal("doctor")

    assert "\x1b[32menforced" in shown
    assert "trying: " in shown


def directories() -> set[Path]:
    root = default_root()
    return set(root.glob("doctor-*")) if root.is_dir() else set()
