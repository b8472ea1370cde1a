from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest

from callgate.model import OTHERS
from callgate.stores.sqlite import QuotaStore
from tests.conftest import FULL
from tests.limits.helpers import HOUR_NS, MINUTE_NS

ROOT = Path(__file__).parents[2]
BLOCK = 10

SPENDER = """
import sqlite3, sys
from pathlib import Path
from callgate.stores.sqlite import QuotaStore
path, limit = Path(sys.argv[1]), int(sys.argv[2])
def patiently(act):
    while True:
        try:
            return act()
        except sqlite3.OperationalError:  # the others had the file too long; try again
            pass
store = patiently(lambda: QuotaStore(path, "test"))
sys.stdin.readline()
while granted := patiently(lambda: store.reserve("bot", 7, 10, limit, 3_600_000_000_000)):
    sys.stdout.write(f"{granted}\\n")
    sys.stdout.flush()
"""


def spender(path: Path, limit: int) -> subprocess.Popen[str]:
    """A process that reserves blocks until none is left, once it is told to begin."""
    return subprocess.Popen(
        [sys.executable, "-c", SPENDER, str(path), str(limit)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.close()


def granted_to(process: subprocess.Popen[str]) -> int:
    """All that a process was granted before it ended."""
    assert process.stdout is not None
    with process.stdout as lines:
        total = sum(int(line) for line in lines if line.endswith("\n"))
    process.wait(timeout=30)
    return total


def reserve(store: QuotaStore, caller: str = "bot", window: int = 7, limit: int = 25) -> int:
    return store.reserve(caller, window, BLOCK, limit, HOUR_NS)


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        (count,) = db.execute("SELECT COUNT(*) FROM quota").fetchone()
    return int(count)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "quota.db"


def test_it_hands_out_blocks_until_the_quota_is_spent(path: Path) -> None:
    with closing(QuotaStore(path, "test")) as store:
        assert [reserve(store) for _ in range(5)] == [10, 10, 5, 0, 0]


def test_what_is_spent_stays_spent_over_a_restart(path: Path) -> None:
    with closing(QuotaStore(path, "test")) as store:
        reserve(store)
        reserve(store)

    with closing(QuotaStore(path, "test")) as store:
        assert [reserve(store) for _ in range(2)] == [5, 0]


def test_a_new_window_begins_with_nothing_spent(path: Path) -> None:
    with closing(QuotaStore(path, "test")) as store:
        for _ in range(3):
            reserve(store)

        assert reserve(store, window=8) == BLOCK


def test_a_window_older_than_the_one_on_record_gets_nothing(path: Path) -> None:
    with closing(QuotaStore(path, "test")) as store:
        reserve(store, window=8)

        assert reserve(store, window=7) == 0
        assert reserve(store, window=8) == BLOCK


def test_a_lowered_quota_below_what_is_spent_gives_nothing(path: Path) -> None:
    with closing(QuotaStore(path, "test")) as store:
        reserve(store, limit=1_000)

        assert reserve(store, limit=5) == 0
        assert reserve(store, limit=15) == 5


def test_callers_and_policies_have_budgets_of_their_own(path: Path) -> None:
    with closing(QuotaStore(path, "one")) as one, closing(QuotaStore(path, "two")) as two:
        for _ in range(3):
            reserve(one, "a")

        assert reserve(one, "a") == 0
        assert reserve(one, "b") == BLOCK
        assert reserve(two, "a") == BLOCK


def test_another_period_and_back_does_not_give_the_budget_back(path: Path) -> None:
    # A policy that is edited to and fro, or two processes before and after a reload.
    with closing(QuotaStore(path, "test")) as store:
        for _ in range(3):
            reserve(store)
        store.reserve("bot", 7 * 60, BLOCK, 25, MINUTE_NS)

        assert reserve(store) == 0


def test_threads_of_a_process_never_get_more_than_the_quota(path: Path) -> None:
    with closing(QuotaStore(path, "test")) as store, ThreadPoolExecutor(8) as threads:
        granted = list(threads.map(lambda _: reserve(store, limit=205), range(40)))

    assert sum(granted) == 205


def test_processes_that_start_together_share_one_quota(path: Path) -> None:
    limit = 505
    processes = [spender(path, limit) for _ in range(4)]
    for process in processes:
        start(process)

    totals = [granted_to(process) for process in processes]

    assert [process.returncode for process in processes] == [0] * 4
    assert sum(totals) == limit


def test_a_process_killed_at_any_moment_never_gives_budget_back(path: Path) -> None:
    limit, rounds = (20_000, 50) if FULL else (2_000, 5)
    total = 0
    for number in range(rounds):
        process = spender(path, limit)
        start(process)
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(number * 7 % 30 + 1)]
        process.send_signal(signal.SIGKILL)
        total += sum(int(line) for line in seen) + granted_to(process)
        assert process.returncode == -signal.SIGKILL

    with closing(QuotaStore(path, "test")) as store:
        rest = sum(iter(lambda: reserve(store, limit=limit), 0))

    # Each kill loses at most the block that was written off and not yet told.
    assert limit - rounds * BLOCK <= total + rest <= limit


def test_a_file_that_another_process_holds_is_an_error_in_bounded_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.stores.sqlite.BUSY_TIMEOUT_S", 0.05)
    with closing(QuotaStore(path, "test")) as store, closing(sqlite3.connect(path)) as other:
        reserve(store)
        other.execute("BEGIN IMMEDIATE")
        before = monotonic()

        with pytest.raises(sqlite3.OperationalError):
            reserve(store)

        assert monotonic() - before < 10
        other.rollback()
        assert [reserve(store) for _ in range(3)] == [BLOCK, 5, 0]


def test_a_file_that_another_process_is_just_making_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("callgate.stores.sqlite.time.sleep", lambda _: other.rollback())

        with closing(QuotaStore(path, "test")) as store:
            assert reserve(store) == BLOCK


def test_a_file_that_stays_locked_while_it_is_opened_is_an_error_in_bounded_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.stores.sqlite.BUSY_TIMEOUT_S", 0.05)
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = monotonic()

        with pytest.raises(sqlite3.OperationalError):
            QuotaStore(path, "test")

        assert monotonic() - before < 10


def test_a_file_that_is_no_database_is_an_error_and_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database\n" * 100)

    with pytest.raises(sqlite3.DatabaseError):
        QuotaStore(path, "test")

    assert path.read_bytes() == b"not a database\n" * 100


def test_only_the_owner_can_read_it(path: Path) -> None:
    with closing(QuotaStore(path, "test")) as store:
        reserve(store)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}

    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert set(modes) >= {"quota.db", "quota.db-wal"}
    assert set(modes.values()) == {0o600}


