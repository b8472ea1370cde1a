from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from callgate.audit.events import admitted, call_fragment, ended, refused
from callgate.audit.files import segment_path, segments
from callgate.past.follow import Follower
from callgate.past.reading import MAX_FAULTS, PastLog
from callgate.past.rows import ENDS, OUTCOMES, Query, since_stamp, stamp
from callgate.past.tally import COUNTED, MAX_NAMES, Durations, Tally
from tests.audit.helpers import (
    FRAGMENT,
    START_NS,
    begin,
    call_id,
    crash,
    end,
    only_writer,
    open_log,
    ticking,
    write_log,
)

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.past.rows import Row

ENDED = Query()
V1 = "tests/audit/v1"


def ids(rows: list[Row]) -> list[str | None]:
    return [row.request_id for row in rows]


def ask(path: Path, query: Query = ENDED, limit: int = 1000) -> tuple[list[Row], PastLog]:
    log = PastLog(path)
    return log.newest(query, limit), log


def test_the_last_calls_come_oldest_first_and_the_log_is_verified(tmp_path: Path) -> None:
    write_log(tmp_path, 30, rotate_bytes=4096)

    rows, log = ask(tmp_path, limit=3)

    assert ids(rows) == [call_id(27), call_id(28), call_id(29)]
    assert log.coverage.verified == log.coverage.read == log.coverage.segments > 3
    assert not log.coverage.fault_count


def test_all_calls_come_in_the_order_of_their_times_over_two_writers(tmp_path: Path) -> None:
    first = open_log(tmp_path, clock=ticking(START_NS, 2_000_000))
    second = open_log(tmp_path, clock=ticking(START_NS + 1, 2_000_000))
    for number in range(0, 20, 2):
        for log, call in ((first, number), (second, number + 1)):
            begin(log, call)
            end(log, call)
    first.close()
    second.close()

    rows = list(PastLog(tmp_path).all(ENDED))

    assert len(rows) == 20
    assert [row.ts for row in rows] == sorted(row.ts for row in rows)
    assert ids(ask(tmp_path)[0]) == ids(rows)


def mixed(path: Path) -> None:
    """One call of each outcome, and a refusal that stands for seven."""
    log = open_log(path)
    other = call_fragment("bob", "db", "query", "rev1")
    log.record(admitted(FRAGMENT, call_id(1)), 1)
    log.record(ended("tool.call.completed", FRAGMENT, call_id(1), "", 5), -1)
    log.record(admitted(other, call_id(2)), 1)
    log.record(ended("tool.call.failed", other, call_id(2), "", 70, "tool.failed"), -1)
    log.record(refused("tool.call.denied", other, call_id(3), "", "limit.rate", "", 9, (7, 1, 2)))
    log.record(refused("tool.call.would_deny", FRAGMENT, call_id(4), "", "limit.quota"))
    log.record(admitted(FRAGMENT, call_id(5)), 1)
    log.record(ended("tool.call.cancelled", FRAGMENT, call_id(5), "", 1, "cancelled"), -1)
    log.close()


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, [1, 2, 3, 5]),
        ({"agent": "db"}, [2, 3]),
        ({"tool": "search"}, [1, 5]),
        ({"caller": "bob", "outcome": "denied"}, [3]),
        ({"code": "tool.failed"}, [2]),
        ({"outcome": "ok"}, [1]),
        ({"events": COUNTED, "outcome": "would_deny"}, [4]),
        ({"agent": "nobody"}, []),
        ({"since": stamp(START_NS + 3600 * 10**9)}, []),
        ({"since": stamp(START_NS)}, [1, 2, 3, 5]),
    ],
)
def test_each_member_can_be_asked_for(
    tmp_path: Path, asked: dict[str, object], found: list[int]
) -> None:
    mixed(tmp_path)

    rows, _ = ask(tmp_path, Query(**asked))  # type: ignore[arg-type]

    assert ids(rows) == [call_id(number) for number in found]


