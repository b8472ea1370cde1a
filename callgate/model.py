"""The nouns that layers share: a call, and what a policy compiles to.

Pure. The policy package fills the specs; limits, audit and router read them. Specs are
frozen and depend on names of the policy only, never on a peer's, so they can be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

ANONYMOUS = "anonymous"
"""Who asks when nobody says who."""

ANY = "*"
"""The key of everything that the policy does not name."""

OTHERS = "~others"
"""The name that the callers beyond `MAX_LIVE` share."""

MAX_LIVE = 65_536
"""Callers and buckets that may be live at once: some 50 MB of them."""

ScopeKind = Literal["global", "caller", "agent", "tool"]
IgnoredCancel = Literal["release", "restart", "kill"]


class ToolCall(msgspec.Struct, frozen=True):
    """One request for a tool. `caller` and the ids default to the enclosing call's, if any."""

    agent: str
    tool: str
    arguments: Mapping[str, Any] = {}
    caller: str | None = None
    timeout_ms: int | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    trace: Mapping[str, str] | None = None
    """A W3C carrier (`traceparent`, `tracestate`, `baggage`) of the caller's span."""


class Scope(msgspec.Struct, frozen=True, gc=False):
    """What a limit counts. `per_caller` splits an agent's or a tool's count by caller."""

    kind: ScopeKind
    agent: str | None = None
    tool: str | None = None
    per_caller: bool = False
    tried: bool = False
    """Counted apart, for a profile that is only tried (in shadow) beside the limits that hold."""

    @property
    def owned_by_caller(self) -> bool:
        """Whether its counter lives and dies with a caller."""
        return self.per_caller or self.kind == "caller"

    @property
    def holds_back_all(self) -> bool:
        """Whether it counts every call of an agent, whoever makes it."""
        return self.kind in {"global", "agent"} and not self.per_caller

    def describe(self, caller: str) -> str:
        """The scope for people and the audit; `caller` is the name that may be shown."""
        if self.kind == "global":
            return "global"
        if self.kind == "caller":
            return f"caller:{caller}"
        name = f"{self.kind}:{self.agent}"
        if self.kind == "tool":
            name += f"/{self.tool}"
        return f"{name}@{caller}" if self.per_caller else name


