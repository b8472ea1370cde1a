from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from callgate.audit.files import segment_path, segments
from callgate.audit.index import (
    index_path,
    load_index_key,
    make_index,
    read_index,
    write_index,
)
from callgate.past.reading import PastLog
from callgate.past.rows import Query
from tests.audit.helpers import begin, call_id, end, only_writer, open_log, write_log

if TYPE_CHECKING:
    from pathlib import Path

ROTATE = 4096


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty calls in a dozen segments, of which the small ones have an index, too."""
    monkeypatch.setattr("callgate.past.reading.MIN_BYTES", 1)
    write_log(tmp_path / "audit", 40, rotate_bytes=ROTATE)
    return tmp_path / "audit"


def ask(log: Path, number: int, *, make: bool = True) -> tuple[int, PastLog]:
    """How many records of one call are found, and what was read for it."""
    if make:
        PastLog(log).newest(Query(), 1)
    found = PastLog(log)
    events = frozenset({"tool.call.admitted", "tool.call.completed"})
    rows = found.newest(Query(events=events, request_id=call_id(number)), 50)
    return len(rows), found


def test_an_index_says_what_its_segment_has(log: Path) -> None:
    writer = only_writer(log)

    index = make_index(writer, 1)

    assert index is not None
    lines = segment_path(writer, 1).read_bytes().splitlines(keepends=True)
    assert (index.size, index.lines) == (sum(map(len, lines)), len(lines))
    assert index.first_id == call_id(0)
    assert index.events["tool.call.admitted"] == sum(b"call.admitted" in one for one in lines)
    assert index.events["audit.segment_closed"] == 1
    assert index.first_ts.encode() in lines[0]
    assert index.last_ts.encode() in lines[-1]


def test_the_first_reader_makes_the_indexes_and_the_next_reads_one_or_two_segments(
    log: Path,
) -> None:
    count = len(segments(only_writer(log)))
    assert not list(log.glob("*/*.index"))
    assert ask(log, 3)[0] == 2

    calls, found = ask(log, 3)

    assert calls == 2
    assert found.coverage.segments == count > 5
    assert found.coverage.read <= 2
    assert found.coverage.verified == found.coverage.read
    assert len(list(log.glob("*/*.index"))) == count
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in log.glob("*/*.index"))


def test_a_writer_that_rotates_leaves_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.audit.log.MIN_BYTES", 1)
    log = open_log(tmp_path, rotate_bytes=ROTATE)
    number = 0
    while log.snapshot()["segment"] == 1:
        begin(log, number)
        end(log, number)
        number += 1
    assert log._indexer is not None
    log._indexer.join(10)

    key = load_index_key(tmp_path)
    assert key is not None
    index = read_index(only_writer(tmp_path), 1, key)
    assert index is not None
    assert index == make_index(only_writer(tmp_path), 1)
    log.close()


def test_one_call_is_found_without_any_index_and_little_is_read(log: Path) -> None:
    for number in range(40):
        calls, found = ask(log, number, make=False)

        assert calls == 2
        assert found.coverage.read <= 2
    assert not list(log.glob("*/*.index"))


def test_an_index_goes_with_its_segment(log: Path) -> None:
    ask(log, 0)
    writer = only_writer(log)
    assert index_path(writer, 1).exists()

    open_log(log, rotate_bytes=ROTATE, max_bytes=ROTATE * 2).close()

    assert not segment_path(writer, 1).exists()
    assert not index_path(writer, 1).exists()


def test_an_index_that_lies_hides_nothing(log: Path) -> None:
    """Somebody who may write there, and cannot read the key, says that a segment has nothing."""
    ask(log, 0)
    writer = only_writer(log)
    key = load_index_key(log)
    assert key is not None
    for number in segments(writer):
        true = read_index(writer, number, key)
        assert true is not None
        lie = type(true)(true.segment, true.size, true.hash, true.lines, "0", "0", None, None, {})
        write_index(writer, lie, b"another key, guessed".ljust(32))

    calls, found = ask(log, 20)

    assert calls == 2
    assert not found.coverage.fault_count


def test_an_index_of_another_segment_says_nothing_of_this_one(log: Path) -> None:
    ask(log, 0)
    writer = only_writer(log)
    for number in segments(writer)[1:]:
        shutil.copyfile(index_path(writer, 1), index_path(writer, number))

    assert ask(log, 20)[0] == 2


@pytest.mark.parametrize("damage", [b"", b"\0" * 10, b"x" * 100_000])
def test_a_damaged_index_is_made_again(log: Path, damage: bytes) -> None:
    ask(log, 0)
    writer = only_writer(log)
    for file in log.glob("*/*.index"):
        file.write_bytes(damage)

    assert ask(log, 20)[0] == 2
    key = load_index_key(log)
    assert key is not None
    assert read_index(writer, 2, key) is not None


def test_a_segment_that_changed_after_its_index_was_made_is_read(log: Path) -> None:
    ask(log, 0)
    file = segment_path(only_writer(log), 2)
    first = segment_path(only_writer(log), 1).read_bytes().splitlines(keepends=True)
    file.write_bytes(file.read_bytes() + b"".join(first[1:3]))

    calls, found = ask(log, 0)

    assert calls == 4
    assert found.coverage.fault_count


def test_an_index_that_others_may_write_to_and_a_fifo_are_not_used(log: Path) -> None:
    ask(log, 0)
    writer = only_writer(log)
    key = load_index_key(log)
    assert key is not None
    index_path(writer, 1).chmod(0o666)
    index_path(writer, 2).unlink()
    index_path(writer, 2).symlink_to(index_path(writer, 3))

    assert read_index(writer, 1, key) is None
    assert read_index(writer, 2, key) is None
    assert ask(log, 0)[0] == 2


def test_without_the_key_nothing_is_indexed_and_everything_is_found(log: Path) -> None:
    (log / "key").unlink()

    assert ask(log, 20)[0] == 2
    found = PastLog(log)
    assert len(found.newest(Query(since="9"), 1)) == 0

    assert found.coverage.read == found.coverage.segments
    assert not list(log.glob("*/*.index"))


def test_text_in_a_name_counts_as_no_event(tmp_path: Path) -> None:
    from callgate.audit.events import admitted, call_fragment  # noqa: PLC0415

    evil = '"event":"tool.call.denied","request_id":"ffffffff-ffff-ffff-ffff-ffffffffffff"'
    log = open_log(tmp_path)
    log.record(admitted(call_fragment(evil, "web", evil, "rev1"), call_id(1)), 1)
    log.close()

    index = make_index(only_writer(tmp_path), 1)

    assert index is not None
    assert "tool.call.denied" not in index.events
    assert (index.first_id, index.last_id) == (call_id(1), call_id(1))


def test_a_segment_with_lines_of_somebody_else_gets_no_index(log: Path) -> None:
    file = segment_path(only_writer(log), 1)
    file.write_bytes(file.read_bytes() + b'{"seq":1,"event":"tool.call.denied"}\n')

    assert make_index(only_writer(log), 1) is None
