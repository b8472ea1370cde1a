from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from callgate.audit.events import admitted, call_fragment, ended
from callgate.cli.app import app
from callgate.cli.plots import bar, sparkline
from tests.audit.helpers import begin, call_id, end, only_writer, open_log, write_log
from tests.launcher.helpers import on_a_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@pytest.fixture
def log(tmp_path: Path) -> str:
    write_log(tmp_path / "audit", 5)
    return str(tmp_path / "audit")


def test_calls_are_shown_oldest_first_and_it_is_said_what_was_verified(log: str) -> None:
    result = invoke("calls", "--log", log)

    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split()[:5] == ["time", "agent", "tool", "caller", "outcome"]
    assert [row.split()[-1] for row in rows] == [call_id(number) for number in range(5)]
    assert result.stderr == "verified 1 of 1 segment\n"


def test_a_call_is_told_by_all_of_its_records(log: str) -> None:
    result = invoke("calls", "--log", log, "--request-id", call_id(2).upper())

    events = [line.split()[2] for line in result.stdout.splitlines()[1:]]
    assert events == ["tool.call.admitted", "tool.call.completed"]


def test_json_is_one_object_a_line_and_csv_one_call_a_line(log: str) -> None:
    lines = invoke("calls", "--log", log, "--json", "--limit", "0").stdout.splitlines()
    rows = list(csv.DictReader(io.StringIO(invoke("calls", "--log", log, "--csv").stdout)))

    assert [json.loads(line)["request_id"] for line in lines] == [call_id(n) for n in range(5)]
    assert json.loads(lines[0])["outcome"] == "ok"
    assert [row["request_id"] for row in rows] == [call_id(n) for n in range(5)]
    assert rows[0]["tool"] == "search"


def test_a_spreadsheet_computes_nothing_of_a_name(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    lane = call_fragment('=HYPERLINK("x")', "+web", "@tool\r\nforged", "rev1")
    log.record(admitted(lane, call_id(1)), 1)
    log.record(ended("tool.call.completed", lane, call_id(1)), -1)
    log.close()

    (row,) = csv.DictReader(io.StringIO(invoke("calls", "--csv", "--log", str(tmp_path)).stdout))

    assert (row["caller"], row["agent"]) == ('\'=HYPERLINK("x")', "'+web")
    assert row["tool"] == "'@tool\\x0d\\x0aforged"


def test_stats_say_what_a_span_adds_up_to(log: str) -> None:
    result = invoke("stats", "--log", log, "--since", "all")

    assert result.exit_code == 0
    first, second, *_ = result.stdout.splitlines()
    assert first == "5 calls in all: 5 ok"
    assert second == "half of them took up to 3 ms (p50), 99 of 100 up to 3 ms (p99)"
    assert "web/search" in result.stdout
    assert "█" not in result.stdout

    found = json.loads(invoke("stats", "--log", log, "--since", "all", "--json").stdout)
    assert (found["calls"], found["p99_ms"]) == (5, 3)
    assert found["read"]["verified"] == found["read"]["segments"] == 1


def test_a_span_without_calls_is_no_error(log: str) -> None:
    result = invoke("stats", "--log", log, "--since", "1h")

    assert (result.exit_code, result.stdout) == (0, "0 calls in the last 1h\n")
    assert invoke("calls", "--log", log, "--agent", "none").stderr.startswith("no such calls")


def test_a_changed_log_is_exit_1_and_names_the_command_that_says_all(log: str) -> None:
    from pathlib import Path  # noqa: PLC0415

    file = only_writer(Path(log)) / "00000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"search"', b'"delete"', 1))

    for words in (["calls"], ["stats", "--since", "all"], ["calls", "--verify", "all"]):
        result = invoke(*words, "--log", log)

        assert result.exit_code == 1
        assert f"callgate audit verify {log}" in result.stderr
    assert "verified 0 of 1 segment; 1 faults" in invoke("calls", "--log", log).stderr


def test_verify_all_reads_the_rest(log: str) -> None:
    result = invoke("calls", "--log", log, "--verify", "all", "--request-id", call_id(0))

    assert result.exit_code == 0
    assert "verified 1 of 1 segments: nothing is wrong" in result.stderr


def test_where_there_is_no_log_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    for words in (["calls"], ["stats"]):
        missing = invoke(*words, "--log", str(tmp_path / "none"))
        empty = invoke(*words, "--log", str(tmp_path))

        assert (missing.exit_code, empty.exit_code) == (1, 1)
        assert "--log DIR" in missing.stderr
        assert "holds no audit" in empty.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "yesterday"], "15m, 2h, 7d"),
        (["--outcome", "bad"], "would_deny"),
        (["--request-id", "7"], "as `callgate calls` shows it"),
        (["--json", "--csv"], "not both"),
    ],
)
def test_what_cannot_be_asked_is_exit_2_and_says_what_can(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["calls", *words], env={"COLUMNS": "300"})

    assert result.exit_code == 2
    assert said in result.stderr


def test_following_shows_new_calls_until_it_is_interrupted(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=4096)
    begin(log, 0)
    end(log, 0)
    words = [sys.executable, "-m", "callgate", "calls", "--follow", "--json"]
    words += ["--log", str(tmp_path)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"NO_COLOR": "1"}
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert call_id(0) in child.stdout.readline().decode()
        for number in range(1, 30):  # over rotation
            begin(log, number)
            end(log, number)
            assert call_id(number) in child.stdout.readline().decode()
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
        assert b"verified" in child.stderr.read()
    log.close()


def test_a_terminal_gets_colours_and_plots(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    lane = call_fragment("alice", "web", "search", "rev1")
    log.record(admitted(lane, call_id(1)), 1)
    log.record(ended("tool.call.failed", lane, call_id(1), "", 1, "tool.failed"), -1)
    log.close()

    _, calls = on_a_terminal("calls", "--log", str(tmp_path))
    _, stats = on_a_terminal("stats", "--log", str(tmp_path), "--since", "all")

    assert "\x1b[31merror" in calls
    assert "█" in stats


def test_a_plot_shows_what_is_not_nothing() -> None:
    assert sparkline([0, 1, 100]) == "▁▂█"
    assert len(sparkline(list(range(1000)))) == 48
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert bar(1, 1000) == "▏"
    assert bar(1000, 1000) == "█" * 20
    assert bar(0, 1000) == ""
