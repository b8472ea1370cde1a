from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from callgate.audit import AuditLog, Event
from callgate.audit.events import admitted, call_fragment, ended
from callgate.audit.verify import verify
from callgate.model import AuditSpec
from tests.audit.helpers import (
    FRAGMENT,
    START_NS,
    begin,
    call_id,
    end,
    events,
    only_writer,
    open_log,
    records,
    run_python,
    ticking,
    write_log,
)


def test_a_recorded_line_is_on_disk_when_record_returns(tmp_path: Path) -> None:
    log = open_log(tmp_path)

    begin(log, 1)

    assert records(tmp_path)[-1]["request_id"] == call_id(1)


def test_staged_lines_are_written_by_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    writes: list[bytes] = []

    def write(_: int, data: bytes) -> int:
        writes.append(data)
        return len(data)

    monkeypatch.setattr("callgate.audit.writer.os_write", write)

    log.stage(admitted(FRAGMENT, call_id(1)), 1)
    log.stage(ended("tool.call.completed", FRAGMENT, call_id(1)), -1)
    assert writes == []
    log.flush()

    (data,) = writes
    assert [orjson.loads(line)["seq"] for line in data.splitlines()] == [2, 3]


def test_a_record_after_staged_lines_comes_after_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.stage(admitted(FRAGMENT, call_id(1)), 1)

    end(log, 1)
    log.close()

    assert events(tmp_path)[-2:] == ["tool.call.admitted", "tool.call.completed"]
    assert verify(tmp_path).ok


def test_closing_writes_what_is_staged(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.stage(Event(event="policy.loaded").body())

    log.close()

    assert events(tmp_path)[-1] == "policy.loaded"


def test_only_the_owner_can_read_the_audit(tmp_path: Path) -> None:
    write_log(tmp_path / "audit", rotate_bytes=1000)

    for entry in (tmp_path / "audit", *(tmp_path / "audit").rglob("*")):
        assert entry.stat().st_mode & 0o777 == (0o700 if entry.is_dir() else 0o600), entry


def test_every_segment_begins_with_a_header_and_ends_with_a_closing(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=2000)
    begin(log, 999)
    for number in range(20):
        begin(log, number)
        end(log, number)
    writer = only_writer(tmp_path)
    files = sorted(writer.glob("*.jsonl"))
    assert len(files) > 3

    closing = {"hash": "0" * 64}
    for number, file in enumerate(files, 1):
        lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        assert lines[0]["event"] == "audit.started"
        assert lines[0]["segment"] == f"{writer.name}/{number}"
        assert lines[0]["policy"] == "rev1"
        assert lines[0]["prev"] == closing["hash"]
        assert lines[0]["count"] in ({0} if number == 1 else {1, 2})
        closing = lines[-1]
        if file != files[-1]:
            assert closing["event"] == "audit.segment_closed"
            assert file.stat().st_size >= 2000
    log.close()
    assert not verify(tmp_path).tampered


def test_a_second_start_goes_on_in_the_same_chain(tmp_path: Path) -> None:
    for _ in range(3):
        write_log(tmp_path, calls=2)

    assert [record["seq"] for record in records(tmp_path)] == list(range(1, 16))
    assert events(tmp_path).count("audit.started") == 3
    assert verify(tmp_path).ok


def test_a_clean_start_reads_no_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path)

    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("callgate.audit.recovery._read", fail)
    open_log(tmp_path).close()


def test_two_logs_at_once_have_two_writers_and_later_ones_reuse_them(tmp_path: Path) -> None:
    for _ in range(3):
        first, second = open_log(tmp_path), open_log(tmp_path)
        assert first.checkpoint()["writer"] != second.checkpoint()["writer"]
        begin(first, 1)
        begin(second, 2)
        end(second, 2)
        end(first, 1)
        first.close()
        second.close()

    assert len(list(tmp_path.glob("*/HEAD"))) == 2
    assert verify(tmp_path).ok


