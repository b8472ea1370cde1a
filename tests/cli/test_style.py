"""The command line looks and answers in one way, whichever command it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

import callgate
from callgate.cli.app import LAZY, app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_S = 60
CALLGATE = [sys.executable, "-m", "callgate"]
SHELLS = ("bash", "zsh", "fish")


class Done(NamedTuple):
    status: int
    out: str
    err: str


def run(*words: str, **env: str) -> Done:
    done = subprocess.run(
        [*CALLGATE, *words],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
        text=True,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def paths(command: Any, *above: str) -> Iterator[tuple[str, ...]]:
    yield above
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from paths(command.get_command(None, name), *above, name)


PATHS = list(paths(typer.main.get_command(app)))


def test_alone_it_says_the_three_things_to_do() -> None:
    done = run()

    assert (done.status, done.err) == (0, "")
    for words in ("callgate demo", "callgate init", "callgate run -- CMD", "callgate --help"):
        assert words in done.out
    assert len(done.out.splitlines()) <= 8
    assert max(map(len, done.out.splitlines())) <= 90


@pytest.mark.parametrize("word", ["-V", "--version"])
def test_the_version_is_the_packages(word: str) -> None:
    assert run(word) == (0, f"callgate {version('callgate')}\n", "")
    assert callgate.__version__ == version("callgate")


@pytest.mark.parametrize("words", PATHS, ids=" ".join)
def test_each_help_is_in_one_style_and_nothing_is_cut(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*words, "-h"], env={"COLUMNS": "80"}).stdout

    assert shown.startswith("Usage: ")
    assert not re.search(r"<(bool|str|int|float|path|file|list)", shown), "a type of Python's"
    assert not re.search(r"[╭│]|^ .*\.\.\.$", shown, re.MULTILINE)
    assert "-h, --help" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_help_is_a_word_a_letter_and_an_option_and_all_are_equal() -> None:
    asked = [("help", "run"), ("run", "-h"), ("run", "--help"), ("run", "--agent", "a", "--help")]

    answers = {run(*words) for words in asked}

    (done,) = answers
    assert done.out.startswith("Usage: callgate run [OPTIONS] [CMD]...")
    assert run("help") == run("--help") == run("-h")


def test_help_imports_no_command_and_not_rich() -> None:
    code = """
        import sys
        from callgate.cli import main
        sys.argv = ["callgate", "--help"]
        try:
            main()
        except SystemExit:
            pass
        print(sorted(n for n in sys.modules if n.split(".")[0] in ("rich", "pydantic", "yaml")
            or n.startswith("callgate.")), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())],
        capture_output=True,
        timeout=WAIT_S,
        check=True,
        text=True,
    )

    assert eval(done.stderr) == [  # noqa: S307  # what is printed above
        "callgate.cli",
        "callgate.cli.app",
        "callgate.cli.first_screen",
    ]
    assert all(name in done.stdout for name in LAZY)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    done = run(_CALLGATE_COMPLETE=f"source_{shell}")

    assert done.status == 0
    assert "_CALLGATE_COMPLETE=complete_" + shell in done.out


@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [("callgate wr", "1", "wrap"), ("callgate exec --mem", "2", "--memory")],
)
def test_commands_and_options_are_completed(words: str, number: str, expected: str) -> None:
    done = run(COMP_WORDS=words, COMP_CWORD=number, _CALLGATE_COMPLETE="complete_bash")

    assert expected in done.out.split()


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["chekc"], 2, "Try 'callgate -h' for help."),
        (["explain"], 2, "Try 'callgate explain -h' for help."),
        (["exec", "--memroy", "1", "true"], 2, "--memory"),
        (["run"], 2, "callgate run -- CMD"),
        (["check", "nope.yaml"], 1, "nope.yaml:1:1: found no such file or directory, expected"),
    ],
)
def test_an_error_names_the_next_step(
    words: list[str], status: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    done = run(*words)

    assert (done.status, done.out) == (status, "")
    assert expected in done.err
    assert "Traceback" not in done.err
