"""What `callgate run` says on stderr: its texts, what an agent prints, a write that never waits.

Nothing that a peer said is in a text. What an uncontained agent prints passes, as without a gate:
it is a program of its user on its user's machine. Of a contained one only the start passes; the
rest is kept, and its end is shown if the process ends unexpectedly.

Nobody may be reading our stderr: made non-blocking it would be so for whoever shares it, a shell
for example; so it is asked before each write, and a pipe that says yes takes `PIPE_BUF` bytes at
least. What cannot be written now is dropped.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from callgate.launcher.capture import LastBytes
from callgate.text import lines

if TYPE_CHECKING:
    from callgate.errors import LimitInfo
    from callgate.launcher.protocol import Stopped

STDERR: Final = 2
CHUNK_BYTES: Final = 4096
"""Linux's `PIPE_BUF`; elsewhere it is less, and a write may wait for a slow reader."""
TAIL_BYTES: Final = 8 * 1024
"""Of what an agent printed at last: a traceback of a hundred lines."""
UNREADABLE = (
    "a message could not be read ({}) and was dropped; further ones are only recorded, as "
    "protocol.frame_rejected. An MCP server must print nothing but MCP to its stdout"
)
UNREADABLE_CLIENT = (
    "a message of the client could not be read ({}) and was refused; further ones are only "
    "recorded, as protocol.frame_rejected. The agent has not seen it"
)
SILENT = (
    "; it had answered nothing. Try its command without callgate: it must be an MCP server that "
    "speaks on stdin and stdout"
)


def how_it_ended(stopped: Stopped) -> str:
    """The reason, with the number that says more."""
    if stopped.reason == "exited" and stopped.exit_code is not None:
        return f"exited with code {stopped.exit_code}"
    if stopped.reason == "signal" and stopped.signal is not None:
        return f"signal {_name(stopped.signal)}"
    return stopped.reason


def ended(agent: str, stopped: Stopped, *, spoke: bool) -> str:
    """The last word on an agent that will not be started again."""
    return f"agent {agent} ended: {how_it_ended(stopped)}{'' if spoke else SILENT}"


def warning(agent: str, limit: LimitInfo) -> str:
    """Return how much an agent uses of what a limit allows."""
    from callgate.launcher.limit_message import limit_text  # noqa: PLC0415  # few come near a limit

    if limit.usage is None:
        return f"agent {agent} is close to a limit: {limit_text(limit.type, limit.limit)}"
    used = limit_text(limit.type, limit.usage).removeprefix(f"{limit.type} ")
    allowed = limit_text(limit.type, limit.limit).removeprefix(f"{limit.type} ")
    return f"agent {agent} used {used} of {allowed}: {limit.type.replace('_', ' ')}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def write_stderr(data: bytes) -> None:
    """Write what can be written at once."""
    with suppress(OSError, ValueError):
        for start in range(0, len(data), CHUNK_BYTES):
            _, writable, _ = select.select([], [STDERR], [], 0)
            if not writable:
                return
            os.write(STDERR, data[start : start + CHUNK_BYTES])


class AgentStderr:
    """What an agent prints to its stderr, shown or kept; a sink."""

    __slots__ = ("_decode", "_is_contained", "_is_started", "_kept", "_passes")

    def __init__(self, *, passes: bool) -> None:
        """Show everything if it `passes`, whatever contains the agent."""
        self._passes = passes
        self._is_contained = False
        self._is_started = False
        self._kept = LastBytes(TAIL_BYTES)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode = decoder.decode if os.isatty(STDERR) else None

    def begin(self, *, contained: bool) -> None:
        """Take what the next process prints."""
        self._is_contained = contained
        self._kept = LastBytes(TAIL_BYTES)

    def started(self) -> None:
        """The agent has shown that it speaks its protocol."""
        self._is_started = True

    def feed(self, data: bytes) -> None:
        """Show or keep what was printed; no control character reaches a terminal."""
        if self._is_contained and self._is_started and not self._passes:
            self._kept.feed(data)
        elif self._decode is None:
            write_stderr(data)
        else:
            shown = lines(self._decode(data).replace("\r\n", "\n").expandtabs())
            write_stderr(shown.encode("utf-8", "backslashreplace"))

    def take_tail(self) -> str:
        """Return the end of what was kept, fit to be shown; keep it no longer."""
        kept, self._kept = self._kept, LastBytes(TAIL_BYTES)
        return lines(kept.text().rstrip())