def test_another_process_s_writer_is_left_alone(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.audit.helpers import begin, open_log\n"
        "log = open_log(Path(sys.argv[1])); begin(log, 1)\n"
        "print(log.checkpoint()['writer'], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path.cwd())},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        theirs = child.stdout.readline().decode().strip()
        before = (tmp_path / theirs / "00000001.jsonl").read_bytes()

        log = open_log(tmp_path)
        ours = log.checkpoint()["writer"]
        live = {one.writer: one.state for one in verify(tmp_path).writers}
        log.close()

        assert theirs != ours
        assert (tmp_path / theirs / "00000001.jsonl").read_bytes() == before
        assert live == {theirs: "live", ours: "live"}
        child.stdin.close()


FORK = """
import os, sys
from pathlib import Path
from callgate.errors import AuditUnavailable
from tests.audit.helpers import begin, end, open_log
log = open_log(Path(sys.argv[1]))
begin(log, 1)
child = os.fork()
if not child:
    try:
        begin(log, 2)
    except AuditUnavailable:
        log.close()
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
end(log, 1)
log.close()
"""


def test_a_forked_child_is_refused_and_the_parent_s_chain_stays_whole(tmp_path: Path) -> None:
    parent = run_python(FORK, tmp_path)

    assert parent.returncode == 0, parent.stderr.decode()
    assert [record["seq"] for record in records(tmp_path)] == [1, 2, 3]
    assert verify(tmp_path).ok


def test_a_checkpoint_is_the_last_line(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 1)

    last = records(tmp_path)[-1]
    assert log.checkpoint() == {
        "writer": only_writer(tmp_path).name,
        "seq": last["seq"],
        "hash": last["hash"],
    }


def test_an_unwritable_path_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        AuditLog.open(AuditSpec(path=str(tmp_path / "file" / "audit")), policy="rev1")


def test_closed_segments_older_than_keep_are_deleted_and_recorded(tmp_path: Path) -> None:
    hour = 3600 * 10**9
    write_log(tmp_path, rotate_bytes=1500, keep_ns=None)
    old = len(list(tmp_path.glob("*/*.jsonl")))

    later = ticking(START_NS + 2 * hour)
    open_log(tmp_path, rotate_bytes=1500, keep_ns=hour, clock=later).close()

    deleted = [r["segment"] for r in records(tmp_path) if r["event"] == "audit.segment_deleted"]
    writer = only_writer(tmp_path).name
    assert deleted == [f"{writer}/{number}" for number in range(1, old)]
    assert [file.name for file in only_writer(tmp_path).glob("*.jsonl")] == [f"{old:08d}.jsonl"]
    assert verify(tmp_path).ok


def test_a_segment_s_age_is_that_of_its_last_record(tmp_path: Path) -> None:
    write_log(tmp_path, rotate_bytes=1500)
    before = len(list(tmp_path.glob("*/*.jsonl")))

    open_log(tmp_path, rotate_bytes=1500, keep_ns=3600 * 10**9).close()

    assert len(list(tmp_path.glob("*/*.jsonl"))) == before


def test_the_log_stays_under_max_bytes_while_it_is_written(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=2000, max_bytes=10_000)
    for number in range(500):
        begin(log, number)
        end(log, number)
        total = sum(file.stat().st_size for file in tmp_path.glob("*/*.jsonl"))
        assert total <= 10_000 + 2_600  # the current segment is never deleted
    log.close()

    report = verify(tmp_path)
    assert report.ok
    assert report.writers[0].deleted > 100


def test_closed_segments_of_a_writer_that_nobody_holds_are_trimmed_in_its_own_chain(
    tmp_path: Path,
) -> None:
    first, second = open_log(tmp_path, rotate_bytes=1500), open_log(tmp_path, rotate_bytes=1500)
    for number in range(20):
        for log in (first, second):
            begin(log, number)
            end(log, number)
    first.close()
    second.close()

    open_log(tmp_path, rotate_bytes=1500, max_bytes=1).close()

    for directory in tmp_path.glob("*-*"):
        assert len(list(directory.glob("*.jsonl"))) == 1
    assert verify(tmp_path).ok


def test_a_call_that_ends_after_its_start_was_deleted_is_no_problem(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=2000, max_bytes=6000)
    begin(log, 999)
    for number in range(50):
        begin(log, number)
        end(log, number)
    end(log, 999)
    log.close()

    report = verify(tmp_path)
    assert report.writers[0].deleted > 0
    assert report.ok


def test_a_deleted_audit_directory_is_made_again_and_verify_says_what_is_gone(
    tmp_path: Path,
) -> None:
    second = 10**9
    log = open_log(tmp_path, clock=ticking(step_ns=second))
    begin(log, 1)
    writer = only_writer(tmp_path)
    for file in writer.iterdir():
        file.unlink()
    writer.rmdir()

    end(log, 1)  # into the deleted file; its look at the descriptor finds out
    begin(log, 2)
    end(log, 2)
    log.close()

    assert events(tmp_path)[-2:] == ["tool.call.admitted", "tool.call.completed"]
    report = verify(tmp_path)
    assert [problem.kind for problem in report.problems] == ["segment"]


def test_the_fragment_of_a_lane_is_in_each_of_its_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.record(admitted(call_fragment("~0123456789ab", "fs", None, "rev1"), call_id(1)), 1)

    record = records(tmp_path)[-1]
    assert (record["caller"], record["agent"], record.get("tool")) == ("~0123456789ab", "fs", None)
