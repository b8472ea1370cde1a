"""What a launcher is: it turns a spec into a running process and says why that ended.

A user who wants Docker, Kubernetes, Apple Containers, Windows Job Objects or a microVM
writes these two classes, names the first in the entry point group `callgate.launchers`,
and replaces the whole of the built-in one. `examples/launcher_plugin.py` is a worked one.

Values, not callbacks, wherever the caller decides what to do next. The one callback is for
warnings, which nobody waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from callgate.errors import AgentUnavailable, LimitInfo
from callgate.model import RunState, StopReason, Usage
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from callgate.model import LaunchSpec

ENTRY_POINTS = "callgate.launchers"
"""Each entry point is a callable that returns a `Launcher`."""

Status = Literal["enforced", "degraded", "absent"]

LIMIT_REASONS: dict[str, StopReason] = {
    "memory": "memory_limit",
    "cpu_time": "cpu_time_limit",
    "wall_time": "wall_time_limit",
    "pids": "pids_limit",
    "disk": "disk_limit",
    "files": "file_count_limit",
    "connections": "connections_limit",
}
"""The type in a `LimitInfo` → why a run that reached it ended."""


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Whether one feature that was asked for holds, and if not fully, why."""

    status: Status
    reason: str = ""


class Stopped(msgspec.Struct, frozen=True):
    """The end of a run."""

    reason: StopReason
    state: RunState
    """`stopped`, `crashed`, or `paused`: out of memory, with its workspace kept."""
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage = Usage()
    limit: LimitInfo | None = None
    """The limit that ended it."""
    stage: str | None = None
    """`failed_to_start` only: the step that failed."""


class LaunchRefused(AgentUnavailable):
    """Containment that was asked for cannot be had, or a step of it failed; nothing runs.

    `gaps` lists every feature that is missing, each with its reason; `stage` is the step
    that failed, when the host looked able before it was tried.
    """

    retryable = False

    def __init__(
        self, *, gaps: Mapping[str, str] | None = None, stage: str = "plan", **fields: Any
    ) -> None:
        super().__init__(**fields)
        self.gaps = dict(gaps or {})
        self.stage = stage

    def describe(self) -> str:
        what = "the agent" if self.agent is None else f"agent {self.agent}"
        return quoted(f"{what} was not started ({self.stage}): {gaps_text(self.gaps)}")


def gaps_text(gaps: Mapping[str, str]) -> str:
    """Every gap for a person: what one thing is missing for stands together."""
    features: dict[str, list[str]] = {}
    for feature, reason in gaps.items():
        features.setdefault(reason, []).append(feature)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in features.items())


class Run(Protocol):
    """One life of an agent process.

    `stdin`, `stdout` and `stderr` are this side's ends, non-blocking, and belong to the
    caller: it attaches its transports and closes them. With a terminal all three are one
    descriptor, the PTY's master. An agent of the `runtime` protocol has a `channel` (a
    socketpair's end) beside them and knows the `token`.
    """

    @property
    def run_id(self) -> str: ...

    @property
    def pid(self) -> int:
        """The process to look at: the agent itself, or what contains it."""

    @property
    def state(self) -> RunState: ...

    @property
    def effective(self) -> Mapping[str, Effect]: ...

    @property
    def stdin(self) -> int: ...

    @property
    def stdout(self) -> int: ...

    @property
    def stderr(self) -> int: ...

    @property
    def channel(self) -> int | None: ...

    @property
    def token(self) -> str | None: ...

    def usage(self) -> Usage:
        """The last look at it; never blocks, and exporters ask from threads of their own."""

    async def stop(self, reason: StopReason, grace_ns: int | None = None) -> Stopped:
        """Ask the agent to end, wait the grace (the spec's, if None), then kill its tree."""

    def kill(self, reason: StopReason, limit: LimitInfo | None = None) -> None:
        """End the whole tree now; `wait` says when it is gone. The first reason counts."""

    async def wait(self) -> Stopped:
        """The end of the run, when no process of it is left. May be awaited by several."""

    async def discard(self) -> None:
        """Give up a paused run's workspace; a run that is not paused has none."""


class Launcher(Protocol):
    """Starts runs and owns them until they end."""

    async def launch(
        self,
        spec: LaunchSpec,
        *,
        run_id: str,
        on_warning: Callable[[LimitInfo], None] | None = None,
        resume: Run | None = None,
    ) -> Run:
        """Start an agent; raises `LaunchRefused` if it cannot be started as asked.

        `resume` is a paused run of the same launcher: the new one takes over its workspace.
        """

    async def aclose(self) -> None:
        """Kill every run and wait until nothing of them is left."""