def test_what_a_span_adds_up_to(tmp_path: Path) -> None:
    mixed(tmp_path)
    tally = Tally()

    for row in PastLog(tmp_path).unordered(Query(events=COUNTED)):
        tally.add(row)

    assert tally.calls == 10
    assert tally.results == {"ok": 1, "error": 1, "denied": 7, "cancelled": 1}
    assert tally.refused == {"limit.rate": 7}
    assert tally.would_refuse == {"limit.quota": 1}
    assert (tally.tools["db/query"].calls, tally.tools["db/query"].refused) == (8, 7)
    assert (tally.durations.percentile(50), tally.durations.percentile(99)) == (5, 70)
    assert tally.hourly() == [10]


def test_durations_are_exact_below_a_second_and_to_three_digits_above() -> None:
    durations = Durations()
    assert durations.percentile(50) is None
    for ms in range(1, 1001):
        durations.add(ms)
    durations.add(123_456)

    assert durations.percentile(50) == 501
    assert durations.percentile(99) == 991
    assert durations.percentile(100) == 123_000


def test_names_without_end_are_counted_as_one(tmp_path: Path) -> None:
    mixed(tmp_path)
    (row, *_), _ = ask(tmp_path)
    tally = Tally()
    for number in range(MAX_NAMES + 10):
        changed = {name: getattr(row, name) for name in row.__struct_fields__}
        tally.add(type(row)(**changed | {"caller": f"c{number}", "tool": f"t{number}"}))

    assert len(tally.callers) == len(tally.tools) == MAX_NAMES + 1
    assert tally.callers["(others)"].calls == 10


@pytest.mark.parametrize("kind", ["closed", "trimmed"])
def test_a_log_of_version_1_is_read_with_what_it_has(kind: str) -> None:
    from pathlib import Path  # noqa: PLC0415

    rows, log = ask(Path(V1) / kind)

    assert rows
    assert {row.result for row in rows} <= set(OUTCOMES)
    assert not log.coverage.fault_count


def test_a_torn_tail_is_no_fault_and_hides_nothing(tmp_path: Path) -> None:
    crash(tmp_path, calls=20)
    writer = only_writer(tmp_path)
    file = segment_path(writer, 1)
    file.write_bytes(file.read_bytes() + b'{"v":2,"seq":99,"ts":"20')

    rows, log = ask(tmp_path)

    assert len(rows) == 17
    assert (log.coverage.verified, log.coverage.fault_count) == (1, 0)


def test_a_changed_line_is_shown_and_told_and_not_called_verified(tmp_path: Path) -> None:
    write_log(tmp_path, 5)
    file = segment_path(only_writer(tmp_path), 1)
    file.write_bytes(file.read_bytes().replace(b'"tool":"search"', b'"tool":"delete"'))

    rows, log = ask(tmp_path)

    assert {row.tool for row in rows} == {"delete"}
    assert log.coverage.verified == 0
    assert log.coverage.fault_count == 10
    assert len(log.coverage.faults) == MAX_FAULTS


def test_a_segment_that_was_rewritten_does_not_follow_from_the_one_before(tmp_path: Path) -> None:
    """Each of two segments is whole by itself, and they are not of one chain."""
    write_log(tmp_path / "a", 30, rotate_bytes=4096)
    first = only_writer(tmp_path / "a")
    (tmp_path / "b").mkdir()
    second = tmp_path / "b" / first.name
    write_log(tmp_path / "c", 31, rotate_bytes=4096, clock=ticking(START_NS + 1000))
    other = only_writer(tmp_path / "c").rename(second)
    for file in other.glob("*.jsonl"):
        file.write_bytes(file.read_bytes())
    segment_path(first, 2).write_bytes(segment_path(other, 2).read_bytes())

    _, log = ask(tmp_path / "a")

    assert log.coverage.fault_count
    assert log.coverage.verified < log.coverage.segments


def test_lines_of_somebody_else_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    write_log(tmp_path, 5)
    file = segment_path(only_writer(tmp_path), 1)
    lines = file.read_bytes().splitlines(keepends=True)
    junk = [b"\xff\xfe\n", b"{}\n", b"[" * 5000 + b"\n", b'{"seq":"x"}\n', b"x" * 40_000 + b"\n"]
    file.write_bytes(b"".join([*lines[:4], *junk, *lines[4:]]))

    rows, log = ask(tmp_path)

    assert len(rows) == 5
    assert log.coverage.verified == 0
    assert log.coverage.fault_count >= len(junk)


