"""What must be seen for a command to run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from callgate.launcher.host.command import find

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX paths")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def reaches(word: str | Path, **environ: str) -> tuple[str, ...]:
    found = find(str(word), environ, None)
    assert found is not None
    return found.reaches


def test_a_word_without_a_slash_is_sought_on_the_agents_path(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "tool")

    found = find("tool", {"PATH": str(tmp_path / "bin")}, None)

    assert found is not None
    assert found.path == str(tool)


def test_a_relative_word_is_sought_in_the_agents_directory(tmp_path: Path) -> None:
    tool = program(tmp_path / "tool")

    found = find("./tool", {}, str(tmp_path))

    assert found is not None
    assert found.path == str(tool)


@pytest.mark.parametrize("word", ["no-such-program", "/no/such/program", "/etc"])
def test_what_cannot_be_run_is_not_found(word: str) -> None:
    assert find(word, {"PATH": "/usr/bin"}, None) is None


def test_a_link_reaches_its_target(tmp_path: Path) -> None:
    target = program(tmp_path / "elsewhere" / "tool")
    link = tmp_path / "link"
    link.symlink_to("elsewhere/tool")

    assert reaches(link)[:2] == (str(link), str(target))


def test_a_script_reaches_its_interpreter(tmp_path: Path) -> None:
    interpreter = program(tmp_path / "lang" / "run", "binary")
    script = program(tmp_path / "script", f"#!{interpreter} -x\n")

    assert reaches(script) == (str(script), str(interpreter))


def test_env_in_a_script_leads_to_what_it_names(tmp_path: Path) -> None:
    interpreter = program(tmp_path / "bin" / "lang", "binary")
    script = program(tmp_path / "script", "#!/usr/bin/env -S A=1 lang -x\n")

    assert str(interpreter) in reaches(script, PATH=str(tmp_path / "bin"))


@pytest.mark.usefixtures("home")
def test_a_virtual_environment_is_reached_whole_and_its_python_too(tmp_path: Path) -> None:
    base = tmp_path / "base"
    program(base / "bin" / "python3", "binary")
    (base / "lib" / "python3.11").mkdir(parents=True)
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\n")
    (venv / "bin" / "python").symlink_to(base / "bin" / "python3")
    tool = program(venv / "bin" / "tool", f"#!{venv}/bin/python\n")

    assert set(reaches(tool)) == {str(venv), str(base)}


@pytest.mark.usefixtures("home")
def test_an_interpreter_that_was_copied_still_reaches_its_home(tmp_path: Path) -> None:
    base = tmp_path / "base"
    program(base / "bin" / "python3", "binary")
    (base / "lib" / "python3.11").mkdir(parents=True)
    venv = tmp_path / "venv"
    python = program(venv / "bin" / "python", "a copy")
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\n")

    assert set(reaches(python)) == {str(venv), str(base)}


@pytest.mark.parametrize("place", ["", ".local"])
def test_a_home_directory_is_never_reached_whole(home: Path, place: str) -> None:
    python = program(home / place / "bin" / "python3", "binary")
    (home / place / "lib" / "python3.11").mkdir(parents=True)
    (home / place / "lib" / "node_modules").mkdir()

    assert reaches(python) == (str(python),)


def test_links_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    tool = program(tmp_path / "a", "#!" + str(tmp_path / "b") + "\n")
    program(tmp_path / "b", f"#!{tool}\n")

    assert set(reaches(tool)) == {str(tool), str(tmp_path / "b")}


def test_what_lies_in_a_closed_directory_is_not_open(tmp_path: Path) -> None:
    tool = program(tmp_path / "closed" / "tool", "binary")
    os.chmod(tool.parent, 0o700)  # noqa: PTH101

    found = find(str(tool), {}, None)

    assert found is not None
    assert not found.open
