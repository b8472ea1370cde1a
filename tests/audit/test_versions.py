"""Logs of version 1, made by the code that wrote them, are read, recovered and gone on with."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import orjson
import pytest

from callgate.audit.chain import Chain
from callgate.audit.events import MAX_INTEGER, Event, admitted, decode_record
from callgate.audit.verify import verify
from callgate.errors import LimitInfo
from callgate.gate.supervisor import Supervisor
from tests.audit.helpers import (
    FRAGMENT,
    START_NS,
    begin,
    call_id,
    end,
    only_writer,
    open_log,
    records,
)

V1 = Path(__file__).parent / "v1"


@pytest.fixture
def audit(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of one of the logs, as private as it was."""
    copy = tmp_path / "audit"
    shutil.copytree(V1 / request.param, copy)
    for entry in (copy, *copy.rglob("*")):
        entry.chmod(0o700 if entry.is_dir() else 0o600)
    return copy


def lost(path: Path) -> list[str]:
    return [r["request_id"] for r in records(path) if r["event"] == "tool.call.lost"]


@pytest.mark.parametrize("audit", ["closed"], indirect=True)
def test_a_closed_log_of_version_1_is_well_and_has_only_its_own_members(audit: Path) -> None:
    report = verify(audit)

    assert report.ok, report.problems
    assert report.writers[0].unknown == 0
    assert {record["v"] for record in records(audit)} == {1}


@pytest.mark.parametrize("audit", ["closed"], indirect=True)
def test_a_chain_changes_over_to_version_2(audit: Path) -> None:
    anchors = {anchor.writer: anchor for anchor in verify(audit).anchors()}
    log = open_log(audit, rotate_bytes=1_500, clock=lambda: START_NS + 10**12)
    for number in range(10, 20):
        begin(log, number)
        end(log, number)
    log.close()

    report = verify(audit, anchors)
    assert report.ok, report.problems
    versions = [record["v"] for record in records(audit)]
    assert versions == sorted(versions)
    assert {1, 2} == set(versions)


@pytest.mark.parametrize("audit", ["crashed"], indirect=True)
@pytest.mark.parametrize("rotate_bytes", [1, 1 << 20])
def test_open_calls_of_version_1_are_ended_in_whatever_segment_they_began(
    audit: Path, rotate_bytes: int
) -> None:
    assert [problem.kind for problem in verify(audit).problems] == ["recovery"]

    log = open_log(audit, rotate_bytes=rotate_bytes)
    begin(log, 70)
    end(log, 70)
    log.close()

    assert sorted(lost(audit)) == [call_id(3), call_id(900)]
    assert verify(audit).ok


@pytest.mark.parametrize("audit", ["crashed"], indirect=True)
def test_a_crash_in_a_segment_that_version_1_began_is_recovered(audit: Path) -> None:
    log = open_log(audit)
    begin(log, 71)
    log._writer.close(clean=False)

    open_log(audit).close()

    assert sorted(lost(audit)) == sorted(call_id(number) for number in (3, 900, 71))
    assert verify(audit).ok


@pytest.mark.parametrize("audit", ["trimmed"], indirect=True)
def test_a_call_whose_segment_version_1_deleted_is_counted(audit: Path) -> None:
    open_log(audit).close()

    (writer,) = verify(audit).writers
    assert writer.unknown == 1
    assert writer.problem_count == 0
    assert lost(audit) == [call_id(901)]


@pytest.mark.parametrize("audit", ["closed", "crashed"], indirect=True)
def test_an_edit_of_a_log_of_version_1_is_found(audit: Path) -> None:
    file = min(only_writer(audit).glob("*.jsonl"))
    original = file.read_bytes()
    for old, new in ((b'"v":1', b'"v":2'), (b"alice", b"mallo"), (b'"count":', b'"count":1')):
        assert old in original
        file.write_bytes(original.replace(old, new, 1))
        assert verify(audit).tampered


def test_a_line_of_version_1_after_one_of_version_2_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    chain = log._writer.chain
    line = chain.seal('"event":"policy.loaded","severity":"info"', START_NS)
    old = Chain(chain.seq - 1, records(tmp_path)[-1]["hash"].encode())
    text = line[: line.index(b',"hash"')].replace(b'"v":2', b'"v":1')
    forged = text + b',"hash":"' + sha(old.hash + text) + b'"}\n'
    with (only_writer(tmp_path) / "00000001.jsonl").open("ab") as file:
        file.write(forged)
    log._writer.close(clean=False)

    problems = verify(tmp_path).problems

    assert ("line", "expected version 2, found 1") in [(p.kind, p.message) for p in problems]


def sha(data: bytes) -> bytes:
    import hashlib  # noqa: PLC0415

    return hashlib.sha256(data).hexdigest().encode()


def test_a_call_says_when_it_came_and_what_time_it_asked_for() -> None:
    body = admitted(FRAGMENT, call_id(1), "", 5, 1_763_400_000_123_456, 2_500)

    record = decode_record(Chain().seal(body, START_NS))

    assert (record.asked_us, record.timeout_ms) == (1_763_400_000_123_456, 2_500)
    assert b"null" not in Chain().seal(body, START_NS)


def test_a_time_that_nobody_can_wait_for_makes_no_long_line() -> None:
    line = Chain().seal(admitted(FRAGMENT, call_id(1), "", 0, 0, 10**5000), START_NS)

    assert orjson.loads(line)["timeout_ms"] == MAX_INTEGER


@pytest.mark.parametrize(("limit", "figures"), [(1_000, (960, 1_000)), ("64Mi", (960, None))])
def test_a_resource_warning_says_how_much_is_used_and_of_how_much(
    tmp_path: Path, limit: int | str, figures: tuple[int, int | None]
) -> None:
    log = open_log(tmp_path)
    gate = SimpleNamespace(
        _peer=SimpleNamespace(name="web"),
        _run=None,
        _say=lambda _: None,
        _hub=SimpleNamespace(
            record=lambda event, **members: log.write(Event(event=event, **members)),
            flush=log.flush,
        ),
    )

    Supervisor.warn(cast("Supervisor", gate), LimitInfo("memory", "agent:web", limit, 960))
    log.close()

    record = records(tmp_path)[-1]
    assert record["event"] == "agent.resource_warning"
    assert (record["usage"], record.get("usage_limit")) == figures
    assert verify(tmp_path).ok
