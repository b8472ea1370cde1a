"""An open call outlives the segment in which it began."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import orjson
import pytest

from callgate.audit.events import TERMINAL
from callgate.audit.verify import verify
from tests.audit.helpers import (
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
)

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.audit import AuditLog

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.audit.helpers import begin, end, open_log
log = open_log(Path(sys.argv[1]), rotate_bytes=2000, max_bytes=6000)
begin(log, 999)
for number in range(60):
    begin(log, number)
    end(log, number)
assert not (log._writer.directory / "00000001.jsonl").exists()
os.kill(os.getpid(), signal.SIGKILL)
"""


def fill(log: AuditLog, calls: range) -> None:
    for number in calls:
        begin(log, number)
        end(log, number)


def test_a_call_whose_segment_was_deleted_is_lost_after_kill_9(tmp_path: Path) -> None:
    child = run_python(KILLED, tmp_path)
    assert child.returncode == -9, child.stderr.decode()
    assert call_id(999) not in {
        r["request_id"] for r in records(tmp_path) if r["event"] == "tool.call.admitted"
    }
    (writer,) = verify(tmp_path).writers
    assert (writer.carried, writer.open_calls) == (1, 1)

    open_log(tmp_path).close()

    assert verify(tmp_path).ok
    lost = [r for r in records(tmp_path) if r["event"] == "tool.call.lost"]
    assert [(r["request_id"], r["tool"], r["caller"]) for r in lost] == [
        (call_id(999), "search", "alice")
    ]


def test_each_segment_begins_with_the_calls_that_are_open(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=2000)
    begin(log, 998)
    begin(log, 999)
    fill(log, range(20))
    end(log, 998)
    fill(log, range(20, 40))
    end(log, 999)
    log.close()

    heads = [
        [orjson.loads(line) for line in file.read_bytes().splitlines()[:3]]
        for file in sorted(only_writer(tmp_path).glob("*.jsonl"))
    ]
    assert [r["request_id"] for r in heads[1][1:]] == [call_id(998), call_id(999)]
    assert [r["event"] for r in heads[1]] == ["audit.started"] + ["tool.call.carried"] * 2
    assert call_id(998) not in {r.get("request_id") for r in heads[-1]}
    assert verify(tmp_path).ok


def test_an_end_after_its_start_was_deleted_belongs_to_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=2000, max_bytes=6000)
    begin(log, 999)
    fill(log, range(50))
    end(log, 999)
    log.close()

    report = verify(tmp_path)
    assert report.ok
    assert report.writers[0].deleted > 0
    assert report.writers[0].unknown == 0


def test_a_call_that_was_left_out_at_the_head_of_a_segment_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=2000)
    begin(log, 999)
    log._writer.open.clear()  # as somebody would who wants it forgotten, with a good chain
    fill(log, range(20))
    log.close()

    assert {problem.kind for problem in verify(tmp_path).problems} == {"call"}


def test_a_call_that_was_never_open_cannot_be_carried_in(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=2000)
    fill(log, range(2))
    log._writer.open[call_id(5)] = '"request_id":"' + call_id(5) + '","caller":"x"'
    fill(log, range(10, 20))
    log.close()

    assert "call" in {problem.kind for problem in verify(tmp_path).problems}


def test_a_call_cannot_be_carried_over_in_the_middle_of_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    log.record(f'"event":"tool.call.carried","severity":"info","request_id":"{call_id(1)}"')
    end(log, 1)
    log.close()

    assert [problem.kind for problem in verify(tmp_path).problems] == ["call"]


