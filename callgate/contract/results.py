"""What a check says. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Outcome = Literal["passed", "failed", "skipped"]


class CheckFailed(Exception):
    """The agent broke the contract; the text says how."""


class CheckSkipped(Exception):
    """The check cannot be made with this agent; the text says why."""


class UnknownCheck(ValueError):
    """Somebody asked for a check that does not exist."""


class CheckResult(msgspec.Struct, frozen=True):
    """One line of the report."""

    name: str
    outcome: Outcome
    detail: str = ""
    duration_ms: int = 0


class ToolUse(msgspec.Struct, frozen=True):
    """A tool that may be called, and with what."""

    name: str
    arguments: dict[str, Any]


class Tools(msgspec.Struct, frozen=True):
    """The tools that the checks may use; by default those of the reference agent."""

    call: ToolUse = ToolUse("hello_world", {})
    """Answers at once."""
    stream: ToolUse = ToolUse("stream_counter", {"count": 3})
    """Tells of its progress at least twice."""
    slow: ToolUse = ToolUse("sleep", {"seconds": 1})
    """Runs for about a second and heeds a cancel."""
    invalid: ToolUse = ToolUse("invalid_input", {"value": "not an integer"})
    """Refuses these arguments."""


def lacks(tool: ToolUse) -> CheckFailed | CheckSkipped:
    """What it means that an agent has no such tool: nothing, unless somebody named it."""
    for key, default in msgspec.structs.asdict(Tools()).items():
        if tool == default:
            return CheckSkipped(f"the agent has no tool {tool.name}; name one with --{key}")
    return CheckFailed(f"the agent has no tool {tool.name}")


class Times(msgspec.Struct, frozen=True):
    """How long the checks wait."""

    start_s: float = 30.0
    """For the first message of a new process; an interpreter may be cold."""
    answer_s: float = 10.0
    quiet_s: float = 0.2
    """For an answer that must not come."""
    heartbeat_ms: int = 200


CHECKS: Final = (
    "handshake",
    "handshake failure",
    "registration",
    "call",
    "streaming",
    "cancel",
    "heartbeat",
    "framing",
    "error shaping",
)
"""The nine, in the order in which they run."""
