from __future__ import annotations

import fcntl
import os
import pty
import re
import runpy
import select
import struct
import subprocess
import sys
import termios
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from callgate.cli.app import app
from tests.canary import Canary

EXAMPLES = Path(__file__).parents[1] / "examples"
BOUND_S = 60
"""What the demonstration promises; it takes 3 s in a pipe."""

CLAIMS = {
    "rates refuse what is too often, and say when to come back",
    "a deadline ends the work, not only the waiting",
    "a cancel reaches the work, and no other call",
    "an oversized result is withheld",
    "callers that wait are served in turn",
    "shadow mode records and lets pass",
    "a denied tool does not run",
    "a tool's own error reaches its caller unchanged",
    "every admitted call has exactly one end in the audit",
    "no secret is written down",
    "the audit verifies",
}


def environment(home: Path) -> dict[str, str]:
    """Nothing of this machine's user, so that what is written elsewhere shows."""
    return {"PATH": os.defpath, "HOME": str(home), "TERM": "xterm-256color"}


def play(program: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / program, *arguments],
        cwd=directory,
        env=environment(directory / "home"),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demonstration once, in a pipe: where, and what it printed."""
    directory = tmp_path_factory.mktemp("demo")
    done = play("in_process.py", directory)
    assert (done.returncode, done.stderr) == (0, "")
    return directory, done.stdout


def records(directory: Path) -> list[dict[str, Any]]:
    (file,) = directory.glob(".demo/audit/*/*.jsonl")
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]


def summary(output: str) -> dict[str, str]:
    """The table's rows: claim → `ok` or `NO`."""
    rows = re.findall(r"^(ok|NO)  (.+?)  ", output, re.MULTILINE)
    return {claim: word for word, claim in rows}


def test_every_claim_is_made_and_holds(played: tuple[Path, str]) -> None:
    assert summary(played[1]) == dict.fromkeys(CLAIMS, "ok")
    assert "11 of 11 claims hold" in played[1]


def test_a_pipe_gets_plain_lines(played: tuple[Path, str]) -> None:
    assert "\x1b" not in played[1]


def test_the_audit_says_of_each_scene_what_the_summary_says(played: tuple[Path, str]) -> None:
    found = Counter(
        (record["event"].removeprefix("tool.call."), record.get("code"))
        for record in records(played[0])
        if record["event"].startswith("tool.call.") and record["event"] != "tool.call.admitted"
    )

    assert found == {
        ("completed", None): 39,
        ("denied", "limit.rate"): 3,
        ("denied", "policy.denied"): 1,
        ("timed_out", "limit.timeout"): 1,
        ("cancelled", "tool.canceled"): 1,
        ("failed", "limit.output_bytes"): 1,
        ("failed", "tool.failed"): 1,
        ("would_deny", "limit.rate"): 3,
    }


def test_the_audit_has_both_polite_callers_done_long_before_the_flood(
    played: tuple[Path, str],
) -> None:
    order = [
        record["caller"]
        for record in records(played[0])
        if record["event"] == "tool.call.admitted" and record["tool"] == "print"
    ]

    assert order[:10].count("alice") == order[:10].count("bob") == 3
    assert order[10:] == ["flood"] * 16


def test_the_commands_that_it_names_work(
    played: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(played[0])
    commands = re.findall(r"^  callgate (.+)$", played[1], re.MULTILINE)

    codes = [CliRunner().invoke(app, command.split()).exit_code for command in commands]

    assert codes == [0, 0]


def test_nothing_is_written_but_its_directory_and_no_secret_into_that(
    played: tuple[Path, str],
) -> None:
    assert [entry.name for entry in played[0].iterdir()] == [".demo"]
    secret = runpy.run_path(str(EXAMPLES / "in_process.py"))["SECRET"]
    files = [file for file in played[0].rglob("*") if file.is_file()]

    leaks = {file.name for file in files if Canary(secret).find(file.read_bytes())}

    assert len(files) > 3
    assert leaks == set()


def test_a_claim_that_does_not_hold_is_exit_1(
    played: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(played[0])
    demo = runpy.run_path(str(EXAMPLES / "in_process.py"))
    claims = [demo["Claim"]("water is wet", "it was", held) for held in (True, False)]

    code = demo["summarize"](claims, Path(".demo/audit"), Console())

    assert code == 1
    assert "1 of 2 claims hold" in capsys.readouterr().out


def test_a_terminal_gets_a_live_table_and_the_same_claims(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-W", "error", EXAMPLES / "in_process.py", "--fast"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = read_all(ours)
        code = process.wait(BOUND_S)

    assert code == 0
    assert shown.count("callgate in process") > 5
    assert "11 of 11 claims hold" in shown
    assert "NO" not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split()


def read_all(terminal: int) -> str:
    data = b""
    try:
        while select.select([terminal], [], [], BOUND_S)[0]:
            data += os.read(terminal, 65_536)
    except OSError:  # how Linux says that the other side is closed
        pass
    finally:
        os.close(terminal)
    return data.decode()


def test_the_quickstart_does_what_it_says(tmp_path: Path) -> None:
    done = play("quickstart.py", tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    *passed, refused = done.stdout.splitlines()
    assert passed == [f"['a page about {bird}']" for bird in ("owls", "larks", "wrens")]
    assert refused.startswith("limit.rate: rate limit of agent web reached: 60/minute")
