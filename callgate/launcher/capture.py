"""What a child prints, kept within bounds however much it prints.

A stream is read for as long as somebody holds its other end, so that the child never
blocks on a full pipe, and passes through three small machines that do no IO: `Masker`
replaces secret values, also where a value is split over two reads; `LineCap` cuts long
lines; a sink keeps the first bytes (`FirstBytes`) or the last ones (`LastBytes`). What is over a
bound is dropped as it comes: memory depends on the bounds and never on the child.

Only values that are printed as they are can be masked: one that the child encodes,
compresses or prints in pieces with something between passes unseen.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = b"***"
CUT = b"[cut]"
"""Ends a line that was over its cap."""
TRUNCATED = "[truncated]\n"
"""Stands once where a text lost its beginning or its end."""

RING_BYTES = 64 * 1024
"""An agent's last words: some hundred lines, for each of many agents."""
RING_LINE_BYTES = 8 * 1024
"""One line may take an eighth of a ring, so that it cannot push out all the others."""


class Sink(Protocol):
    """Takes what was read, piece by piece, and must not block."""

    def feed(self, data: bytes) -> None:
        """Some more bytes."""


class Masker:
    """Replaces every occurrence of every secret by one `***`, wherever the reads were cut.

    Overlapping occurrences become one mask. What is held back between two reads is a tail
    that could be the beginning of a secret: less than the longest of them.
    """

    __slots__ = ("_covered", "_held", "_secrets")

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted({secret for secret in secrets if secret})
        self._held = b""
        self._covered = 0
        """How many of the held bytes belong to a mask that was given out already."""

    def feed(self, data: bytes) -> bytes:
        """What may be shown now."""
        if not self._secrets:
            return data
        data = self._held + data
        return self._give(data, self._first_open(data))

    def flush(self) -> bytes:
        """What was held back: it never became a secret."""
        return self._give(self._held, len(self._held))

    def _give(self, data: bytes, end: int) -> bytes:
        """`data[:end]`, masked; the rest is held."""
        shown: list[bytes] = []
        at = self._covered
        for start, stop in self._found(data):
            if start >= max(at, end):
                break
            if start >= at:
                shown += data[at:start], MASK
            at = max(at, stop)
        shown.append(data[at:end])
        self._held = data[end:]
        self._covered = max(0, at - end)
        return b"".join(shown)

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        """Where each secret stands, overlapping ones too, in order."""
        found = []
        for secret in self._secrets:
            start = data.find(secret)
            while start >= 0:
                found.append((start, start + len(secret)))
                start = data.find(secret, start + 1)
        return sorted(found)

    def _first_open(self, data: bytes) -> int:
        """Where the longest tail begins that more bytes could make a secret."""
        longest = 0
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(data)), longest, -1):
                if data.endswith(secret[:size]):
                    longest = size
                    break
        return len(data) - longest


class LineCap:
    """Cuts lines longer than `max_bytes` and marks each where it was cut."""

    __slots__ = ("_column", "_long", "_max", "_was_cut", "has_cut")

    def __init__(self, max_bytes: int) -> None:
        self.has_cut = False
        self._max = max_bytes
        self._long = re.compile(rb"(\n[^\n]{%d})[^\n]+" % max_bytes)
        self._column = 0
        self._was_cut = False

    def feed(self, data: bytes) -> bytes:
        """The same with long lines cut; a line may come in any number of pieces."""
        end = data.find(b"\n")
        first, rest = (data, b"") if end < 0 else (data[:end], data[end:])
        first = self._more_of_the_line(first)
        if rest:
            self._column, self._was_cut = 0, False
            last = rest.rfind(b"\n") + 1
            tail = self._more_of_the_line(rest[last:])
            lines, cuts = self._long.subn(rb"\1" + CUT, rest[:last])
            self.has_cut |= cuts > 0
            rest = lines + tail
        return first + rest

    def _more_of_the_line(self, piece: bytes) -> bytes:
        room = self._max - self._column
        self._column = min(self._max, self._column + len(piece))
        if len(piece) <= room:
            return piece
        mark = b"" if self._was_cut else CUT
        self._was_cut = self.has_cut = True
        return piece[:room] + mark


class FirstBytes:
    """Keeps the first `max_bytes` of a stream, and of each line `max_line_bytes` if given."""

    __slots__ = ("_cap", "_kept", "_max", "truncated")

    def __init__(self, max_bytes: int, max_line_bytes: int | None = None) -> None:
        self._max = max_bytes
        self._cap = None if max_line_bytes is None else LineCap(max_line_bytes)
        self._kept = bytearray()
        self.truncated = False
        """Whether something was dropped."""

    def feed(self, data: bytes) -> None:
        room = self._max - len(self._kept)
        if self._cap is not None and room:
            data = self._cap.feed(data)
            self.truncated |= self._cap.has_cut
        self.truncated |= len(data) > room
        self._kept += data[:room]

    def text(self, *, mark: bool = False) -> str:
        """What was kept; a character that the cut went through is left out.

        With `mark` the text says itself, once and at its end, that something is missing.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(bytes(self._kept), final=not self.truncated)
        return text + "\n" + TRUNCATED if mark and self.truncated else text


class LastBytes:
    """Keeps the last `max_bytes` of a stream."""

    __slots__ = ("_cap", "_kept", "_max", "_wrapped")

    def __init__(self, max_bytes: int = RING_BYTES, max_line_bytes: int = RING_LINE_BYTES) -> None:
        self._max = max_bytes
        self._cap = LineCap(max_line_bytes)
        self._kept = bytearray()
        self._wrapped = False

    def feed(self, data: bytes) -> None:
        self._kept += self._cap.feed(data)
        surplus = len(self._kept) - self._max
        if surplus > 0:
            self._wrapped = True
            del self._kept[:surplus]

    def text(self) -> str:
        """The last words, from the beginning of a line if any line is whole."""
        kept = bytes(self._kept)
        if self._wrapped:
            kept = kept[kept.find(b"\n") + 1 :]
        text = kept.decode("utf-8", "replace")
        return TRUNCATED + text if self._wrapped else text


class Drain(asyncio.Protocol):
    """Reads one stream to its end, through a masker, into a sink."""

    def __init__(self, sink: Sink, secrets: Iterable[bytes] = ()) -> None:
        self._sink = sink
        self._masker = Masker(secrets)
        self._transport: asyncio.BaseTransport | None = None
        self._ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._sink.feed(self._masker.feed(data))

    def connection_lost(self, exc: Exception | None) -> None:
        # A terminal's end arrives as an error (EIO), a pipe's without one: both are an end.
        del exc
        self._sink.feed(self._masker.flush())
        self._ended.set()

    async def finish(self, seconds: float) -> bool:
        """Wait for the end of the stream, at most so long; whether it came by itself.

        A process that left the tree may hold the other end open for ever.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
                return True
        self.close()
        return False

    def close(self) -> None:
        """Read no more."""
        if self._transport is not None:
            self._transport.close()


async def drain(fd: int, sink: Sink, secrets: Iterable[bytes] = ()) -> Drain:
    """Read `fd` from now on; it belongs to the reader, which closes it."""
    reader = Drain(sink, secrets)
    pipe = os.fdopen(fd, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: reader, pipe)
    return reader
