from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

import orjson
from hypothesis import given
from hypothesis import strategies as st

from callgate.audit.chain import GENESIS, Chain, expected_hash, stated_hash, wall_ns
from tests.audit.helpers import START_NS

BODY = '"event":"policy.loaded","severity":"info"'


def test_a_hash_covers_the_previous_hash_and_the_line_up_to_itself() -> None:
    chain = Chain()
    first = chain.seal(BODY, START_NS)
    second = chain.seal(BODY, START_NS)

    covered = second[: second.index(b',"hash":"')]
    assert orjson.loads(second)["hash"] == sha256(stated_hash(first) + covered).hexdigest()  # type: ignore[operator]


def test_a_line_has_the_written_form() -> None:
    line = Chain(41, b"a" * 64).seal(BODY, 1_794_990_208_123_456_789)

    assert line.startswith(b'{"v":2,"seq":42,"ts":"2026-11-18T08:23:28.123456Z","event":"policy.')
    assert line.endswith(b'"}\n')


def test_a_rewound_chain_seals_the_same_line_again() -> None:
    chain = Chain()
    chain.seal(BODY, START_NS)
    seq, digest = chain.seq, chain.hash
    line = chain.seal(BODY, START_NS)

    chain.rewind(seq, digest)

    assert chain.seal(BODY, START_NS) == line


@given(st.integers(0, 4_000_000_000 * 10**9))
def test_a_time_stamp_can_be_read_back_to_the_microsecond(now_ns: int) -> None:
    line = orjson.loads(Chain().seal(BODY, now_ns))

    assert wall_ns(line["ts"]) == now_ns // 1000 * 1000


def test_the_date_is_written_anew_when_the_second_changes() -> None:
    chain = Chain()
    stamps = [orjson.loads(chain.seal(BODY, s * 10**9))["ts"] for s in (59, 60, 59)]

    assert stamps == [
        datetime.fromtimestamp(s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z") for s in (59, 60, 59)
    ]


@given(st.data())
def test_any_changed_byte_of_a_line_shows(data: st.DataObject) -> None:
    line = Chain().seal(BODY, START_NS)
    at = data.draw(st.integers(0, len(line) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda v: v != line[at]))

    edited = line[:at] + bytes([value]) + line[at + 1 :]

    assert stated_hash(edited) != expected_hash(edited, GENESIS)


def test_lines_that_are_sealed_together_are_those_that_are_sealed_one_by_one() -> None:
    together, one_by_one = Chain(7, b"a" * 64), Chain(7, b"a" * 64)
    bodies = [BODY, '"event":"policy.loaded","policy":"é"', BODY]

    lines = together.seal_all(bodies, START_NS)

    assert [line.encode() for line in lines] == [one_by_one.seal(b, START_NS) for b in bodies]
    assert (together.seq, together.hash) == (one_by_one.seq, one_by_one.hash)