@pytest.mark.parametrize("part", [10, 400, 800, 1_300])
def test_a_segment_that_died_before_its_calls_were_all_carried_is_begun_again(
    tmp_path: Path, part: int
) -> None:
    log = open_log(tmp_path)
    for number in range(4):
        begin(log, number)
    log._writer.mark("audit.segment_closed")
    log._writer._detach(resume=False)
    log._writer.repair()
    file = only_writer(tmp_path) / "00000002.jsonl"
    whole = file.read_bytes()
    assert len(whole) > 1_500
    seq, digest = log._writer.chain.seq - 5, records(tmp_path)[5]["hash"].encode()
    os.truncate(file, part)
    # As it is when the kernel stops that write in the middle: HEAD has not heard of it.
    log._writer._head.store(seq, digest, 4)
    log._writer._head.store(seq, digest, 4)
    log._writer._good_seq, log._writer._good_hash = seq, digest
    log._writer.close(clean=False)
    assert [problem.kind for problem in verify(tmp_path).problems] == ["recovery"]

    open_log(tmp_path).close()

    assert verify(tmp_path).ok
    ends = Counter(r["request_id"] for r in records(tmp_path) if r["event"] in TERMINAL)
    assert ends == {call_id(number): 1 for number in range(4)}


def test_many_open_calls_make_no_more_than_twice_as_much_to_write(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=1000, max_bytes=None)
    for number in range(200):
        begin(log, 1000 + number)
    fill(log, range(400))

    told = Counter(events(tmp_path))
    rest = sum(number for event, number in told.items() if event != "tool.call.carried")
    assert 200 < told["tool.call.carried"] < 2 * rest
    log.close()


def test_a_segment_that_goes_before_its_time_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_log(tmp_path, rotate_bytes=2000, max_bytes=6000)
    fill(log, range(60))
    log.close()

    gone = [r for r in records(tmp_path) if r["event"] == "audit.segment_deleted"]
    assert {(r["severity"], r["code"]) for r in gone} == {("security", "audit.max_bytes")}
    assert log.snapshot()["flushed"] >= len(gone) > 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1  # once an hour
    assert "is deleted before `keep` is over" in said[0]
    assert verify(tmp_path).ok


def test_a_segment_whose_time_is_over_goes_quietly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hour = 3600 * 10**9
    log = open_log(tmp_path, rotate_bytes=1500, keep_ns=None)
    fill(log, range(10))
    log.close()

    later = open_log(tmp_path, keep_ns=hour, max_bytes=1, clock=ticking(START_NS + 2 * hour))
    later.close()

    gone = [r for r in records(tmp_path) if r["event"] == "audit.segment_deleted"]
    assert {(r["severity"], r.get("code")) for r in gone} == {("info", None)}
    assert later.snapshot()["flushed"] == 0
    assert capsys.readouterr().err == ""


def test_an_end_that_could_not_be_written_is_made_good_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, fail_closed=False)
    begin(log, 1)
    with monkeypatch.context() as patch:
        patch.setattr("callgate.audit.writer.os_write", lambda _fd, _data: 0)
        end(log, 1)
    assert log.open_calls == 0

    fill(log, range(2, 3))
    log.close()

    assert events(tmp_path)[2:4] == ["audit.recovered", "tool.call.lost"]
    assert verify(tmp_path).ok


def test_ends_that_are_made_good_in_parts_are_made_good_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.audit.writer.CHUNK_LINES", 1)
    log = open_log(tmp_path, fail_closed=False)
    for number in range(4):
        begin(log, number)
    room = 0

    def write(fd: int, data: bytes) -> int:
        nonlocal room
        room -= 1
        return os.write(fd, data) if room >= 0 else 0

    monkeypatch.setattr("callgate.audit.writer.os_write", write)
    for number in range(4):
        end(log, number)
    for more in (2, 1, 3, 100):  # the gap and one end; the next; and so on
        room = more
        begin(log, 10 + more)
        end(log, 10 + more)
    log.close()
    monkeypatch.undo()
    open_log(tmp_path).close()

    ends = Counter(r["request_id"] for r in records(tmp_path) if r["event"] in TERMINAL)
    assert {call_id(number): ends[call_id(number)] for number in range(4)} == {
        call_id(number): 1 for number in range(4)
    }
    assert max(ends.values()) == 1
    assert verify(tmp_path).ok
