"""A disk that is full, broken or gone."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from callgate.audit import writer as writer_module
from callgate.audit.events import admitted, ended
from callgate.audit.verify import verify
from callgate.errors import AuditUnavailable
from tests.audit.helpers import (
    FRAGMENT,
    begin,
    call_id,
    end,
    events,
    only_writer,
    open_log,
    records,
    run_python,
)

if TYPE_CHECKING:
    from pathlib import Path

real_write = os.write
real_truncate = os.ftruncate


class Disk:
    """Stands before write(2): with `room` it passes, without it writes a part or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = True
        self.can_truncate = True
        self.part = 0
        self.turns: list[bool] = []
        self.error = errno.ENOSPC
        monkeypatch.setattr(writer_module, "os_write", self.write)
        monkeypatch.setattr(os, "ftruncate", self.truncate)

    def write(self, fd: int, data: bytes) -> int:
        if self.turns.pop(0) if self.turns else self.room:
            return real_write(fd, data)
        if self.part:
            return real_write(fd, data[: self.part])
        raise OSError(self.error, "no")

    def truncate(self, fd: int, size: int) -> None:
        if not self.can_truncate:
            raise OSError(errno.EIO, "no")
        real_truncate(fd, size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def content(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.glob("*/*.jsonl")))


@pytest.mark.parametrize("part", [0, 1, 100, 250])
def test_a_line_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, disk: Disk, part: int
) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    before, checkpoint = content(tmp_path), log.checkpoint()
    disk.room, disk.part = False, part

    with pytest.raises(AuditUnavailable):
        begin(log, 2)

    assert content(tmp_path) == before
    assert log.checkpoint() == checkpoint
    assert log.snapshot()["open_calls"] == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT])
def test_writing_goes_on_unaided_when_there_is_room_again(
    tmp_path: Path, disk: Disk, error: int
) -> None:
    log = open_log(tmp_path)
    disk.room, disk.error = False, error
    for number in range(3):
        with pytest.raises(AuditUnavailable):
            begin(log, number)
    assert not log.snapshot()["available"]
    disk.room = True

    begin(log, 9)
    end(log, 9)
    log.close()

    gap = records(tmp_path)[-3]
    assert (gap["event"], gap["code"], gap["count"]) == ("audit.recovered", "audit.unavailable", 3)
    assert verify(tmp_path).ok


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path)
    before = content(tmp_path)
    disk.room, disk.part = False, 500  # one line and a half
    for number in range(5):
        log.stage(admitted(FRAGMENT, call_id(number)), 1)

    with pytest.raises(AuditUnavailable):
        log.flush()

    assert content(tmp_path) == before
    assert log.snapshot()["open_calls"] == 0
    log.flush()  # nothing is left to be written