def test_a_segment_that_is_no_regular_file_is_never_waited_for(tmp_path: Path) -> None:
    write_log(tmp_path, 30, rotate_bytes=4096)
    file = segment_path(only_writer(tmp_path), 2)
    file.unlink()
    os.mkfifo(file)

    rows, log = ask(tmp_path)

    assert rows
    assert any("not a regular file" in fault for fault in log.coverage.faults)


def test_a_segment_that_is_deleted_while_the_log_is_read_is_counted(tmp_path: Path) -> None:
    write_log(tmp_path, 30, rotate_bytes=4096)
    log = PastLog(tmp_path)
    rows = log.all(ENDED)
    next(rows)
    for number in segments(only_writer(tmp_path))[:3]:
        segment_path(only_writer(tmp_path), number).unlink()

    left = list(rows)

    assert left
    assert log.coverage.vanished == 2, "the first was open"
    assert log.coverage.read == log.coverage.segments - 2


def test_what_is_written_after_the_question_is_not_in_the_answer(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    end(log, 1)
    past = PastLog(tmp_path)
    begin(log, 2)
    end(log, 2)

    assert ids(past.newest(ENDED, 10)) == [call_id(1)]
    log.close()


def test_following_tells_each_call_once_over_rotation_and_new_writers(tmp_path: Path) -> None:
    first = open_log(tmp_path, rotate_bytes=4096)
    begin(first, 0)
    end(first, 0)
    log = PastLog(tmp_path)
    told = ids(log.newest(ENDED, 10))
    follower = Follower(tmp_path, log.sources)
    second = open_log(tmp_path)
    for number in range(1, 60):
        begin(writing := second if number % 10 == 0 else first, number)
        end(writing, number)
        if number % 7 == 0:
            told += ids(list(follower.new(ENDED)))
    told += ids(list(follower.new(ENDED)))

    assert first.snapshot()["segment"] > 3
    assert sorted(told, key=str) == [call_id(number) for number in range(60)]
    assert not list(follower.new(ENDED))
    first.close()
    second.close()


def test_following_waits_for_the_rest_of_a_line_and_bears_a_cut(tmp_path: Path) -> None:
    write_log(tmp_path, 1)
    log = PastLog(tmp_path)
    log.newest(ENDED, 10)
    follower = Follower(tmp_path, log.sources)
    file = segment_path(only_writer(tmp_path), 1)
    before = file.read_bytes()
    line = next(one for one in before.splitlines(keepends=True) if b"completed" in one)

    file.write_bytes(before + line[:50])
    assert not list(follower.new(ENDED))
    file.write_bytes(before + line)
    assert ids(list(follower.new(ENDED))) == [call_id(0)]
    file.write_bytes(before)
    assert not list(follower.new(ENDED))
    file.write_bytes(before + line)
    assert ids(list(follower.new(ENDED))) == [call_id(0)]


@pytest.mark.parametrize(
    ("text", "stamped"),
    [
        ("0s", "2025-11-17T17:20:00.000000Z"),
        ("90m", "2025-11-17T15:50:00.000000Z"),
        ("1.5h", "2025-11-17T15:50:00.000000Z"),
        ("2025-11-17T08:00:00+01:00", "2025-11-17T07:00:00.000000Z"),
        ("2025-11-17T08:00:00Z", "2025-11-17T08:00:00.000000Z"),
    ],
)
def test_since_is_how_long_ago_or_a_time(text: str, stamped: str) -> None:
    assert since_stamp(text, START_NS) == stamped


@pytest.mark.parametrize("text", ["", "yesterday", "2 weeks", "-1h", "9" * 40 + "d", "0001-01-01"])
def test_another_since_says_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="15m, 2h, 7d"):
        since_stamp(text, START_NS)


def test_every_end_of_a_call_is_asked_for() -> None:
    assert "tool.call.denied" in ENDS
    assert "tool.call.would_deny" not in ENDS
