"""What a start does about processes that died."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from callgate.audit import recovery
from callgate.audit.events import TERMINAL, admitted, call_fragment, call_ids
from callgate.audit.verify import verify
from callgate.audit.writer import Writer
from tests.audit.helpers import (
    begin,
    call_id,
    crash,
    end,
    events,
    only_writer,
    open_log,
    records,
    write_log,
)

if TYPE_CHECKING:
    from callgate.audit.head import HeadState

ROUNDS = 100 if os.environ.get("CALLGATE_RELIABILITY") == "full" else 4

AT_FULL_SPEED = """
import os, sys
from collections import deque
from callgate.audit import AuditLog
from callgate.audit.events import admitted, ended
from callgate.model import AuditSpec
from tests.audit.helpers import FRAGMENT
path, prefix, rotate, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
log = AuditLog.open(AuditSpec(path=path, rotate_bytes=rotate, max_bytes=None), policy="rev1")
number, open_calls = 0, deque()
while True:
    answered = []
    for _ in range(batch):
        number += 1
        request_id = f"{prefix}{number:012x}"
        log.stage(admitted(FRAGMENT, request_id), 1)
        open_calls.append(request_id)
        if len(open_calls) > 8:
            answered.append(open_calls.popleft())
            log.stage(ended("tool.call.completed", FRAGMENT, answered[-1]), -1)
    log.flush()
    if answered:
        os.write(1, b"".join(b"%s\\n" % request_id.encode() for request_id in answered))
