from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import msgspec
import pytest

from callgate.launcher.history import History, RunRecord, default_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDED = RunRecord(
    run_id="r1",
    agent="web",
    started_ms=1_000,
    state="crashed",
    ended_ms=2_500,
    stop_reason="oom",
    exit_code=None,
    signal=9,
    usage={"memory_bytes": 512},
    limit={"type": "memory", "limit": 256, "usage": 512},
    effective={"memory": "enforced"},
)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    store = History(tmp_path / "runs.sqlite")
    yield store
    store.close()


def record(number: int, *, agent: str = "web", ended: bool = True) -> RunRecord:
    return RunRecord(
        run_id=f"r{number}",
        agent=agent,
        started_ms=number,
        state="stopped" if ended else "running",
        ended_ms=number + 1 if ended else None,
        stop_reason="exited" if ended else None,
    )


def names(history: History, limit: int = 100, agent: str | None = None) -> list[str]:
    return [one.run_id for one in history.recent(limit, agent)]


def test_a_run_comes_back_as_it_was_written(history: History) -> None:
    history.put(ENDED)

    assert history.recent(10) == [ENDED]


def test_the_end_of_a_run_replaces_its_start(history: History) -> None:
    history.put(
        msgspec.structs.replace(ENDED, state="running", ended_ms=None, stop_reason=None, limit=None)
    )
    history.put(ENDED)

    assert history.recent(10) == [ENDED]


def test_the_newest_come_first_and_no_more_than_asked_for(history: History) -> None:
    for number in (2, 1, 3):
        history.put(record(number))

    assert names(history, limit=2) == ["r3", "r2"]


def test_one_agent_can_be_asked_for(history: History) -> None:
    history.put(record(1, agent="web"))
    history.put(record(2, agent="db"))

    assert names(history, agent="web") == ["r1"]


def test_the_oldest_go_first_and_those_that_run_stay(tmp_path: Path) -> None:
    history = History(tmp_path / "runs.sqlite", max_rows=3)
    history.put(record(0, ended=False))
    for number in range(1, 10):
        history.put(record(number))

    assert names(history) == ["r9", "r8", "r0"]
    history.close()


def test_even_runs_that_never_end_are_bounded(tmp_path: Path) -> None:
    history = History(tmp_path / "runs.sqlite", max_rows=3)
    for number in range(10):
        history.put(record(number, ended=False))

    assert names(history) == ["r9", "r8", "r7"]
    history.close()


WRITER = textwrap.dedent("""
    import sqlite3, sys, time
    from pathlib import Path
    from callgate.launcher.history import History, RunRecord

    path, name, count = sys.argv[1:]
    until = time.monotonic() + 50

    def patiently(act):
        # SQLite's queue is not fair: who writes without a pause can keep another out for longer
        # than that waits. It is told so, and nothing was written.
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise

    history = patiently(lambda: History(Path(path)))
    for n in range(int(count)):
        run = RunRecord(f"{name}-{n}", "web", started_ms=n, state="running")
        patiently(lambda: history.put(run))
""")


def writer(path: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, path, name, str(count)])


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    writers = [writer(path, name, 100) for name in "ab"]

    assert [process.wait(timeout=60) for process in writers] == [0, 0]
    history = History(path)
    assert sorted(names(history, 1000)) == sorted(f"{w}-{n}" for w in "ab" for n in range(100))
    history.close()


def test_a_run_whose_callgate_is_gone_ended_with_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    assert writer(path, "lost", 1).wait(timeout=60) == 0
    history = History(path)
    history.put(record(1, ended=False))

    states = {one.run_id: (one.state, one.stop_reason) for one in history.recent(10)}
    assert states == {"lost-0": ("stopped", "parent_exit"), "r1": ("running", None)}
    history.close()


def test_another_process_with_the_same_number_is_not_the_owner(
    tmp_path: Path, history: History
) -> None:
    history.put(record(1, ended=False))
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        db.execute("UPDATE run SET owner_started = owner_started - 100")
    db.close()

    assert history.recent(1)[0].stop_reason == "parent_exit"


def test_a_failed_write_leaves_the_file_usable(history: History) -> None:
    with pytest.raises(OverflowError):
        history.put(msgspec.structs.replace(ENDED, started_ms=2**70))
    history.put(ENDED)

    assert names(history) == ["r1"]


def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    History(tmp_path / "state" / "runs.sqlite").close()

    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state" / "runs.sqlite").stat().st_mode) == 0o600


def test_its_place_follows_the_users_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "callgate" / "runs.sqlite"

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/alice")
    assert str(default_path()) == "/home/alice/.local/state/callgate/runs.sqlite"
