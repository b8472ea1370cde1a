"""Every way to change a log shows."""

from __future__ import annotations

import os
import random
import shutil
import threading
from typing import TYPE_CHECKING

import orjson
import pytest

from callgate.audit import Event
from callgate.audit.chain import Chain
from callgate.audit.events import ended
from callgate.audit.files import segment_path
from callgate.audit.head import HEAD_BYTES, Head, HeadState, parse_head, read_head
from callgate.audit.reader import Anchor
from callgate.audit.verify import MAX_PROBLEMS, load_anchors, verify
from tests.audit.helpers import (
    FRAGMENT,
    START_NS,
    begin,
    call_id,
    end,
    only_writer,
    open_log,
    ticking,
    write_log,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TAMPERINGS = 20_000 if os.environ.get("CALLGATE_RELIABILITY") == "full" else 1_000


def edit_a_byte(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data))
    data[at] ^= rng.randrange(1, 256)
    file.write_bytes(data)
    return f"byte {at}"


def truncate(file: Path, rng: random.Random) -> str:
    size = rng.randrange(file.stat().st_size)
    os.truncate(file, size)
    return f"cut at {size}"


def change_lines(file: Path, rng: random.Random) -> str:
    lines = file.read_bytes().splitlines(keepends=True)
    one, other = rng.sample(range(len(lines)), 2)
    how = rng.choice(["delete", "swap", "duplicate", "move", "forge"])
    if how == "delete":
        del lines[one]
    elif how == "swap":
        lines[one], lines[other] = lines[other], lines[one]
    elif how == "duplicate":
        lines.insert(other, lines[one])
    elif how == "move":
        lines.insert(other, lines.pop(one))
    else:
        forged = Chain(orjson.loads(lines[one])["seq"] - 1, b"0" * 64)
        lines[one] = forged.seal(Event(event="policy.loaded").body(), START_NS)
    file.write_bytes(b"".join(lines))
    return f"{how} {one} {other}"


def remove(file: Path, _: random.Random) -> str:
    file.unlink()
    return "removed"


def test_a_thousand_random_tamperings_are_all_found(tmp_path: Path) -> None:
    write_log(tmp_path, calls=9, rotate_bytes=1_500)
    writer = only_writer(tmp_path)
    originals = {file: file.read_bytes() for file in writer.iterdir() if file.name != "LOCK"}
    logs = [file for file in originals if file.suffix == ".jsonl"]
    assert len(logs) > 3
    rng = random.Random(43)  # noqa: S311 - not for secrets

    for _ in range(TAMPERINGS):
        change = rng.choice(
            [edit_a_byte, edit_a_byte, truncate, change_lines, change_lines, remove]
        )
        file = rng.choice(logs if change is change_lines else sorted(originals))
        what = change(file, rng)

        assert verify(tmp_path).tampered, f"{file.name}: {what}"
        file.write_bytes(originals[file])

    assert verify(tmp_path).ok


def test_every_single_byte_of_log_and_head_is_covered(tmp_path: Path) -> None:
    write_log(tmp_path, calls=1)
    for file in (segment_path(only_writer(tmp_path), 1), only_writer(tmp_path) / "HEAD"):
        original = file.read_bytes()
        for at in range(len(original)):
            file.write_bytes(original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :])
            assert verify(tmp_path).tampered, f"{file.name}: byte {at}"
        file.write_bytes(original)


def test_a_problem_says_where_it_is_and_what_was_expected(tmp_path: Path) -> None:
    write_log(tmp_path)
    file = segment_path(only_writer(tmp_path), 1)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4] + lines[5:]))

    problem, *_ = verify(tmp_path).problems

    assert problem.where == f"{only_writer(tmp_path).name}/00000001.jsonl:5"
    assert problem.message == "expected seq 5, found 6"


def test_one_edited_line_is_one_problem(tmp_path: Path) -> None:
    write_log(tmp_path)
    file = segment_path(only_writer(tmp_path), 1)
    file.write_bytes(file.read_bytes().replace(b'"duration_ms":3', b'"duration_ms":4', 1))

    (problem,) = verify(tmp_path).problems

    assert (problem.kind, problem.where[-2:]) == ("chain", ":3")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_segment_that_no_record_names_is_found(tmp_path: Path, number: int) -> None:
    write_log(tmp_path, rotate_bytes=1_500)
    segment_path(only_writer(tmp_path), number).unlink()

    assert "segment" in {problem.kind for problem in verify(tmp_path).problems}