def test_strangers_fill_a_bounded_number_of_rows_and_then_share_one(path: Path) -> None:
    with closing(QuotaStore(path, "test", max_rows=50)) as store:
        for number in range(200):
            reserve(store, f"~{number:012x}")

        assert rows(path) == 51
        shared = [reserve(store, "~ffffffffffff") for _ in range(2)]
        assert shared == [0, 0]
        with closing(sqlite3.connect(path)) as db:
            (used,) = db.execute("SELECT used FROM quota WHERE caller = ?", (OTHERS,)).fetchone()
        assert used == 25


def test_a_stranger_that_has_a_row_keeps_it(path: Path) -> None:
    with closing(QuotaStore(path, "test", max_rows=5)) as store:
        for number in range(20):
            reserve(store, f"~{number:012x}")

        assert [reserve(store, "~000000000000") for _ in range(3)] == [BLOCK, 5, 0]


def test_rows_of_past_windows_make_room_for_new_strangers(path: Path) -> None:
    with closing(QuotaStore(path, "test", max_rows=50)) as store:
        for number in range(200):
            reserve(store, f"~{number:012x}")

        granted = [reserve(store, f"~new{number:09x}", window=8) for number in range(50)]

        assert granted == [BLOCK] * 50
        assert rows(path) == 50


def test_a_caller_that_the_policy_names_never_shares(path: Path) -> None:
    with closing(QuotaStore(path, "test", max_rows=3)) as store:
        for number in range(10):
            reserve(store, f"~{number:012x}")

        assert [reserve(store, "ci-bot") for _ in range(4)] == [10, 10, 5, 0]
