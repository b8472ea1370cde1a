"""What `callgate run` tells the person who set it up. Pure, and nothing that a peer said."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callgate.launcher.protocol import Stopped

UNREADABLE = (
    "a message could not be read ({}) and was dropped; further ones are only recorded, as "
    "protocol.frame_rejected. An MCP server must print nothing but MCP to its stdout"
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
