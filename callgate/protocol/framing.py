"""Cut a byte stream into frames: newline JSON, or a 4-byte length and JSON.

Pure: the owner reads, passes the bytes (and, if it times frames, `now_ns`) and gets what
became complete. However a stream is cut into reads, the frames are the same.

A frame over `max_frame_bytes` is drained, not buffered: only its first and last
`KEPT_BYTES` stay, so that its id can be sought, and it is reported as `Oversized` when it
ends. A stream that never ends a frame therefore costs the limit and no more; `since_ns` says
when the incomplete frame began, so that the owner can end it.
"""

from __future__ import annotations

from typing import Final

import msgspec

KEPT_BYTES: Final = 1024
"""Of each end of an oversized frame. Envelope members other than `params` and `result` are
short and stand at one of the ends."""

HEADER_BYTES: Final = 4

_CR: Final = ord("\r")
_SHORT_BYTES: Final = 4096
"""Of a first line; after such a one the others are taken to be short too, and all are split."""


class Oversized(msgspec.Struct, frozen=True, gc=False):
    """A frame that was too large: its two ends and its whole size, without the delimiter."""

    head: bytes
    tail: bytes
    size: int


class _Drain:
    """What is kept of a frame while the rest of it is thrown away."""

    __slots__ = ("_head", "_size", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._size = 0

    def take(self, data: bytes | bytearray) -> None:
        if len(self._head) < KEPT_BYTES:
            self._head += data[: KEPT_BYTES - len(self._head)]
        if len(data) >= KEPT_BYTES:
            self._tail = bytes(data[-KEPT_BYTES:])
        elif data:
            self._tail = (self._tail + data)[-KEPT_BYTES:]
        self._size += len(data)

    @property
    def size(self) -> int:
        return self._size

    def end(self) -> Oversized:
        return Oversized(self._head, self._tail, self._size)


class _Splitter:
    """What both framings share: the incomplete frame, and since when it is."""

    __slots__ = ("_buffer", "_drain", "max_frame_bytes", "since_ns")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._drain: _Drain | None = None
        self.since_ns: int | None = None
        """`now_ns` of the read that began the incomplete frame; None between frames."""

    @property
    def pending(self) -> int:
        """Bytes of the incomplete frame so far; 0 at the end of a stream means a clean end."""
        return len(self._buffer) if self._drain is None else self._drain.size

    def _mark(self, now_ns: int) -> None:
        """Remember when an incomplete frame began; completing one forgets it."""
        if self.since_ns is None and self.pending:
            self.since_ns = now_ns


class Lines(_Splitter):
    """Newline-delimited frames.

    Blank lines are skipped, a carriage return before the newline is taken off; neither
    counts against `max_frame_bytes`.
    """

    __slots__ = ()

    def feed(self, data: bytes, now_ns: int = 0) -> list[bytes | Oversized]:
        """The frames that `data` completes, in order."""
        if (
            self._buffer
            or self._drain is not None
            or len(data) > self.max_frame_bytes
            or not 0 <= data.find(b"\n") <= _SHORT_BYTES
        ):
            return self._feed_long(data, now_ns)
        # One read holds many small lines: one split, then only what the rare ones need.
        lines = data.split(b"\n")
        rest = lines.pop()
        if rest:
            self._buffer += rest
            self.since_ns = now_ns
        if _CR in data:
            lines = [line.removesuffix(b"\r") for line in lines]
        if b"" in lines:
            lines = [line for line in lines if line]
        return lines  # type: ignore[return-value]  # a list of bytes is one of either

    def _feed_long(self, data: bytes, now_ns: int) -> list[bytes | Oversized]:
        """Line by line: long lines are found quicker than split, and some may be too long."""
        frames: list[bytes | Oversized] = []
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            line = data[position:end]
            position = end + 1
            frame: bytes | Oversized
            if self._drain is not None or self._buffer or len(line) > self.max_frame_bytes:
                self._keep(line)
                frame = self._complete()
            else:
                frame = line.removesuffix(b"\r")
            if frame:
                frames.append(frame)
        self._keep(data[position:])
        self._mark(now_ns)
        return frames

    def _keep(self, data: bytes) -> None:
        drain = self._drain
        if drain is not None:
            drain.take(data)
        elif len(self._buffer) + len(data) <= self.max_frame_bytes + 1:
            # One more than the limit: it may turn out to be a carriage return.
            self._buffer += data
        else:
            self._drain = drain = _Drain()
            drain.take(self._buffer)
            drain.take(data)
            self._buffer = bytearray()

    def _complete(self) -> bytes | Oversized:
        self.since_ns = None
        if self._drain is not None:
            ended = self._drain.end()
            self._drain = None
            if ended.tail.endswith(b"\r"):
                size = ended.size - 1
                return Oversized(ended.head[:size], ended.tail[:-1], size)
            return ended
        line = bytes(self._buffer).removesuffix(b"\r")
        self._buffer = bytearray()
        if len(line) > self.max_frame_bytes:
            return Oversized(line[:KEPT_BYTES], line[-KEPT_BYTES:], len(line))
        return line


class Lengths(_Splitter):
    """Frames behind a 4-byte big-endian length. An empty frame is a frame."""

    __slots__ = ("_missing",)

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes)
        self._missing = 0
        """Bytes of the drained frame that are still to come."""

    @property
    def pending(self) -> int:
        return super().pending + (0 if self._drain is None else HEADER_BYTES)

    def feed(self, data: bytes, now_ns: int = 0) -> list[bytes | Oversized]:
        """The frames that `data` completes, in order."""
        frames: list[bytes | Oversized] = []
        position = 0
        size = len(data)
        limit = self.max_frame_bytes
        while position < size:
            if self._drain is not None or self._buffer:
                position = self._go_on(data, position, frames)
                continue
            start = position + HEADER_BYTES
            length = int.from_bytes(data[position:start], "big")
            if start > size or length > limit or start + length > size:
                position = self._begin(data, position, frames)
                continue
            position = start + length
            frames.append(data[start:position])
        self._mark(now_ns)
        return frames

    def _begin(self, data: bytes, position: int, frames: list[bytes | Oversized]) -> int:
        """The header of a frame that is too long or not whole in `data`."""
        header = data[position : position + HEADER_BYTES]
        self._buffer += header
        self._settle(frames)
        return position + len(header)

    def _go_on(self, data: bytes, position: int, frames: list[bytes | Oversized]) -> int:
        """Add to the incomplete frame what `data` has of it; return what comes after."""
        drain = self._drain
        if drain is not None:
            part = data[position : position + self._missing]
            drain.take(part)
            self._missing -= len(part)
            if not self._missing:
                frames.append(drain.end())
                self._drain = self.since_ns = None
            return position + len(part)
        buffer = self._buffer
        have = len(buffer)
        want = HEADER_BYTES
        if have >= HEADER_BYTES:
            want += int.from_bytes(buffer[:HEADER_BYTES], "big")
        buffer += data[position : position + want - have]
        position += len(buffer) - have
        self._settle(frames)
        return position

    def _settle(self, frames: list[bytes | Oversized]) -> None:
        """Decide what a header means once it is whole, and give out a frame that is."""
        if len(self._buffer) < HEADER_BYTES:
            return
        length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
        if length > self.max_frame_bytes:
            self._drain = _Drain()
            self._missing = length
        elif len(self._buffer) < HEADER_BYTES + length:
            return
        else:
            frames.append(bytes(self._buffer[HEADER_BYTES:]))
            self.since_ns = None
        self._buffer = bytearray()


def with_length(payload: bytes) -> bytes:
    """A frame for `Lengths`."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload
