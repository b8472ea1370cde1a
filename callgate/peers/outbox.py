"""What goes out: outboxes, and the pass that fills them before the audit lets them go.

Synchronous. A pass ends with `write_down`, the audit's one write, and `send`, one write for
each outbox. Nothing that a record belongs to leaves before the record does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from callgate.errors import AuditUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from callgate.peers.inflight import Pending
    from callgate.router.recorder import Recorder


class Pipe(Protocol):
    """The IO under an outbox: writes what it can and keeps the rest, in whole frames."""

    @property
    def flooded(self) -> bool:
        """Whether far more waits than anybody reads."""

    def write(self, frames: list[bytes], first: Sequence[bytes] = ()) -> None:
        """Write `frames` after what waits already, `first` before it but never inside a frame."""

    def withdraw(self, head: bytes) -> bytes | None:
        """Take the frame that begins with `head` out again; None if any of it has been written."""


class Outbox:
    """Frames for one connection, collected during a pass."""

    __slots__ = ("_first", "_frames", "_wire", "pipe")

    def __init__(self, wire: Wire, pipe: Pipe) -> None:
        self._wire = wire
        self.pipe = pipe
        self._frames: list[bytes] = []
        self._first: list[bytes] = []

    def put(self, frame: bytes) -> None:
        """Send at the end of this pass."""
        frames = self._frames
        if not frames:
            self._wire.dirty.append(self)
        frames.append(frame)

    def put_first(self, frame: bytes) -> None:
        """Send at the end of this pass, before everything that waits."""
        self._wire.dirty.append(self)
        self._first.append(frame)

    def reply(self, frame: bytes) -> bool:
        """Queue an answer to what nobody waits for; return False, and drop it, in a flood.

        Who floods us and does not read what we say of it costs no more memory than that.
        """
        if self.pipe.flooded:
            return False
        self.put(frame)
        return True

    def take_back(self, head: bytes) -> bytes | None:
        """Return the frame that begins with `head`, which is not sent after all.

        None if some of it has gone already.
        """
        if not head:
            return None  # it was never put, and every frame begins with nothing
        for position, waiting in enumerate(self._frames):
            if waiting.startswith(head):
                return self._frames.pop(position)
        return self.pipe.withdraw(head)

    def replace(self, frames: dict[int, bytes]) -> None:
        """Send other frames in the place of some of this pass, which are named by their `id`."""
        self._frames = [frames.get(id(frame), frame) for frame in self._frames]

    def send(self) -> None:
        """Hand everything to the pipe."""
        frames, self._frames = self._frames, []
        first = self._first
        if first:
            self._first = []
            self.pipe.write(frames, first)
        elif frames:
            self.pipe.write(frames)


class Wire:
    """One pass over all connections of a gate."""

    __slots__ = ("_recorders", "dirty", "ended", "started")

    def __init__(self, recorders: list[Recorder]) -> None:
        self._recorders = recorders
        self.dirty: list[Outbox] = []
        """Outboxes with something to send; one may be here twice."""
        self.started: list[Pending] = []
        """Calls that this pass sends to an agent, and whose admission it has yet to write."""
        self.ended: list[Pending] = []
        """Calls that this pass answers, and whose end it has yet to write."""

    def write_down(self) -> list[Recorder]:
        """Write the records of this pass; those recorders that could not."""
        failed: list[Recorder] = []
        for recorder in self._recorders:
            try:
                recorder.flush()
            except AuditUnavailable:
                failed.append(recorder)
        return failed

    def send(self) -> None:
        """Let go of everything, one write for each outbox."""
        self.started.clear()
        self.ended.clear()
        dirty, self.dirty = self.dirty, []
        for outbox in dirty:
            outbox.send()
