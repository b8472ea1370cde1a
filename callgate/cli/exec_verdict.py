"""Say in one line how a contained command ended; nothing if it ended well by itself.

Pure. The command's output is its own; this line is for the person who wonders why there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from callgate.launcher.limit_message import amount, limit_text

if TYPE_CHECKING:
    from callgate.launcher.protocol import Stopped

_NS_PER_MS: Final = 1_000_000
_OPTIONS: Final = {
    "wall_time": "--timeout",
    "memory": "--memory",
    "cpu_time": "--cpu-time",
    "pids": "--pids",
    "disk": "--disk",
    "files": "--files",
}
"""The type of a limit → the option that raises it."""


def verdict(stopped: Stopped, elapsed_ms: int) -> str | None:
    """Return the line, without a line break; None for a command that ended with 0."""
    after = f"after {amount(elapsed_ms * _NS_PER_MS, 'ns')}"
    if stopped.limit is not None:
        kind = stopped.limit.type
        option = _OPTIONS.get(kind)
        noun = kind if option is None else option.removeprefix("--")
        most = limit_text(kind, stopped.limit.limit).removeprefix(f"{kind} ")
        more = "" if option is None else f"; raise it with {option}"
        return f"{_ended(stopped)} {after}: over its {noun} limit of {most}{more}"
    if stopped.signal is not None:
        return f"ended by signal {stopped.signal} {after}"
    if stopped.exit_code is None:
        return f"ended {after}: {stopped.reason}"
    if stopped.exit_code == 0 and stopped.reason == "exited":
        return None
    return f"ended with exit code {stopped.exit_code} {after}"


def _ended(stopped: Stopped) -> str:
    code = stopped.exit_code
    return "killed" if code is None else f"ended with exit code {code}"
