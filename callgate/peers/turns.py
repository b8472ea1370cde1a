"""Handle the frames of one read in turns, so that nobody else waits for a flood of them.

Synchronous. One read may hold a hundred thousand frames, and what handling them costs is up to who
wrote them. A turn handles some; whoever owns the loop gives the next turn when timers and other
connections have had theirs. Within a turn each pass is flushed.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from callgate.peers.hub import PASS_FRAMES
from callgate.protocol.jsonrpc import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from callgate.peers.hub import Hub
    from callgate.peers.outbox import Outbox
    from callgate.protocol.framing import Oversized

    Frame = bytes | Oversized

TURN_FRAMES: Final = 8 * PASS_FRAMES
"""A turn of the dearest small frames takes some 20 ms; a turn of the loop costs next to nothing
beside that of so many cheap ones."""


class Turns:
    """The frames that one connection has read and not handled yet."""

    __slots__ = (
        "_frames",
        "_handle",
        "_handled",
        "_hub",
        "_next",
        "_outbox",
        "_useless",
        "has_batches",
    )

    def __init__(
        self, hub: Hub, handle: Callable[[Frame, int], None], outbox: Outbox | None = None
    ) -> None:
        """A turn ends early while nobody reads what `outbox` has sent."""
        self._hub = hub
        self._handle = handle
        self._outbox = outbox
        self._frames: Sequence[Frame] = ()
        self._next = 0
        self._handled = self._useless = 0
        self.has_batches = False
        """Whether both sides have agreed on the one version of MCP that has batches."""

    @property
    def waiting(self) -> bool:
        """Whether another turn is needed before the next read."""
        return len(self._frames) > 0

    @property
    def wasted(self) -> float:
        """How much of the last turn was of no use to anybody, from 0 to 1."""
        return min(1.0, self._useless / self._handled) if self._handled else 1.0

    def begin(self, frames: Sequence[Frame], now_ns: int) -> None:
        """Handle a turn of what one read has brought, each message of a batch by itself."""
        if self.has_batches:
            parts = (parts_of(one) if isinstance(one, bytes) else [one] for one in frames)
            frames = list(chain.from_iterable(parts))
        if self._frames:
            self._frames = [*self._frames[self._next :], *frames]
            self._next = 0
            self.go_on(now_ns)
        elif len(frames) < PASS_FRAMES:  # the owner's flush ends that pass
            self._handle_pass(frames, now_ns)
            self._handled = len(frames)
        else:
            self._frames, self._next = frames, 0
            self.go_on(now_ns)

    def go_on(self, now_ns: int) -> None:
        """Handle the next turn; the owner flushes the hub."""
        frames, start = self._frames, self._next
        number, size = start, len(frames)
        useless = 0
        while number < size:
            one_pass = frames[number : number + PASS_FRAMES]
            self._handle_pass(one_pass, now_ns)
            useless += self._useless
            number += len(one_pass)
            if len(one_pass) < PASS_FRAMES:
                break
            self._hub.flush()
            if number - start >= TURN_FRAMES or self._is_flooded():
                break
        self._handled = number - start
        self._useless = useless
        self._next = number
        if number >= size or not self._frames:  # or they were let go meanwhile
            self._frames = ()

    def _handle_pass(self, frames: Sequence[Frame], now_ns: int) -> None:
        hub, handle = self._hub, self._handle
        before = hub.stray + hub.unreadable
        for frame in frames:
            try:
                handle(frame, now_ns)
            except Exception as error:  # noqa: BLE001  # one frame may not stop the others
                hub.fault(error)
        self._useless = hub.stray + hub.unreadable - before

    def _is_flooded(self) -> bool:
        return self._outbox is not None and self._outbox.pipe.flooded

    def clear(self) -> None:
        """Let go of all frames, handled or not: their sender has gone."""
        self._frames = ()
