"""What a person is told when a limit has ended a run.

Pure. The facts first: which agent, which limit, how much was used of how much. Then what it
may mean and what can be done, for that kind of limit. Numbers and our own words only;
nothing that the agent printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from callgate.launcher.protocol import Stopped
    from callgate.model import LaunchSpec

_KIB: Final = 1024
_SECOND_NS: Final = 1_000_000_000
_MILLISECOND_NS: Final = 1_000_000


class _Kind(NamedTuple):
    noun: str
    key: str
    """Under `containment`."""
    unit: str
    meaning: tuple[str, str, str]
    """A fault, a limit that is too low, an unusual input."""


_KINDS: Final = {
    "memory": _Kind(
        "memory",
        "memory",
        "bytes",
        (
            "it keeps memory that it no longer needs (a leak)",
            "its work needs more than it was given",
            "the input was unusually large",
        ),
    ),
    "cpu_time": _Kind(
        "processor time",
        "cpu_time",
        "ns",
        (
            "it is caught in a loop",
            "its work takes longer than it was given",
            "the input was unusually hard",
        ),
    ),
    "wall_time": _Kind(
        "time",
        "wall_time",
        "ns",
        (
            "it waits for something that does not come",
            "its work takes longer than it was given",
            "what it talks to was unusually slow",
        ),
    ),
    "pids": _Kind(
        "process",
        "pids",
        "processes and threads",
        (
            "it starts processes and does not wait for their end",
            "its work needs more of them (threads count) than it was given",
            "the input was split into unusually many parts",
        ),
    ),
    "disk": _Kind(
        "disk",
        "disk",
        "bytes",
        (
            "it does not remove its temporary files, or its log grows without end",
            "its work needs more room than it was given",
            "the input or the result was unusually large",
        ),
    ),
    "files": _Kind(
        "file count",
        "files",
        "files",
        (
            "it does not remove its temporary files",
            "its work needs more files than it was given",
            "the input has unusually many files",
        ),
    ),
    "connections": _Kind(
        "connection",
        "connections",
        "connections",
        (
            "it does not close connections that it no longer needs",
            "its work needs more at once than it was given",
            "it was asked for unusually much at once",
        ),
    ),
}


def explain(
    agent: str, stopped: Stopped, *, options: bool = False, spec: LaunchSpec | None = None
) -> str | None:
    """Return the message for a run that a limit ended; None for every other end.

    `options`: the limit is an option of a command line rather than a key of a policy. `spec` says
    what the agent's manifest requested, and whether the limit is the manifest's.
    """
    limit = stopped.limit
    kind = None if limit is None else _KINDS.get(limit.type)
    if limit is None or kind is None:
        return None
    used = "not measured" if limit.usage is None else amount(limit.usage, kind.unit)
    fault, too_low, unusual = kind.meaning
    lines = [
        f"Agent {agent} was ended: it went over its {kind.noun} limit.",
        "",
        *_requested(kind, spec),
        f"  {'peak' if stopped.reason == 'oom' else 'used'}   {used}",
        f"  limit  {amount(limit.limit, kind.unit)}",
        "",
        "What it may mean:",
        f"  1. {fault}",
        f"  2. {too_low}",
        f"  3. {unusual}",
        "",
        "What you can do:",
        f"  - look at how it ended before: callgate runs --agent {agent}",
        "  - look at what it printed last, and tell its author",
        f"  - if you trust it, raise {_option(kind) if options else _key(kind, spec)}",
    ]
    if stopped.state == "paused":
        lines += ["", "It is paused: its workspace is kept, and it can be resumed."]
    return "\n".join(lines)


def _requested(kind: _Kind, spec: LaunchSpec | None) -> list[str]:
    value = None if spec is None else getattr(spec.requested, f"{kind.key}_{kind.unit}", None)
    return [] if value is None else [f"  requested {amount(value, kind.unit)}"]


def _key(kind: _Kind, spec: LaunchSpec | None) -> str:
    if spec is not None and kind.key in spec.declared:
        return f"the limit in its manifest, which set it (and `{kind.key}` in its containment)"
    return f"`{kind.key}` in its containment"


def _option(kind: _Kind) -> str:
    """Of `callgate exec`, where a time needs no kind: it is the only one that people mean."""
    name = "timeout" if kind.key == "wall_time" else kind.key.replace("_", "-")
    return f"`--{name}`"


def limit_text(kind: str, limit: int | str) -> str:
    """Return a limit as one word and a number, with its unit if that is more than the word says."""
    unit = _KINDS[kind].unit if kind in _KINDS else ""
    return f"{kind} {amount(limit, unit) if unit in ('bytes', 'ns') else limit}"


def amount(value: int | str, unit: str) -> str:
    """Return a number as a person would say it."""
    if isinstance(value, str):
        return value
    if unit == "bytes":
        return size(value)
    if unit == "ns":
        return duration(value)
    return f"{value:,} {unit}"


def size(count: int) -> str:
    """Return bytes in the largest unit that leaves a whole part."""
    number = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if number < _KIB:
            return f"{number:.4g} {unit}"
        number /= _KIB
    return f"{number:.4g} GiB"


def duration(ns: int) -> str:
    """Return a time in milliseconds or seconds."""
    if ns < _SECOND_NS:
        return f"{ns / _MILLISECOND_NS:.3g} ms"
    return f"{ns / _SECOND_NS:.4g} s"
