from __future__ import annotations

import asyncio
import os
import sys
import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callgate.launcher.capture import (
    CUT,
    MASK,
    TRUNCATED,
    Drain,
    FirstBytes,
    LastBytes,
    LineCap,
    Masker,
    drain,
)
from tests.conftest import FULL

FEW_LETTERS = st.text("ab\n", max_size=30).map(str.encode)
PIECES = st.lists(FEW_LETTERS, max_size=6)
SECRETS = st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode), min_size=1, max_size=3)


def masked_whole(data: bytes, secrets: list[bytes]) -> bytes:
    """The definition, a byte at a time: each longest run of secret bytes is one mask.

    Two occurrences that only touch are two masks.
    """
    owner = [False] * len(data)
    joined = [False] * (len(data) + 1)
    for secret in secrets:
        for at in range(len(data) - len(secret) + 1):
            if data[at : at + len(secret)] == secret:
                owner[at : at + len(secret)] = [True] * len(secret)
                joined[at + 1 : at + len(secret)] = [True] * (len(secret) - 1)
    out = bytearray()
    for at, hidden in enumerate(owner):
        if not hidden:
            out.append(data[at])
        elif not joined[at]:
            out += MASK
    return bytes(out)


@given(PIECES, SECRETS)
@example([b"ab", b"ba"], [b"ab", b"abba"])
@example([b"aaa"] * 5, [b"aa"])
def test_secrets_are_masked_wherever_the_reads_were_cut(
    pieces: list[bytes], secrets: list[bytes]
) -> None:
    masker = Masker(secrets)

    shown = b"".join(masker.feed(piece) for piece in pieces) + masker.flush()

    assert shown == masked_whole(b"".join(pieces), secrets)


@given(PIECES, SECRETS)
def test_a_masker_holds_less_than_the_longest_secret(
    pieces: list[bytes], secrets: list[bytes]
) -> None:
    masker = Masker(secrets)
    for piece in pieces:
        masker.feed(piece)

    assert len(masker._held) < max(map(len, secrets))


def test_text_that_cannot_become_a_secret_is_shown_at_once() -> None:
    masker = Masker([b"hunter2"])

    assert masker.feed(b"login: hun") == b"login: "
    assert masker.feed(b"ting\n") == b"hunting\n"


def test_an_empty_secret_masks_nothing() -> None:
    assert Masker([b""]).feed(b"abc") == b"abc"


@given(PIECES, st.integers(1, 8))
def test_a_line_is_cut_the_same_in_however_many_pieces_it_came(
    pieces: list[bytes], cap: int
) -> None:
    capped = LineCap(cap)

    shown = b"".join(capped.feed(piece) for piece in pieces)

    lines = b"".join(pieces).split(b"\n")
    assert shown == b"\n".join(line if len(line) <= cap else line[:cap] + CUT for line in lines)
    assert capped.has_cut == any(len(line) > cap for line in lines)


@given(PIECES, st.integers(0, 40))
def test_a_head_keeps_the_first_bytes_and_says_if_there_were_more(
    pieces: list[bytes], size: int
) -> None:
    head = FirstBytes(size)
    for piece in pieces:
        head.feed(piece)

    whole = b"".join(pieces).decode()
    assert head.text() == whole[:size]
    assert head.truncated == (len(whole) > size)


def test_a_head_marks_its_end_once() -> None:
    head = FirstBytes(4)
    for _ in range(3):
        head.feed(b"abc")

    assert head.text(mark=True) == "abca\n" + TRUNCATED


def test_a_head_that_lost_nothing_has_no_mark() -> None:
    head = FirstBytes(3)
    head.feed(b"abc")

    assert head.text(mark=True) == "abc"


def test_a_cut_line_counts_as_truncation() -> None:
    head = FirstBytes(1000, max_line_bytes=2)
    head.feed(b"ok\nlong\nok\n")

    assert head.truncated
    assert head.text() == "ok\nlo[cut]\nok\n"


