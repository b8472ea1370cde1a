from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import orjson
import pytest
from typer.testing import CliRunner

from callgate.cli import runs
from callgate.cli.table import fitting
from callgate.launcher.history import History, RunRecord, default_path
from tests.launcher.helpers import on_a_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

OOM = RunRecord(
    run_id="r1",
    agent="web",
    started_ms=1_700_000_000_000,
    state="paused",
    ended_ms=1_700_000_001_500,
    stop_reason="oom",
    signal=9,
    usage={"cpu_ns": 250_000_000, "memory_peak_bytes": 256 * 2**20},
    limit={"type": "memory", "scope": "agent:web", "limit": 268435456, "usage": 268435456},
    effective={"memory": {"status": "enforced", "reason": ""}},
)
LIVE = RunRecord("r2", "db", started_ms=1_700_000_002_000, state="running")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def write(*records: RunRecord) -> None:
    history = History(default_path())
    for record in records:
        history.put(record)
    history.close()


def invoke(*args: str) -> Result:
    return CliRunner().invoke(runs.app, args)


def test_runs_are_shown_newest_first_with_reason_and_use() -> None:
    write(OOM, LIVE)

    result = invoke()

    assert result.exit_code == 0
    header, live, oom = result.output.splitlines()
    assert header.split()[:4] == ["started", "agent", "state", "reason"]
    assert live.split()[2:] == ["db", "running", "r2"]
    end = "web paused oom 1.5 s signal 9 250 ms 256 MiB memory 256 MiB r1"
    assert oom.split()[2:] == end.split()
    assert "\x1b" not in result.output


def test_json_has_every_member() -> None:
    write(OOM)

    assert orjson.loads(invoke("--json").output) == [msgspec.to_builtins(OOM)]


def test_an_agent_and_a_number_can_be_asked_for() -> None:
    write(OOM, LIVE, msgspec.structs.replace(OOM, run_id="r3", started_ms=1))

    shown = orjson.loads(invoke("--json", "--agent", "web", "--limit", "1").output)

    assert [one["run_id"] for one in shown] == ["r1"]


def test_without_any_run_nothing_is_made_and_nothing_is_wrong() -> None:
    result = invoke()

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no runs yet\n")
    assert invoke("--agent", "web").stderr == "no runs of agent web\n"
    assert invoke("--json").stdout == "[]\n"
    assert not default_path().exists()


def test_a_file_that_is_no_history_is_exit_1() -> None:
    default_path().parent.mkdir()
    default_path().write_text("something else" * 100)

    result = invoke()

    assert result.exit_code == 1
    assert str(default_path()) in result.stderr


def test_a_terminal_gets_a_table_in_colour() -> None:
    write(OOM)

    code, shown = on_a_terminal("runs")

    assert code == 0
    assert "\x1b[33mpaused" in shown


@pytest.mark.parametrize(
    ("room", "shown"),
    [(30, [0, 1, 2, 3]), (29, [0, 1, 3]), (22, [0, 1, 3]), (21, [0, 3]), (5, [0, 3])],
)
def test_a_narrow_terminal_loses_whole_columns_and_never_half_a_number(
    room: int, shown: list[int]
) -> None:
    columns = ("started", "cpu", "run", "reason")

    assert fitting(columns, (7, 3, 6, 6), ("run", "cpu"), room) == shown
