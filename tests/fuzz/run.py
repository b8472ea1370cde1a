"""Throw frames at the codecs: an answer or a `ProtocolError`, nothing else, for ever.

Each batch is cut into random reads, split, decoded and, if it was taken, passed on and read
again by the codec and by orjson: they must find the tool that was checked. What the codec reads by
its shortcut must be what its walk reads. After each batch a good call must still be read, in the
same stream.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from callgate.protocol import mcp, mcp_encode, runtime
from callgate.protocol.framing import Lengths, Lines, Oversized, with_length
from callgate.protocol.jsonrpc import Response, encode_response
from callgate.protocol.mcp import CallTool, Cancelled, Notification, Progress, Request
from callgate.protocol.problem import ProtocolError
from callgate.protocol.runtime_table import Register, Result
from callgate.protocol.seek import seek
from tests.fuzz.frames import Frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_FRAME_BYTES = 4096
SEEDS = 500
MUTANTS = 9
"""Of each seed, beside itself."""
BATCH = SEEDS * (1 + MUTANTS)
WARM_UP_BATCHES = 4

GOOD_CALL = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"good","arguments":{}}}'
)
GOOD_RESULT = runtime.encode(Result("good", "succeeded"), "m", "2026-01-16T12:00:00Z")

SIDES: tuple[runtime.Side, ...] = ("agent", "core")

MAX_GROWTH_BYTES = 32 * 1024 * 1024


class Broken(Exception):
    """A promise was broken; `frame` breaks it again."""

    def __init__(self, what: str, frame: bytes) -> None:
        super().__init__(what)
        self.frame = frame


@dataclass(slots=True)
class Report:
    """What happened."""

    frames: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    oversized: int = 0
    rss_growth_bytes: int = 0
    peak_growth_bytes: int = 0

    @property
    def ok(self) -> bool:
        return max(self.rss_growth_bytes, self.peak_growth_bytes) <= MAX_GROWTH_BYTES


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def passed_on(message: mcp.Message) -> bytes:
    match message:
        case CallTool():
            return mcp_encode.encode_call(message, 7, 5 if message.token is not None else None)
        case Response():
            return encode_response(7, message)
        case Request():
            return mcp_encode.encode_request(message, 7, 5)
        case Notification():
            return mcp_encode.encode_notification(message)
        case Cancelled():
            return mcp_encode.encode_cancelled(7, message.params)
        case Progress():
            return mcp_encode.encode_progress(5, message.params)


def try_mcp(frame: bytes, report: Report) -> None:
    """Decode, pass on, read again."""
    try:
        message = mcp.decode(frame)
    except ProtocolError as error:
        report.refused[error.reason] += 1
        return
    report.taken[type(message).__name__] += 1
    line = passed_on(message)
    if line.find(b"\n") != len(line) - 1 or b"\r" in line:
        raise Broken("not one line", frame)
    again = mcp.decode(line[:-1])
    if type(again) is not type(message):
        raise Broken("another kind after passing on", frame)
    if isinstance(message, CallTool):
        if not isinstance(again, CallTool) or again.arguments != message.arguments:
            raise Broken("other arguments after passing on", frame)
        try:
            backend = orjson.loads(line)
        except orjson.JSONDecodeError:
            return  # a number beyond floats: this backend runs nothing
        if backend["params"]["name"] != message.name:
            raise Broken("another tool than the one that was checked", frame)


def outcome(
    decode: Callable[[bytes], mcp.Message], frame: bytes
) -> mcp.Message | tuple[object, ...]:
    """What a decoder makes of a frame; errors equal only themselves."""
    try:
        return decode(frame)
    except ProtocolError as error:
        return error.reason, error.id, error.is_response


def try_both_ways(frame: bytes, report: Report) -> None:
    """The shortcut takes nothing that the walk reads in another way."""
    quick = outcome(mcp.decode, frame)
    if quick != outcome(mcp._decode_slowly, frame):
        raise Broken("another message by the shortcut than by the walk", frame)
    report.taken["same"] += 1


def try_runtime(frame: bytes, report: Report) -> None:
    for sender in SIDES:
        try:
            message = runtime.decode(frame, sender)
        except ProtocolError as error:
            report.refused[error.reason] += 1
        else:
            report.taken[message.body.type] += 1
            if isinstance(message.body, Register):
                runtime.check_tools(message.body, "a")


def try_oversized(cut: Oversized, report: Report) -> None:
    report.oversized += 1
    seek(cut.head, cut.tail)
    runtime.seek_call(cut.head, cut.tail)


def mutants(frames: Frames, make: Callable[[], bytes]) -> Iterator[bytes]:
    other = make()
    for _ in range(SEEDS):
        seed = make()
        yield seed
        for _ in range(MUTANTS):
            yield frames.mutated(seed, other)
        other = seed


def reads(stream: bytes, sizes: tuple[int, ...]) -> Iterator[bytes]:
    start = number = 0
    while start < len(stream):
        size = sizes[number % len(sizes)]
        yield stream[start : start + size]
        start += size
        number += 1


class Fuzz:
    """Two streams that never end."""

    def __init__(self, seed: int) -> None:
        self._frames = Frames(seed)
        self._lines = Lines(MAX_FRAME_BYTES)
        self._lengths = Lengths(MAX_FRAME_BYTES)
        self.report = Report()

    def run(self, frames: int, progress: Callable[[Report], None] | None = None) -> Report:
        """At least `frames` frames."""
        rss = peak = 0
        batches = 0
        while self.report.frames < frames:
            self._mcp_batch()
            if batches % 4 == 0:
                self._runtime_batch()
            batches += 1
            if batches == WARM_UP_BATCHES:
                rss, peak = rss_bytes(), peak_bytes()
            elif batches > WARM_UP_BATCHES:
                report = self.report
                report.rss_growth_bytes = max(report.rss_growth_bytes, rss_bytes() - rss)
                report.peak_growth_bytes = peak_bytes() - peak
            if progress is not None:
                progress(self.report)
        return self.report

    def _mcp_batch(self) -> None:
        batch = [*mutants(self._frames, self._frames.mcp), b"", GOOD_CALL]
        stream = b"".join(frame + b"\n" for frame in batch)
        last: bytes | Oversized = b""
        for read in reads(stream, (65536, 1, 7000, 13)):
            for last in self._lines.feed(read):
                if isinstance(last, Oversized):
                    try_oversized(last, self.report)
                else:
                    self._guarded(try_mcp, last)
                    self._guarded(try_both_ways, last)
        self.report.frames += BATCH
        call = mcp.decode(last) if isinstance(last, bytes) else None
        if not isinstance(call, CallTool) or call.name != "good":
            raise Broken("a good call is not read any more", GOOD_CALL)

    def _runtime_batch(self) -> None:
        batch = mutants(self._frames, self._frames.runtime)
        stream = b"".join([*map(with_length, batch), GOOD_RESULT])
        last: bytes | Oversized = b""
        for read in reads(stream, (65536, 3, 5000)):
            for last in self._lengths.feed(read):
                if isinstance(last, Oversized):
                    try_oversized(last, self.report)
                else:
                    self._guarded(try_runtime, last)
        self.report.frames += BATCH
        if not isinstance(last, bytes) or last != GOOD_RESULT[4:]:
            raise Broken("a good result is not read any more", GOOD_RESULT)

    def _guarded(self, attempt: Callable[[bytes, Report], None], frame: bytes) -> None:
        try:
            attempt(frame, self.report)
        except Broken:
            raise
        except Exception as error:
            raise Broken(f"{type(error).__name__} instead of an answer", frame) from error