def test_a_deletion_record_excuses_no_later_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=1_500, max_bytes=8_000)
    for number in range(20):
        begin(log, number)
        end(log, number)
    log.close()
    report = verify(tmp_path)
    assert report.ok
    oldest = report.writers[0].deleted + 1

    segment_path(only_writer(tmp_path), oldest).unlink()

    (problem,) = verify(tmp_path).problems
    assert problem.message.startswith(f"segments {oldest} to {oldest} are missing")


def test_a_segment_of_another_writer_is_not_accepted(tmp_path: Path) -> None:
    write_log(tmp_path / "a")
    writer = only_writer(tmp_path / "a")
    shutil.copytree(writer, tmp_path / "a" / "019a00000000-00000000")

    (problem,) = verify(tmp_path / "a").problems

    assert problem.message.startswith("expected segment 019a00000000-00000000/1, found")


def append(path: Path, *bodies: str) -> None:
    """Add well-chained lines and a fitting HEAD: what only somebody who knows how can do."""
    log = open_log(path)
    for body in bodies:
        log.record(body)
    log.close()


def test_a_second_end_of_a_call_is_found(tmp_path: Path) -> None:
    write_log(tmp_path, calls=1)
    append(tmp_path, ended("tool.call.failed", FRAGMENT, call_id(0)))

    (problem,) = verify(tmp_path).problems

    assert problem.kind == "call"


def test_an_end_of_a_call_that_never_began_is_found(tmp_path: Path) -> None:
    append(tmp_path, ended("tool.call.failed", FRAGMENT, call_id(0)))

    assert [problem.kind for problem in verify(tmp_path).problems] == ["call"]


def test_a_call_that_begins_twice_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(2):
        begin(log, 1)
    end(log, 1)
    log.close()

    assert "call" in {problem.kind for problem in verify(tmp_path).problems}


def test_a_call_without_an_end_in_a_closed_log_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    log._writer.open.clear()
    log.close()

    assert [problem.kind for problem in verify(tmp_path).problems] == ["call"]


@pytest.mark.parametrize(
    "body",
    [
        '"event":"tool.call.guessed","severity":"info"',
        '"event":"policy.loaded","severity":"info","arguments":{}',
        '"event":"policy.loaded","severity":"error"',
        '"event":"policy.loaded","severity":"info","code":"' + "x" * 20_000 + '"',
    ],
)
def test_a_well_chained_line_outside_the_schema_is_found(tmp_path: Path, body: str) -> None:
    append(tmp_path, body)

    assert "line" in {problem.kind for problem in verify(tmp_path).problems}


def test_a_live_log_is_fine_with_open_calls(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 1)

    report = verify(tmp_path)

    assert report.ok
    assert (report.writers[0].state, report.writers[0].open_calls) == ("live", 1)
    log.close()


def test_tampering_with_a_live_log_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    file = segment_path(only_writer(tmp_path), 1)
    os.truncate(file, file.stat().st_size - 10)

    assert [problem.kind for problem in verify(tmp_path).problems] == ["head"]
    log.close()


def test_a_log_can_be_verified_while_it_is_written_rotated_and_trimmed(tmp_path: Path) -> None:
    log = open_log(tmp_path, rotate_bytes=5_000, max_bytes=20_000)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            begin(log, number)
            end(log, number)
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reports = [verify(tmp_path) for _ in range(50)]
    finally:
        stop.set()
        thread.join(10)
    log.close()

    assert [problem for report in reports for problem in report.problems] == []
    assert reports[-1].writers[0].deleted > 0


def test_memory_for_problems_is_bounded(tmp_path: Path) -> None:
    write_log(tmp_path, calls=200)
    file = segment_path(only_writer(tmp_path), 1)
    file.write_bytes(file.read_bytes().replace(b"alice", b"mallo"))

    report = verify(tmp_path)

    assert report.problem_count == 400
    assert len(report.problems) == MAX_PROBLEMS