class RateSpec(msgspec.Struct, frozen=True, gc=False):
    """`count` calls per `period_ns`, `burst` of them at once; `wait` paces, else deny."""

    scope: Scope
    text: str
    count: int
    period_ns: int
    burst: int
    wait: bool = False
    shadow: bool = False

    @property
    def interval_ns(self) -> int:
        """Time that one call costs. Rounded up, so that never more than the rate passes."""
        return -(-self.period_ns // self.count)


class SlotSpec(msgspec.Struct, frozen=True, gc=False):
    """At most `limit` calls at once."""

    scope: Scope
    limit: int
    shadow: bool = False
    queue: int = 0
    """In shadow: how many more would have waited; only those after them would have been refused."""


class QuotaSpec(msgspec.Struct, frozen=True, gc=False):
    """At most `limit` calls in each fixed window of the wall clock."""

    scope: Scope
    text: str
    limit: int
    period_ns: int
    shadow: bool = False


class BytesSpec(msgspec.Struct, frozen=True, gc=False):
    """At most `limit` bytes; `scope` is the level whose ceiling it is."""

    scope: Scope
    limit: int
    shadow: bool = False


class TimeSpec(msgspec.Struct, frozen=True, gc=False):
    """At most `limit_ns`; `scope` is the level whose ceiling it is."""

    scope: Scope
    limit_ns: int
    shadow: bool = False


class LaneSpec(msgspec.Struct, frozen=True):
    """All that a policy says of (caller, agent, tool), with `None` for "no limit".

    The keys are names of the policy or of listed tools, a pattern, or `*`; for an unnamed
    caller `caller_key` is `*`. `agent` and `tool` are the names that may be shown, or None.
    """

    caller_key: str
    agent_key: str
    tool_key: str
    agent: str | None
    tool: str | None
    policy: str
    denied: bool
    denied_shadow: bool
    timeout: TimeSpec | None
    """For calls that ask for none."""
    max_timeout: TimeSpec | None
    """The lowest ceiling that applies, also to the default."""
    tried_timeout: TimeSpec | None
    """Of a profile that is only tried; in shadow, as is the next one."""
    tried_max_timeout: TimeSpec | None
    rates: tuple[RateSpec, ...]
    slots: tuple[SlotSpec, ...]
    quota: QuotaSpec | None
    queue: int
    max_input_bytes: BytesSpec | None
    max_output_bytes: BytesSpec | None
    isolate: bool
    cancel_grace_ns: int
    on_ignored_cancel: IgnoredCancel


class GateSpec(msgspec.Struct, frozen=True):
    """What a policy says of the connection to one agent, with `None` for "no limit"."""

    agent: str
    protocol: Literal["mcp", "runtime"]
    max_frame_bytes: int | None
    handshake_ns: int
    cancel_grace_ns: int
    requests_timeout_ns: int | None
    """For requests other than tool calls."""
    bandwidth_bps: int | None
    denials: Literal["result", "error"]
    tasks: Literal["refuse", "pass"]


class AuditSpec(msgspec.Struct, frozen=True):
    """Where the audit goes, how much of it is kept, and what a failure to write means."""

    path: str
    fail_closed: bool = True
    rotate_bytes: int = 64 * 1024 * 1024
    keep_ns: int | None = 30 * 24 * 3600 * 1_000_000_000
    max_bytes: int | None = 1024 * 1024 * 1024
    stdout: bool = False
    otel: bool = False


class RequestIds:
    """Ids that look like UUIDv7, sort by time of start and cost one format each.

    A process prefix (start time, 26 random bits) and a counter: unique as long as two
    processes that start in the same millisecond do not also draw the same 26 bits.
    """

    __slots__ = ("_block", "_high", "_low", "_prefix")

    def __init__(self, start_ms: int, entropy: bytes) -> None:
        random = int.from_bytes(entropy[:4], "big")
        stamp = f"{start_ms & 0xFFFF_FFFF_FFFF:012x}"
        rand_a = random & 0xFFF
        variant = 0x8000 | (random >> 12) & 0x3FFF
        self._prefix = f"{stamp[:8]}-{stamp[8:]}-7{rand_a:03x}-{variant:04x}-"
        self._high = 0
        self._low = 0
        self._block = f"{self._prefix}{0:09x}"

    def next(self) -> str:
        """A new id."""
        self._low = low = self._low + 1
        if low == _LOW_COUNT:
            self._low = low = 0
            self._high += 1
            self._block = f"{self._prefix}{self._high:09x}"
        return self._block + _LOW[low]


_LOW = [f"{low:03x}" for low in range(4096)]
"""The last digits of ids. To format a number costs more than all else that an id needs."""
_LOW_COUNT = len(_LOW)


# What a policy says of an agent's process, compiled for a launcher.

Level = Literal["strict", "standard", "network", "privileged"]
BUILT_IN = "local"
"""The launcher that is part of this package; others are found by their entry points."""
RunState = Literal["starting", "running", "paused", "stopped", "crashed"]
StopReason = Literal[
    "exited",
    "stop_requested",
    "failed_to_start",
    "handshake_failed",
    "unhealthy",
    "oom",
    "memory_limit",
    "cpu_time_limit",
    "wall_time_limit",
    "pids_limit",
    "disk_limit",
    "file_count_limit",
    "connections_limit",
    "ignored_cancel",
    "protocol_violation",
    "policy_changed",
    "signal",
    "parent_exit",
]
"""Why a run ended. Closed: audit, `callgate runs` and metrics use these words."""


class ResourceLimits(msgspec.Struct, frozen=True, gc=False):
    """What a run may use. `None` leaves a dial alone, which is not the same as infinity."""

    memory_bytes: int | None = None
    memory_high_bytes: int | None = None
    """Above it a run is slowed down and its memory reclaimed (`mode: soft`); nothing is ended."""
    cpu_millicores: int | None = None
    pids: int | None = None
    """Processes and threads."""
    disk_bytes: int | None = None
    files: int | None = None
    connections: int | None = None
    io_read_bytes_per_s: int | None = None
    """From block devices, all processes together."""
    io_write_bytes_per_s: int | None = None
    open_files: int | None = None
    cpu_time_ns: int | None = None
    wall_time_ns: int | None = None
    address_space_bytes: int | None = None
    core_bytes: int | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a run uses now, or used until its end. `None`: nobody measured it."""

    cpu_ns: int | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    files: int | None = None
    connections: int | None = None


class MountSpec(msgspec.Struct, frozen=True, gc=False):
    """A path of the host that a contained process sees at the same place."""

    path: str
    read_only: bool = True
    sockets: bool = False
    """Sockets, FIFOs and devices below it are left as they are; else an empty file hides each."""


class EnvSpec(msgspec.Struct, frozen=True):
    """Which variables a process gets, by name; values are looked up at the launch only."""

    pass_all: bool = True
    """Everything but `withheld`, as without containment; else only what is named."""
    names: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    """Pass too, and are never shown."""
    withheld: tuple[str, ...] = ()
    """Tokens of callgate's own callers."""


class RestartSpec(msgspec.Struct, frozen=True, gc=False):
    """When a run that ended is followed by another; the wait doubles up to the longest."""

    on: Literal["failure", "always", "never"] = "never"
    max: int = 5
    """In a row: a run that lived longer than the longest wait starts the count again."""
    first_ns: int = 1_000_000_000
    longest_ns: int = 30_000_000_000


class LaunchSpec(msgspec.Struct, frozen=True):
    """All that a launcher needs to know of an agent; made from a policy or by hand."""

    agent: str
    command: tuple[str, ...]
    launcher: str = BUILT_IN
    level: Level = "privileged"
    contained: bool = False
    """Whether the policy has a `containment` for it, of whatever level."""
    allow_degraded: bool = False
    limits: ResourceLimits = ResourceLimits()
    shadow: ResourceLimits = ResourceLimits()
    """Only watched: reaching one is a warning, never an end."""
    assumed: tuple[str, ...] = ()
    """Limits that come with containment and that nobody wrote: missing ones do not refuse."""
    requested: ResourceLimits = ResourceLimits()
    """What the agent's author expects it to use; for messages only."""
    declared: tuple[str, ...] = ()
    """Limits whose figure is that of the agent's manifest."""
    mounts: tuple[MountSpec, ...] = ()
    programs: tuple[str, ...] | None = None
    """What it may execute beside its own command: names sought on its PATH, or paths. None: all."""
    cgroup_parent: str | None = None
    """A cgroup directory of the host in which runs get theirs; None: the launcher looks for one."""
    cwd: str | None = None
    """`None` is the launcher's own, or the workspace at levels with a root of their own."""
    env: EnvSpec = EnvSpec()
    protocol: Literal["mcp", "runtime"] = "mcp"
    terminal: bool = False
    """A PTY in the place of three pipes."""
    restart: RestartSpec = RestartSpec()
    monitor_interval_ns: int = 1_000_000_000
    kill_grace_ns: int = 5_000_000_000
    """From SIGTERM to SIGKILL."""
