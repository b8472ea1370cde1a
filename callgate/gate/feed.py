"""Feed a peer what a descriptor has, no faster than it is of use.

Two things can make a peer's bytes cost more than they are worth. Many small frames in one read:
the peer handles a turn of them, and the next turn is the loop's to give, after timers and other
connections. Bytes that are of no use to anybody (blanks, noise, frames that cannot be read,
answers to nothing), written in small pieces: what they cost is paid back by a pause in reading,
in which the pipe collects them. So a peer costs a tenth of a processor at the most for nothing.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from callgate.gate.pipes import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.peers.hub import Hub
    from callgate.peers.turns import Turns

READ_NS: Final = 20_000
"""What a read costs before and after it is handled: a wake-up of the loop and two system calls."""
BYTE_NS: Final = 2
"""For each byte, which its writer had to copy, too: pieces of large frames are nobody's waste."""
PRICE: Final = 10
"""The pause for what was wasted, so many times as long."""
CREDIT_NS: Final = 500_000_000
"""Of pauses that are not made: a server prints a page of text when it starts, and no more."""


class Waste:
    """Says how long to pause for what was wasted. Pure: a bucket that leaks with time."""

    __slots__ = ("_paid_until_ns",)

    def __init__(self) -> None:
        self._paid_until_ns = 0

    def pause_ns(self, now_ns: int, cost_ns: int, size: int, wasted: float) -> int:
        """Return how long not to read, after `size` bytes that cost `cost_ns`."""
        lost_ns = int(max(0, READ_NS + cost_ns - size * BYTE_NS) * wasted)
        self._paid_until_ns = max(self._paid_until_ns, now_ns) + lost_ns * PRICE
        return max(0, self._paid_until_ns - now_ns - CREDIT_NS) if lost_ns else 0


class Peer(Protocol):
    """What handles bytes."""

    turns: Turns

    def receive(self, data: bytes) -> None:
        """Handle a turn of one read; the owner flushes the hub."""


class Feed:
    """Reads a descriptor for a peer."""

    def __init__(self, fd: int, peer: Peer, hub: Hub, on_end: Callable[[], None]) -> None:
        self._peer = peer
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._waste = Waste()
        self.after_turn: Callable[[], None] | None = None
        """Called after each turn, when what it has to say was sent."""
        self.reader = Reader(fd, self.received, on_end)

    def received(self, data: bytes) -> None:
        """Handle one read."""
        began_ns = monotonic_ns()
        self._peer.receive(data)
        self._end_turn(began_ns, len(data))

    def resume(self) -> None:
        """What stopped the peer in the middle of a read is gone: go on."""
        self.reader.resume("flood")
        if self._peer.turns.waiting:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        began_ns = monotonic_ns()
        if self._peer.turns.waiting:
            self._peer.turns.go_on(began_ns)
            self._end_turn(began_ns, 0)
        else:  # they were let go, with the process that wrote them
            self.reader.resume("turn")

    def _end_turn(self, began_ns: int, size: int) -> None:
        turns, reader = self._peer.turns, self.reader
        self._hub.flush()
        if self.after_turn is not None:
            self.after_turn()
        if turns.wasted:
            now_ns = monotonic_ns()
            pause_ns = self._waste.pause_ns(now_ns, now_ns - began_ns, size, turns.wasted)
            if pause_ns:
                reader.pause("waste")
                self._loop.call_later(pause_ns / 1e9, reader.resume, "waste")
        if not turns.waiting:
            reader.resume("turn")
            return
        reader.pause("turn")
        if not reader.is_paused_for("flood"):
            self._loop.call_soon(self._go_on)
