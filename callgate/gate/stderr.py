"""What `callgate run` says on stderr: its texts, and a write that never waits.

Nothing that a peer said is in a text. Nobody may be reading our stderr: made non-blocking it would
be so for whoever shares it, a shell for example; so it is asked before each write, and a pipe that
says yes takes `PIPE_BUF` bytes at least. What cannot be written now is dropped.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from callgate.launcher.protocol import Stopped

STDERR: Final = 2
CHUNK_BYTES: Final = 4096
"""Linux's `PIPE_BUF`; elsewhere it is less, and a write may wait for a slow reader."""
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