def test_an_anchor_shows_a_log_that_was_rewritten_with_its_head(tmp_path: Path) -> None:
    write_log(tmp_path, calls=3)
    anchors = {anchor.writer: anchor for anchor in verify(tmp_path).anchors()}
    writer = only_writer(tmp_path)
    for file in writer.iterdir():
        file.unlink()
    (writer / "LOCK").touch()

    write_log(tmp_path, calls=3, clock=ticking(START_NS + 5))

    assert verify(tmp_path).ok
    assert [problem.kind for problem in verify(tmp_path, anchors).problems] == ["anchor"]


def test_an_anchor_shows_a_rolled_back_log(tmp_path: Path) -> None:
    write_log(tmp_path, calls=3)
    shutil.copytree(tmp_path, tmp_path / "old", ignore=shutil.ignore_patterns("old"))
    write_log(tmp_path, calls=3)
    anchors = {anchor.writer: anchor for anchor in verify(tmp_path).anchors()}

    assert [problem.kind for problem in verify(tmp_path / "old", anchors).problems] == ["anchor"]


def test_an_anchor_shows_a_removed_writer(tmp_path: Path) -> None:
    report = verify(tmp_path, {"gone": Anchor("gone", 1, "0" * 64)})

    assert [problem.where for problem in report.problems] == ["gone"]


def test_a_checkpoint_of_the_log_is_an_anchor(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 1)
    anchors = load_anchors(orjson.dumps(log.checkpoint()))
    end(log, 1)
    log.close()

    assert verify(tmp_path, anchors).ok


class SlowMap:
    """A mapped file whose bytes arrive one by one, in any order, and are looked at each time."""

    def __init__(self, data: bytes, shuffle: Callable[[list[int]], None]) -> None:
        self.data = bytearray(data)
        self.seen: list[HeadState | None] = []
        self._shuffle = shuffle

    def __setitem__(self, key: int | slice, value: int | bytes) -> None:
        places = [key] if isinstance(key, int) else list(range(key.start, key.stop))
        values = dict(zip(places, [value] if isinstance(value, int) else value, strict=True))
        self._shuffle(places)
        for at in places:
            self.data[at] = values[at]
            self.seen.append(parse_head(bytes(self.data)))


@pytest.mark.parametrize(
    "shuffle",
    [list.sort, list.reverse, random.Random(0).shuffle],  # noqa: S311  # the same in every run
    ids=["forwards", "backwards", "shuffled"],
)
def test_an_update_of_head_is_seen_whole_or_not_at_all(
    tmp_path: Path, shuffle: Callable[[list[int]], None]
) -> None:
    head = Head.attach(tmp_path)
    head.store(99, b"a" * 64, 10)
    head.close()
    slow = SlowMap((tmp_path / "HEAD").read_bytes(), shuffle)
    head._map = slow  # type: ignore[assignment]

    head.store(100, b"b" * 64, 9)
    head.store(101, b"c" * 64, 9)
    head.seal(101, b"c" * 64, 9)

    assert len(slow.data) == HEAD_BYTES
    assert list(dict.fromkeys(slow.seen)) == [
        HeadState(99, b"a" * 64, 10, clean=False, whole=True),
        HeadState(100, b"b" * 64, 9, clean=False, whole=True),
        HeadState(101, b"c" * 64, 9, clean=False, whole=True),
        HeadState(101, b"c" * 64, 9, clean=True, whole=True),
    ]


def test_a_damaged_slot_of_head_leaves_the_other(tmp_path: Path) -> None:
    head = Head.attach(tmp_path)
    head.store(1, b"a" * 64, 0)
    head.store(2, b"b" * 64, 0)
    head.close()
    data = (tmp_path / "HEAD").read_bytes()

    state = parse_head(data.replace(b"b" * 64, b"x" * 64))

    assert state == HeadState(1, b"a" * 64, 0, clean=False, whole=False)


def test_a_head_that_is_opened_again_is_no_longer_clean(tmp_path: Path) -> None:
    head = Head.attach(tmp_path)
    head.seal(7, b"a" * 64, 0)
    head.close()
    assert read_head(tmp_path) == HeadState(7, b"a" * 64, 0, clean=True, whole=True)

    Head.attach(tmp_path).close()

    assert read_head(tmp_path) == HeadState(7, b"a" * 64, 0, clean=False, whole=True)
