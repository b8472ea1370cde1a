"""The ends of an agent's streams: the agent's own, and this side's, which do not block."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callgate.model import LaunchSpec


class Stdio:
    """Descriptors of one run. `theirs` go to the agent by name, the rest stay here."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.theirs: dict[str, int] = {}
        self.channel: int | None = None
        self._ours: list[int] = []
        try:
            if spec.terminal:
                self._terminal()
            else:
                self._pipes()
            if spec.protocol == "runtime":
                self._channel()
        except OSError:
            self.close()
            raise

    def _pipes(self) -> None:
        self.theirs["stdin"], self.stdin = self._kept(*os.pipe())
        self.stdout, self.theirs["stdout"] = reversed(self._kept(*reversed(os.pipe())))
        self.stderr, self.theirs["stderr"] = reversed(self._kept(*reversed(os.pipe())))

    def _terminal(self) -> None:
        master, slave = os.openpty()
        self.theirs["stdin"], self.stdin = self._kept(slave, master)
        self.stdout = self.stderr = self.stdin
        for name in ("stdout", "stderr"):
            self.theirs[name] = os.dup(slave)

    def _channel(self) -> None:
        ours, theirs = socket.socketpair()
        self.theirs["channel"], self.channel = self._kept(theirs.detach(), ours.detach())

    def _kept(self, theirs: int, ours: int) -> tuple[int, int]:
        set_blocking = getattr(os, "set_blocking", None)  # on Windows only from Python 3.12 on
        if set_blocking is not None:
            set_blocking(ours, False)
        self._ours.append(ours)
        return theirs, ours

    def handed_over(self) -> None:
        """Close our copies of the agent's ends, without which our ends see its end."""
        for fd in self.theirs.values():
            os.close(fd)
        self.theirs = {}

    def close(self) -> None:
        """Close both sides, when there will be no agent."""
        for fd in (*self.theirs.values(), *self._ours):
            with suppress(OSError):
                os.close(fd)
        self.theirs, self._ours = {}, []