"""


def kill_while_writing(path: Path, number: int, rng: random.Random) -> list[str]:
    """The ids that the child had answered when it was killed."""
    prefix = f"0190b2c3-d4e5-7abc-8d{number:02x}-"
    rotate = str(rng.choice([5_000, 50_000, 1 << 26]))
    batch = str(rng.choice([1, 1, 16, 300]))
    with subprocess.Popen(
        [sys.executable, "-c", AT_FULL_SPEED, str(path), prefix, rotate, batch],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path.cwd())},
    ) as child:
        assert child.stdout is not None
        seen = b"".join(child.stdout.readline() for _ in range(rng.randrange(1, 2_000)))
        child.kill()
        seen += child.stdout.read()
    return [line for line in seen.decode().split("\n")[:-1] if len(line) == 36]


def test_after_kill_9_every_answered_call_has_its_end_and_every_call_exactly_one(
    tmp_path: Path,
) -> None:
    rng = random.Random(12)  # noqa: S311 - not for secrets
    for number in range(ROUNDS):
        answered = kill_while_writing(tmp_path, number, rng)
        assert not verify(tmp_path).tampered
        found = {r["request_id"] for r in records_whole(tmp_path) if r["event"] in TERMINAL}
        assert found.issuperset(answered)

        open_log(tmp_path, rotate_bytes=1 << 26, max_bytes=None).close()

        report = verify(tmp_path)
        assert report.ok, report.problems
        ends = Counter(r["request_id"] for r in records(tmp_path) if r["event"] in TERMINAL)
        begun = {r["request_id"] for r in records(tmp_path) if r["event"] == "tool.call.admitted"}
        assert ends.keys() == begun
        assert set(ends.values()) == {1}
        assert len(report.writers) == 1
        if number % 10 == 9:  # keep the later rounds quick
            for file in only_writer(tmp_path).iterdir():
                file.unlink()
            only_writer(tmp_path).rmdir()


def records_whole(path: Path) -> list[dict[str, Any]]:
    """The records of a log whose last line may be torn."""
    for file in path.glob("*/*.jsonl"):
        data = file.read_bytes()
        if not data.endswith(b"\n"):
            file.with_suffix(".torn").write_bytes(data)
            file.write_bytes(data[: data.rfind(b"\n") + 1])
    try:
        return records(path)
    finally:
        for file in path.glob("*/*.torn"):
            file.replace(file.with_suffix(".jsonl"))


def test_open_calls_are_closed_as_lost_under_their_own_names(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    ids = call_ids(call_id(50), call_id(51), "ab" * 16)
    fragment = call_fragment("~0123456789ab", "fs", "read", "rev7")
    log.record(admitted(fragment, call_id(1), ids), 1)
    log._writer.close(clean=False)

    open_log(tmp_path).close()

    (lost,) = (record for record in records(tmp_path) if record["event"] == "tool.call.lost")
    names = ("caller", "agent", "tool", "policy", "correlation_id", "causation_id", "trace_id")
    assert [lost[name] for name in names] == [
        "~0123456789ab",
        "fs",
        "read",
        "rev7",
        call_id(50),
        call_id(51),
        "ab" * 16,
    ]
    assert (lost["request_id"], lost["severity"], lost["outcome"]) == (
        call_id(1),
        "error",
        "unknown",
    )


@pytest.mark.parametrize("rotate_bytes", [1, 1_000, 4_000, 1 << 20])
def test_open_calls_are_found_in_whatever_segment_they_began(
    tmp_path: Path, rotate_bytes: int
) -> None:
    crash(tmp_path, rotate_bytes=rotate_bytes)

    open_log(tmp_path).close()

    lost = [r["request_id"] for r in records(tmp_path) if r["event"] == "tool.call.lost"]
    assert sorted(lost) == [call_id(number) for number in (0, 7, 14)]
    recovered = next(r for r in records(tmp_path) if r["event"] == "audit.recovered")
    assert recovered["count"] == 3
    assert verify(tmp_path).ok


def test_recovery_reads_no_more_segments_than_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, rotate_bytes=1_500)
    for number in range(30):
        begin(log, number)
        end(log, number)
    begin(log, 99)
    log._writer.close(clean=False)
    last = len(list(only_writer(tmp_path).glob("*.jsonl")))
    read: list[int] = []
    real_read = recovery._read

    def noted(directory: Path, numbers: list[int], head: HeadState) -> Any:
        read.extend(numbers)
        return real_read(directory, numbers, head)

    monkeypatch.setattr(recovery, "_read", noted)

    open_log(tmp_path).close()

    assert last > 5
    assert read == [last]
    assert events(tmp_path).count("tool.call.lost") == 1


def test_recovering_twice_ends_no_call_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(tmp_path, calls=30)
    monkeypatch.setattr("callgate.audit.writer.CHUNK_LINES", 1)
    real_commit = Writer.commit
    commits: list[bytes] = []

    def die_after_two(self: Writer, data: bytes, opens: int = 0) -> None:
        if len(commits) == 2:
            raise KeyboardInterrupt
        commits.append(data)
        real_commit(self, data, opens)

    monkeypatch.setattr(Writer, "commit", die_after_two)
    with pytest.raises(KeyboardInterrupt):
        open_log(tmp_path)
    monkeypatch.undo()

    open_log(tmp_path).close()

    assert events(tmp_path).count("tool.call.lost") == 5
    assert verify(tmp_path).ok


@pytest.mark.parametrize("cut", [1, 2, 40, 150])
def test_a_torn_last_line_is_cut(tmp_path: Path, cut: int) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    line = log._writer.chain.seal('"event":"policy.loaded","severity":"info"', 0)
    os.write(log._writer._fd, line[:-cut])
    log._writer.close(clean=False)
    assert [problem.kind for problem in verify(tmp_path).problems] == ["recovery"]

    open_log(tmp_path).close()

    assert "policy.loaded" not in events(tmp_path)
    assert verify(tmp_path).ok


def test_a_line_that_head_does_not_know_yet_is_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    line = log._writer.chain.seal('"event":"policy.loaded","severity":"info"', 0)
    os.write(log._writer._fd, line)
    log._writer.close(clean=False)

    open_log(tmp_path).close()

    assert events(tmp_path)[1] == "policy.loaded"
    assert verify(tmp_path).ok


@pytest.mark.parametrize("begun", [b"", b'{"v":2,"seq":'])
def test_a_segment_that_died_before_its_header_is_begun_again(tmp_path: Path, begun: bytes) -> None:
    log = open_log(tmp_path)
    log._writer.mark("audit.segment_closed")
    log._writer.close(clean=False)
    (only_writer(tmp_path) / "00000002.jsonl").write_bytes(begun)
    assert [problem.kind for problem in verify(tmp_path).problems] == ["recovery"]

    open_log(tmp_path).close()

    assert sorted(file.name for file in tmp_path.glob("*/*.jsonl")) == [
        "00000001.jsonl",
        "00000002.jsonl",
    ]
    assert verify(tmp_path).ok


def test_a_writer_that_died_before_its_first_file_is_used(tmp_path: Path) -> None:
    directory = tmp_path / "019a00000000-00000000"
    directory.mkdir()
    (directory / "LOCK").touch()

    write_log(tmp_path)

    assert only_writer(tmp_path) == directory
    assert verify(tmp_path).ok


def edit_a_line(writer: Path) -> None:
    file = writer / "00000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"queue_ms":0', b'"queue_ms":1', 1))


def cut_the_tail(writer: Path) -> None:
    file = writer / "00000001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-3]))


def remove_head(writer: Path) -> None:
    (writer / "HEAD").unlink()


def remove_the_log(writer: Path) -> None:
    (writer / "00000001.jsonl").unlink()


@pytest.mark.parametrize("tamper", [edit_a_line, cut_the_tail, remove_head, remove_the_log])
def test_tampering_is_not_repaired_but_left_and_reported(tmp_path: Path, tamper: Any) -> None:
    crash(tmp_path)
    broken = only_writer(tmp_path)
    tamper(broken)
    before = {file.name: file.read_bytes() for file in broken.iterdir()}

    log = open_log(tmp_path)
    log.close()

    assert {file.name: file.read_bytes() for file in broken.iterdir()} == before
    assert log.checkpoint()["writer"] != broken.name
    assert log.broken == (broken.name,)
    (note,) = (r for r in records(tmp_path) if r.get("code") == "audit.broken")
    assert (note["event"], note["segment"]) == ("audit.recovered", broken.name)
    assert verify(tmp_path).tampered


def test_a_clean_log_with_a_cut_tail_is_not_gone_on_with(tmp_path: Path) -> None:
    write_log(tmp_path)
    broken = only_writer(tmp_path)
    cut_the_tail(broken)

    log = open_log(tmp_path)

    assert log.checkpoint()["writer"] != broken.name
    log.close()
