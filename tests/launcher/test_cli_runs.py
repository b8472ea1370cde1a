from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from typer.testing import CliRunner

from callgate.audit.events import Event
from callgate.cli import runs
from callgate.cli.table import fitting
from callgate.errors import LimitInfo
from callgate.gate import run_events
from callgate.launcher.protocol import Stopped
from callgate.model import Usage
from callgate.stores.place import state_dir
from tests.audit.helpers import START_NS, open_log, ticking
from tests.launcher.helpers import on_a_terminal

if TYPE_CHECKING:
    from typing import Any

    from typer.testing import Result

    from callgate.audit import AuditLog

OOM = Stopped(
    "oom",
    "paused",
    signal=9,
    usage=Usage(cpu_ns=250_000_000, memory_peak_bytes=256 * 2**20),
    limit=LimitInfo("memory", "agent:web", 268435456, 268435456),
)
GOOD = Stopped("exited", "stopped", exit_code=0)


@pytest.fixture(autouse=True)
def _state(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def log_at(start_ns: int = START_NS) -> AuditLog:
    path = state_dir() / "audit"
    return open_log(path, clock=ticking(start_ns, 1_000_000_000))


def put(log: AuditLog, run_id: str, agent: str, stopped: Stopped | None) -> None:
    """A run of 1.5 s, or one without an end."""
    for event in run_events.started(agent, run_id, {}):
        log.write(event)
    if stopped is not None:
        log.write(run_events.ended(agent, run_id, stopped, 1_500_000_000))


def write(**ends: Stopped | None) -> None:
    log = log_at()
    for name, stopped in ends.items():
        run_id, _, agent = name.partition("_")
        put(log, run_id, agent, stopped)
    log.close()


def invoke(*args: str) -> Result:
    return CliRunner().invoke(runs.app, args)


def told(*args: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(invoke("--json", *args).stdout)
    return found


def test_runs_are_shown_newest_first_with_reason_and_use() -> None:
    write(r1_web=OOM, r2_db=GOOD)

    result = invoke()

    assert result.exit_code == 0
    header, good, oom = result.stdout.splitlines()
    assert header.split()[:4] == ["started", "agent", "state", "reason"]
    assert good.split()[2:] == ["db", "stopped", "exited", "1.5", "s", "0", "r2"]
    end = "web paused oom 1.5 s signal 9 250 ms 256 MiB memory agent:web 268435456 r1"
    assert oom.split()[2:] == end.split()
    assert "\x1b" not in result.output


def test_json_has_every_member_and_times_that_people_read() -> None:
    write(r1_web=OOM)

    (run,) = told()

    assert (run["run_id"], run["state"], run["reason"], run["lasted_ms"]) == (
        *("r1", "paused", "oom"),
        1500,
    )
    assert (run["cpu_ms"], run["memory_peak_bytes"], run["signal"]) == (250, 256 * 2**20, 9)
    assert run["ended"] > run["started"] > "2025-11-17T17:20:00"


def test_a_run_lasts_from_its_launch() -> None:
    """Its start is recorded when it is connected, which is later."""
    log = log_at()
    for event in run_events.started("web", "r1", {}):
        log.write(event)
    log.write(run_events.ended("web", "r1", GOOD, 60_000_000_000))
    log.close()

    (run,) = told()

    assert run["lasted_ms"] == 60_000
    assert run["started"] < "2025-11-17T17:20:00"


def test_an_agent_a_state_a_time_and_a_number_can_be_asked_for() -> None:
    write(r1_web=OOM, r2_db=GOOD, r3_web=GOOD, r4_web=OOM)

    assert [run["run_id"] for run in told("--agent", "web")] == ["r4", "r3", "r1"]
    assert [run["run_id"] for run in told("--agent", "web", "--limit", "1")] == ["r4"]
    assert [run["run_id"] for run in told("--state", "stopped")] == ["r3", "r2"]
    assert told("--since", "1h") == []
    assert [run["run_id"] for run in told("r3")] == ["r3"]
    assert invoke("--state", "dead").exit_code == 2


def test_one_run_is_told_in_detail() -> None:
    log = log_at()
    put(log, "r1", "web", None)
    log.write(
        Event(event="agent.resource_warning", agent="web", run_id="r1", limit="cpu agent:web")
    )
    code = "absent"
    log.write(
        Event(event="agent.containment_degraded", agent="web", run_id="r1", limit="net", code=code)
    )
    log.write(run_events.ended("web", "r1", OOM, 1))
    log.close()

    shown = invoke("r1").stdout

    for text in ("reason", "oom", "268,435,456 of 268,435,456", "cpu agent:web", "net: absent"):
        assert text in shown


def test_a_run_without_an_end_runs_only_while_its_callgate_does() -> None:
    log = log_at()
    put(log, "r1", "web", None)
    assert [run["state"] for run in told()] == ["running"]

    log.close()
    assert [(run["state"], run["reason"]) for run in told()] == [("lost", "parent_exit")]

    again = log_at(START_NS + 100 * 10**9)  # in the same writer
    put(again, "r2", "web", None)
    assert [run["state"] for run in told()] == ["running", "lost"]
    again.close()


def test_without_any_run_nothing_is_made_and_it_is_said_where_they_are_written() -> None:
    result = invoke()

    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was recorded yet" in result.stderr
    assert not (state_dir() / "audit").exists()


def test_a_terminal_gets_a_table_in_colour() -> None:
    write(r1_web=OOM)

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