def test_a_character_that_the_cut_went_through_is_left_out() -> None:
    head = FirstBytes(3)
    head.feed("aé€".encode())

    assert head.text() == "aé"


def test_bytes_that_are_not_text_are_replaced() -> None:
    head = FirstBytes(10)
    head.feed(b"a\xff")

    assert head.text() == "a\ufffd"


def test_a_ring_keeps_the_last_lines() -> None:
    ring = LastBytes(max_bytes=20, max_line_bytes=10)
    for number in range(100):
        ring.feed(b"line %d\n" % number)

    assert ring.text() == TRUNCATED + "line 98\nline 99\n"


def test_one_long_line_does_not_push_the_others_out_of_a_ring() -> None:
    ring = LastBytes()
    ring.feed(b"the cause\n")
    for _ in range(100):
        ring.feed(b"x" * 64 * 1024)

    assert ring.text().startswith("the cause\n")


async def test_a_stream_is_read_to_its_end_and_its_descriptor_closed() -> None:
    read_end, write_end = os.pipe()
    head = FirstBytes(100)
    reader = await drain(read_end, head, [b"secret"])
    os.write(write_end, b"a sec")
    os.write(write_end, b"ret, sec")
    os.close(write_end)

    assert await reader.finish(10)
    assert head.text() == "a ***, sec"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read_end)


async def test_a_stream_that_somebody_holds_open_is_given_up_in_time() -> None:
    read_end, write_end = os.pipe()
    head = FirstBytes(100)
    reader = await drain(read_end, head)
    os.write(write_end, b"before")

    assert not await reader.finish(0.05)

    assert head.text() == "before"
    with pytest.raises(BrokenPipeError):
        await write_until_refused(write_end)
    os.close(write_end)


async def write_until_refused(fd: int) -> None:
    for _ in range(100):
        os.write(fd, b"after")
        await asyncio.sleep(0)


async def test_the_end_of_a_terminal_is_an_end() -> None:
    master, slave = os.openpty()
    head = FirstBytes(100)
    reader = await drain(master, head)
    os.write(slave, b"bye")
    os.close(slave)

    assert await reader.finish(10)
    assert head.text() == "bye"


async def test_closing_twice_is_harmless() -> None:
    read_end, write_end = os.pipe()
    reader = await drain(read_end, FirstBytes(1))
    reader.close()
    reader.close()
    os.close(write_end)

    assert await reader.finish(10)


def test_a_reader_that_never_started_can_be_closed() -> None:
    Drain(FirstBytes(1)).close()


MIB = 2**20
FLOOD = textwrap.dedent("""
    import asyncio, os, sys
    from callgate.launcher.capture import FirstBytes, LastBytes, drain

    def peak():
        status = open("/proc/self/status").read()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    async def main():
        sinks = {"head": FirstBytes(2**20), "ring": LastBytes()}
        writer = f"import os\\nfor _ in range({sys.argv[1]}): os.write(2, b'x' * 99 + b'y' * 2**20)"
        before = peak()
        for name, sink in sinks.items():
            read_end, write_end = os.pipe()
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", writer, stderr=write_end
            )
            os.close(write_end)
            reader = await drain(read_end, sink, [b"a secret"])
            assert await reader.finish(120), name
            assert await child.wait() == 0, name
        assert sinks["head"].truncated
        print(peak() - before, len(sinks["head"].text()), len(sinks["ring"].text()))

    asyncio.run(main())
""")


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
async def test_a_flood_on_stderr_costs_at_most_32_mib() -> None:
    flood_mib = 500 if FULL else 64
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, str(flood_mib), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(120):
        answer = await process.stdout.read()
        await process.wait()

    cost, head, ring = map(int, answer.split())
    assert cost <= 32 * MIB
    assert head == MIB
    assert ring <= 64 * 1024
