from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol.framing import KEPT_BYTES, Lengths, Lines, Oversized, with_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIMIT = 64
Splitter = Lines | Lengths


def fed(splitter: Splitter, reads: Iterable[bytes]) -> list[bytes | Oversized]:
    return [frame for read in reads for frame in splitter.feed(read)]


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    reads = []
    for size in sizes:
        reads.append(data[:size])
        data = data[size:]
    return [*reads, data]


lines = st.lists(
    st.binary(max_size=3 * LIMIT).map(lambda data: data.replace(b"\n", b"\r")), max_size=12
)
payloads = st.lists(st.binary(max_size=3 * LIMIT), max_size=12)
cuts = st.lists(st.integers(0, 2 * LIMIT), max_size=40)


@given(frames=lines, sizes=cuts)
def test_lines_are_the_same_however_the_stream_is_cut(
    frames: list[bytes], sizes: list[int]
) -> None:
    stream = b"".join(frame + b"\n" for frame in frames)

    at_once = fed(Lines(LIMIT), [stream])

    assert fed(Lines(LIMIT), cut(stream, sizes)) == at_once
    assert fed(Lines(LIMIT), (stream[i : i + 1] for i in range(len(stream)))) == at_once


@given(frames=payloads, sizes=cuts)
def test_lengths_are_the_same_however_the_stream_is_cut(
    frames: list[bytes], sizes: list[int]
) -> None:
    stream = b"".join(map(with_length, frames))

    at_once = fed(Lengths(LIMIT), [stream])

    assert fed(Lengths(LIMIT), cut(stream, sizes)) == at_once
    assert fed(Lengths(LIMIT), (stream[i : i + 1] for i in range(len(stream)))) == at_once


@given(frames=lines)
def test_lines_come_out_as_they_went_in(frames: list[bytes]) -> None:
    out = fed(Lines(LIMIT), [b"".join(frame + b"\n" for frame in frames)])

    expected = [frame.removesuffix(b"\r") for frame in frames]
    assert [frame if isinstance(frame, bytes) else frame.size for frame in out] == [
        frame if len(frame) <= LIMIT else len(frame) for frame in expected if frame
    ]


@given(frames=payloads)
def test_lengths_come_out_as_they_went_in(frames: list[bytes]) -> None:
    out = fed(Lengths(LIMIT), [b"".join(map(with_length, frames))])

    assert [frame if isinstance(frame, bytes) else frame.size for frame in out] == [
        frame if len(frame) <= LIMIT else len(frame) for frame in frames
    ]


def test_blank_lines_and_carriage_returns_are_tolerated() -> None:
    assert Lines(LIMIT).feed(b"\n\r\na\r\n\nb\n") == [b"a", b"b"]


def test_a_carriage_return_does_not_count_against_the_limit() -> None:
    line = b"x" * LIMIT

    assert Lines(LIMIT).feed(line + b"\r\n") == [line]
    assert Lines(LIMIT).feed(line + b"y\n") == [Oversized(line + b"y", line + b"y", LIMIT + 1)]


def test_a_carriage_return_is_no_part_of_a_line_that_is_too_long() -> None:
    line = b"x" * (LIMIT + 10)

    assert Lines(LIMIT).feed(line + b"\r\n") == [Oversized(line, line, LIMIT + 10)]


def test_a_thousand_lines_in_one_read_longer_than_the_limit_are_split() -> None:
    assert len(Lines(LIMIT).feed(b"ab\n" * 100_000)) == 100_000
    assert Lines(LIMIT).feed(b"\n" * 100_000) == []


@pytest.mark.parametrize(
    ("splitter", "wrap"), [(Lines, lambda data: data + b"\n"), (Lengths, with_length)]
)
def test_an_oversized_frame_keeps_its_ends_and_the_stream_goes_on(
    splitter: type[Splitter], wrap: Callable[[bytes], bytes]
) -> None:
    frame = b"<" + b"h" * KEPT_BYTES + b"-" * 100_000 + b"t" * KEPT_BYTES + b">"
    stream = wrap(b"before") + wrap(frame) + wrap(b"after")

    out = fed(splitter(4096), cut(stream, [3000] * 40))

    assert out == [
        b"before",
        Oversized(frame[:KEPT_BYTES], frame[-KEPT_BYTES:], len(frame)),
        b"after",
    ]


@pytest.mark.parametrize(
    ("splitter", "start"), [(Lines, b""), (Lengths, (0xFFFF_FFFF).to_bytes(4, "big"))]
)
def test_a_flood_without_an_end_costs_no_more_than_the_limit(
    splitter: type[Splitter], start: bytes
) -> None:
    limit = 256 * 1024
    it = splitter(limit)
    chunk = b"x" * 65536
    it.feed(start)
    tracemalloc.start()

    for _ in range(512):
        assert it.feed(chunk) == []

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 2 * limit
    assert it.pending >= 512 * len(chunk)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 9])
def test_an_end_inside_a_frame_is_told_from_a_clean_end(size: int) -> None:
    lengths = Lengths(4)
    lengths.feed(with_length(b"ok") + with_length(b"12345")[:size])

    assert bool(lengths.pending) == (size not in (0, 9))


def test_an_unfinished_line_is_pending() -> None:
    splitter = Lines(LIMIT)
    splitter.feed(b"a\nbc")

    assert splitter.pending == 2
    assert splitter.feed(b"\n") == [b"bc"]
    assert splitter.pending == 0


@pytest.mark.parametrize(
    ("splitter", "partial", "rest"),
    [
        (Lines(LIMIT), b"a\nb", b"c\n"),
        (Lines(LIMIT), b"x" * 500, b"\n"),
        (Lengths(LIMIT), with_length(b"a") + with_length(b"bc")[:1], with_length(b"bc")[1:]),
        (Lengths(LIMIT), with_length(b"x" * 500)[:4], b"x" * 500),
    ],
)
def test_a_frame_that_does_not_complete_says_since_when(
    splitter: Splitter, partial: bytes, rest: bytes
) -> None:
    splitter.feed(partial, now_ns=1000)
    splitter.feed(b"", now_ns=1500)

    assert splitter.since_ns == 1000
    assert len(splitter.feed(rest, now_ns=1700)) == 1
    assert splitter.since_ns is None


@pytest.mark.parametrize("splitter", [Lines(LIMIT), Lengths(LIMIT)])
def test_each_frame_has_its_own_time(splitter: Splitter) -> None:
    first, second = (
        (b"a\n", b"b\n")
        if isinstance(splitter, Lines)
        else (
            with_length(b"a"),
            with_length(b"b"),
        )
    )
    splitter.feed(first[:1], now_ns=1000)
    splitter.feed(first[1:] + second[:1], now_ns=2000)

    assert splitter.since_ns == 2000
