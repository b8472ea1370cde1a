"""The heartbeats of one agent: when one is missing, and when that is too often.

Synchronous. The source specification is silent about the figures; both are usual ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.peers.hub import Hub
    from callgate.router.timer import TimedCallback

HEARTBEAT_MS: Final = 5_000
MISSED_BEATS: Final = 3
"""After so many an agent is unhealthy."""
_MS_NS: Final = 1_000_000


class Heart:
    """Expects a beat every `interval_ms` from the first one on."""

    __slots__ = ("_agent", "_hub", "_missed", "_timeout", "_unhealthy", "interval_ms")

    def __init__(
        self, hub: Hub, agent: str, interval_ms: int, unhealthy: Callable[[], None]
    ) -> None:
        self._hub = hub
        self._agent = agent
        self.interval_ms = interval_ms
        self._unhealthy = unhealthy
        self._missed = 0
        self._timeout: TimedCallback | None = None

    def beat(self) -> None:
        """The agent lives: expect the next one."""
        self._missed = 0
        self._expect(self.interval_ms * 3 // 2)  # a beat may be late; it is missing after that

    def stop(self) -> None:
        """Expect none any more."""
        self._hub.cancel_callback(self._timeout)
        self._timeout = None
        self._missed = 0

    def _expect(self, within_ms: int) -> None:
        self._hub.cancel_callback(self._timeout)
        self._timeout = self._hub.call_later(within_ms * _MS_NS, self._late)

    def _late(self, _: int) -> None:
        self._missed += 1
        self._hub.record("agent.heartbeat_missed", agent=self._agent, count=self._missed)
        if self._missed >= MISSED_BEATS:
            self._unhealthy()
        self._expect(self.interval_ms)