def test_a_batch_that_fails_leaves_the_calls_that_it_ends_open(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    disk.room = False
    log.stage(ended("tool.call.completed", FRAGMENT, call_id(1)), -1)
    with pytest.raises(AuditUnavailable):
        log.flush()
    assert log.snapshot()["open_calls"] == 1

    disk.room = True
    begin(log, 2)
    end(log, 2)
    log.close()

    assert [one["event"] for one in records(tmp_path)].count("tool.call.lost") == 1
    assert verify(tmp_path).ok


def test_a_call_that_ran_is_not_to_be_sent_again(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    disk.room = False

    with pytest.raises(AuditUnavailable) as before_it_ran:
        begin(log, 2)
    with pytest.raises(AuditUnavailable) as after_it_ran:
        end(log, 1)

    assert before_it_ran.value.retryable
    assert not after_it_ran.value.retryable


def test_a_call_whose_end_could_not_be_written_is_lost_at_the_next_start(
    tmp_path: Path, disk: Disk
) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    disk.room = False
    with pytest.raises(AuditUnavailable):
        end(log, 1)
    disk.room = True
    log.close()

    assert [problem.kind for problem in verify(tmp_path).problems] == ["recovery"]
    open_log(tmp_path).close()

    assert events(tmp_path).count("tool.call.lost") == 1
    assert verify(tmp_path).ok


def test_a_tail_that_cannot_be_cut_is_cut_before_the_next_line(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path)
    before = content(tmp_path)
    disk.room, disk.part, disk.can_truncate = False, 100, False
    with pytest.raises(AuditUnavailable):
        begin(log, 1)
    assert len(content(tmp_path)) == len(before) + 100

    disk.room = True
    with pytest.raises(AuditUnavailable):  # it still cannot be cut, so nothing may follow
        begin(log, 2)
    disk.can_truncate = True
    begin(log, 3)
    end(log, 3)
    log.close()

    assert verify(tmp_path).ok


def test_a_log_that_is_closed_with_a_tail_to_cut_is_not_clean(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path)
    disk.room, disk.part, disk.can_truncate = False, 100, False
    with pytest.raises(AuditUnavailable):
        begin(log, 1)
    log.close()

    assert [problem.kind for problem in verify(tmp_path).problems] == ["recovery"]
    disk.room = disk.can_truncate = True
    open_log(tmp_path).close()
    assert verify(tmp_path).ok


def test_drop_mode_counts_and_lets_the_call_pass(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path, fail_closed=False)
    disk.room = False
    begin(log, 1)
    log.stage(admitted(FRAGMENT, call_id(2)), 1)
    log.flush()
    assert log.dropped == 2

    disk.room = True
    end(log, 1)  # its start was dropped
    log.close()

    gap = records(tmp_path)[-2]
    assert (gap["code"], gap["count"]) == ("audit.dropped", 2)
    assert not verify(tmp_path).tampered


def test_calls_with_dropped_ends_are_found_at_the_next_start(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path, fail_closed=False, rotate_bytes=1000)
    begin(log, 1)
    disk.room = False
    begin(log, 2)
    end(log, 1)
    disk.room = True
    end(log, 2)
    for number in range(10, 30):
        begin(log, number)
        end(log, number)
    log.close()

    open_log(tmp_path, rotate_bytes=1000).close()

    lost = [r["request_id"] for r in records(tmp_path) if r["event"] == "tool.call.lost"]
    assert lost == [call_id(1)]
    assert verify(tmp_path).ok


def test_a_segment_that_cannot_be_begun_costs_no_written_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, rotate_bytes=1000)
    real_open = os.open

    def no_new_files(path: Path, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "no")
        return real_open(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", no_new_files)
    written = 0
    with suppress(AuditUnavailable):
        for number in range(10):
            log.record(admitted(FRAGMENT, call_id(number)), 1)
            written += 1
    assert 1 < written < 10
    monkeypatch.setattr(os, "open", real_open)
    assert events(tmp_path).count("tool.call.admitted") == written

    for number in range(written):
        log.record(ended("tool.call.completed", FRAGMENT, call_id(number)), -1)
    log.close()

    assert len(list(only_writer(tmp_path).glob("*.jsonl"))) > 1
    assert verify(tmp_path).ok


def test_a_segment_whose_closing_cannot_be_written_goes_on(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path, rotate_bytes=1)
    disk.turns = [True, False]  # the record, and the closing behind it

    begin(log, 1)
    assert events(tmp_path) == ["audit.started", "tool.call.admitted"]
    end(log, 1)
    log.close()

    assert len(list(only_writer(tmp_path).glob("*.jsonl"))) == 2
    assert verify(tmp_path).ok


REAL_LIMIT = """
import resource, sys
from pathlib import Path
from callgate.errors import AuditUnavailable
from tests.audit.helpers import begin, end, open_log
log = open_log(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))
number = refused = 0
while refused < 3:
    number += 1
    try:
        begin(log, number)
        end(log, number)
    except AuditUnavailable:
        refused += 1
(file,) = Path(sys.argv[1]).glob("*/*.jsonl")
assert file.read_bytes().endswith(b"\\n")
assert file.stat().st_size <= 5_000
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
begin(log, 10_000)
end(log, 10_000)
log.close()
"""


def test_a_real_limit_of_the_kernel_on_the_file_refuses_and_recovers(tmp_path: Path) -> None:
    child = run_python(REAL_LIMIT, tmp_path)

    assert child.returncode == 0, child.stderr.decode()
    assert events(tmp_path)[-3:] == ["audit.recovered", "tool.call.admitted", "tool.call.completed"]
    assert not verify(tmp_path).tampered
