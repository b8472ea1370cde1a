"""Who rewrites a log that an anchor knows is found, however good the new chain is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import orjson
import pytest
from typer.testing import CliRunner

from callgate.audit.chain import Chain
from callgate.audit.events import Event
from callgate.audit.files import segment_path
from callgate.audit.head import Head
from callgate.audit.reader import Anchor
from callgate.audit.verify import load_anchors, verify
from callgate.cli import audit as command
from tests.audit.helpers import START_NS, begin, end, only_writer, open_log, write_log

if TYPE_CHECKING:
    from pathlib import Path


def rewrite(
    path: Path, *, number: int, seq: int, prev: bytes, deleted: bool = True, lines: int = 6
) -> None:
    """Put a log with a valid chain and a fitting HEAD in the place of the one that is there."""
    writer = only_writer(path)
    for file in writer.glob("*.jsonl"):
        file.unlink()
    (writer / "HEAD").unlink()
    chain = Chain(seq, prev)
    header = Event(
        event="audit.started",
        policy="rev1",
        segment=f"{writer.name}/{number}",
        count=0,
        prev=prev.decode(),
    )
    bodies = [header.body()]
    if deleted:
        gone = Event(event="audit.segment_deleted", segment=f"{writer.name}/{number - 1}")
        bodies.append(gone.body())
    while len(bodies) < lines:
        bodies.append(Event(event="policy.loaded", policy="forged").body())
    segment_path(writer, number).write_bytes(
        b"".join(chain.seal(body, START_NS) for body in bodies)
    )
    head = Head.attach(writer)
    head.seal(chain.seq, chain.hash, 0)
    head.close()


def anchored(path: Path) -> dict[str, Anchor]:
    write_log(path, calls=5)
    return {anchor.writer: anchor for anchor in verify(path).anchors()}


@pytest.mark.parametrize("skipped", [1, 100])
def test_a_log_rewritten_as_a_later_segment_is_found(tmp_path: Path, skipped: int) -> None:
    anchors = anchored(tmp_path)
    (anchor,) = anchors.values()

    rewrite(tmp_path, number=2, seq=anchor.seq + skipped, prev=b"a" * 64)

    assert verify(tmp_path).ok, "the forged chain is a good one"
    assert [problem.kind for problem in verify(tmp_path, anchors).problems] == ["anchor"]


def test_a_log_rewritten_right_behind_the_anchored_line_is_found(tmp_path: Path) -> None:
    anchors = anchored(tmp_path)
    (anchor,) = anchors.values()

    rewrite(tmp_path, number=2, seq=anchor.seq, prev=anchor.hash.encode())

    assert verify(tmp_path).ok
    assert [problem.kind for problem in verify(tmp_path, anchors).problems] == ["anchor"]


@pytest.mark.parametrize("before", [0, 3])
def test_a_log_rewritten_over_the_anchored_line_is_found(tmp_path: Path, before: int) -> None:
    anchors = anchored(tmp_path)
    (anchor,) = anchors.values()

    rewrite(tmp_path, number=2, seq=anchor.seq - 1 - before, prev=b"a" * 64)

    assert verify(tmp_path).ok
    assert [problem.kind for problem in verify(tmp_path, anchors).problems] == ["anchor"]


def test_a_line_number_that_jumps_over_the_anchored_line_is_found(tmp_path: Path) -> None:
    anchors = anchored(tmp_path)
    (anchor,) = anchors.values()

    rewrite(tmp_path, number=1, seq=0, prev=b"0" * 64, deleted=False, lines=anchor.seq - 2)
    writer = only_writer(tmp_path)
    chain = Chain(anchor.seq + 4, verify(tmp_path).anchors()[0].hash.encode())
    with segment_path(writer, 1).open("ab") as file:
        file.write(chain.seal(Event(event="policy.loaded").body(), START_NS))
    (writer / "HEAD").unlink()
    head = Head.attach(writer)
    head.seal(chain.seq, chain.hash, 0)
    head.close()

    assert "anchor" in {problem.kind for problem in verify(tmp_path, anchors).problems}


def test_an_anchor_holds_while_the_log_goes_on(tmp_path: Path) -> None:
    anchors = anchored(tmp_path)
    for _ in range(3):
        write_log(tmp_path, calls=5, rotate_bytes=2000)

    assert verify(tmp_path, anchors).ok


def test_an_anchor_whose_line_was_deleted_in_time_says_so(tmp_path: Path) -> None:
    anchors = anchored(tmp_path)
    log = open_log(tmp_path, rotate_bytes=1500, max_bytes=3000)
    for number in range(10, 30):
        begin(log, number)
        end(log, number)
    log.close()

    assert verify(tmp_path).ok
    (problem,) = verify(tmp_path, anchors).problems
    assert problem.kind == "anchor"
    assert "keep a newer anchor" in problem.message


def test_an_anchor_of_an_empty_log_holds(tmp_path: Path) -> None:
    name = "019a00000000-00000000"
    (tmp_path / name).mkdir()
    (tmp_path / name / "LOCK").touch()

    assert verify(tmp_path, {name: Anchor(name, 0, "0" * 64)}).problems[0].kind == "recovery"


@pytest.mark.parametrize("count", [0, 2])
def test_a_list_in_which_an_anchor_would_be_passed_over_is_refused(
    tmp_path: Path, count: int
) -> None:
    write_log(tmp_path / "audit")
    text = orjson.dumps([{"writer": "w", "seq": 1 + n, "hash": "0" * 64} for n in range(count)])
    with pytest.raises(msgspec.DecodeError):
        load_anchors(text)
    (tmp_path / "anchor").write_bytes(text)

    arguments = ["verify", str(tmp_path / "audit"), "--anchor", str(tmp_path / "anchor")]

    assert CliRunner().invoke(command.app, arguments).exit_code == 2
