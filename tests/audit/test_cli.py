from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from typer.testing import CliRunner

from callgate.audit.verify import verify
from callgate.cli import audit
from tests.audit.helpers import crash, only_writer, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(audit.app, ["verify", *map(str, args)])


def tamper(path: Path) -> None:
    file = only_writer(path) / "00000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b"alice", b"mallo", 1))


def test_a_good_log_is_exit_0(tmp_path: Path) -> None:
    write_log(tmp_path)

    result = run(tmp_path)

    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "21 lines of 1 writer: ok"
    assert "\x1b" not in result.output


def test_a_changed_log_is_exit_1_and_says_where(tmp_path: Path) -> None:
    write_log(tmp_path)
    tamper(tmp_path)

    result = run(tmp_path)

    assert result.exit_code == 1
    assert f"{only_writer(tmp_path).name}/00000001.jsonl:2: chain: expected hash" in result.output


def test_a_crashed_log_is_exit_1_but_not_called_tampering(tmp_path: Path) -> None:
    crash(tmp_path)

    result = run(tmp_path, "--json")

    assert result.exit_code == 1
    answer = orjson.loads(result.output)
    assert (answer["ok"], answer["tampered"]) == (False, False)
    assert "none of them tampering" in run(tmp_path).output


def test_a_directory_that_is_not_there_is_exit_2(tmp_path: Path) -> None:
    assert run(tmp_path / "none").exit_code == 2


@pytest.mark.parametrize("text", ["", "{}", '[{"writer":1}]', "\xff"])
def test_a_file_that_is_no_anchor_is_exit_2(tmp_path: Path, text: str) -> None:
    anchor = tmp_path / "anchor"
    anchor.write_text(text, encoding="latin-1")

    assert run(tmp_path, "--anchor", anchor).exit_code == 2


def test_a_written_anchor_is_compared_later(tmp_path: Path) -> None:
    log, anchor = tmp_path / "audit", tmp_path / "anchor"
    write_log(log)
    assert run(log, "--write-anchor", anchor).exit_code == 0
    write_log(log)
    assert run(log, "--anchor", anchor).exit_code == 0

    only_writer(log).rename(tmp_path / "elsewhere")

    assert run(log, "--anchor", anchor).exit_code == 1


def test_no_anchor_is_written_of_a_changed_log(tmp_path: Path) -> None:
    write_log(tmp_path)
    tamper(tmp_path)

    run(tmp_path, "--write-anchor", tmp_path / "anchor")

    assert not (tmp_path / "anchor").exists()


def test_json_has_the_counts_of_each_writer(tmp_path: Path) -> None:
    write_log(tmp_path)

    answer = orjson.loads(run(tmp_path, "--json").output)

    (writer,) = answer["writers"]
    assert (writer["state"], writer["lines"], writer["open_calls"]) == ("closed", 21, 0)
    assert answer["problems"] == []


def test_a_terminal_gets_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    tamper(tmp_path)

    audit._show(verify(tmp_path))

    shown = capsys.readouterr().out
    assert "open calls" in shown
    assert "1 problem" in shown


def test_a_long_log_is_read_with_its_progress_told(tmp_path: Path) -> None:
    write_log(tmp_path, rotate_bytes=2_000)
    told: list[int] = []

    verify(tmp_path, progress=told.append)

    assert sum(told) == sum(file.stat().st_size for file in tmp_path.glob("*/*.jsonl"))


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_where_there_is_no_log_nothing_is_called_well(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    result = run(tmp_path, *options)

    assert result.exit_code == 1
    if options:
        assert orjson.loads(result.output)["ok"] is False
    else:
        assert result.output == "0 lines of 0 writers: there is no log here\n"


def test_an_anchor_that_cannot_be_written_is_exit_2_after_the_answer(tmp_path: Path) -> None:
    write_log(tmp_path / "audit")

    result = run(tmp_path / "audit", "--write-anchor", tmp_path / "none" / "anchor.json")

    assert result.exit_code == 2
    assert "1 writer: ok" in result.stdout
    assert "No such file or directory" in result.stderr
