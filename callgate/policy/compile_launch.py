"""A resolution to the spec that a launcher works with.

Pure. A limit in `shadow` is only watched; what is `unlimited` or `off` is left out. Where
the mode is not `enforce` the level is not applied either: a policy that is only tried out
must not change what an agent sees. The launcher is no limit: whoever names one has it in every
mode, since without it a command might run with more rights than anybody meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from callgate.model import BUILT_IN, EnvSpec, LaunchSpec, MountSpec, ResourceLimits, RestartSpec
from callgate.policy.keys import KEYS
from callgate.policy.problems import Path, dotted
from callgate.policy.resolve import LAUNCHER_DEFAULT, MANIFEST_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import PurePath

    from callgate.policy.document import Document
    from callgate.policy.manifest import Manifest
    from callgate.policy.resolve import Resolution


class StatedMount(msgspec.Struct, frozen=True):
    """A mount of an agent, and where it is written."""

    path: str
    writable: bool
    key: str
    line: int
    column: int


def stated_mounts(
    agents: Iterable[Resolution], document: Document, base: PurePath
) -> list[StatedMount]:
    """Return the mounts of all agents, each written one once; writable if it is so for one."""
    found: dict[Path, StatedMount] = {}
    for resolution in agents:
        stated = resolution.value("containment.mounts")
        level = resolution.value("containment.level")
        if stated is None:
            continue
        for index, mount in enumerate(stated.value):
            path = (*stated.layer.path, *stated.entry.path, index, "path")
            writable = not mount.read_only and (level is None or level.value != "strict")
            if writable or path not in found:
                at = (dotted(path), *document.position(path))
                found[path] = StatedMount(str(base / mount.path), writable, *at)
    return list(found.values())


def launch_spec(
    resolution: Resolution,
    agent: str,
    command: Sequence[str],
    *,
    base: PurePath,
    manifest: Manifest | None = None,
    tokens: Sequence[str] = (),
) -> LaunchSpec:
    """Return what the policy says of an agent's process.

    `base` is the directory that mounts are relative to; `tokens` are the variables that hold
    callers' tokens, which no agent gets unless it is named for it.
    """

    def value(name: str, otherwise: Any = None) -> Any:
        found = resolution.value(name)
        return otherwise if found is None else found.value

    def enforced(name: str) -> Any:
        found = resolution.value(name)
        return None if found is None or found.mode != "enforce" else found.value

    limits, shadow, assumed = _limits(resolution)
    declared = ResourceLimits() if manifest is None else manifest.requested
    level, programs = enforced("containment.level"), enforced("containment.exec")
    limited = any(each is not None for each in limits.values())
    contained = level is not None or programs is not None or limited
    passed = value("env.pass")
    spec = LaunchSpec(
        agent=agent,
        command=tuple(command),
        launcher=value("launcher", BUILT_IN),
        level=level or "privileged",
        contained=contained,
        allow_degraded=bool(value("containment.allow_degraded")),
        limits=ResourceLimits(**limits),
        shadow=ResourceLimits(**shadow),
        assumed=assumed,
        requested=declared,
        declared=_declared(resolution),
        mounts=tuple(
            MountSpec(str(base / each.path), each.read_only, each.sockets)
            for each in enforced("containment.mounts") or ()
        ),
        programs=None if programs is None else tuple(programs),
        cgroup_parent=value("containment.cgroup_parent"),
        env=EnvSpec(
            pass_all=passed is None and not contained,
            names=tuple(passed or ()),
            secret=tuple(value("env.secret", ())),
            withheld=tuple(tokens),
        ),
        protocol=value("protocol", "mcp"),
        restart=_restart(value("restart.on"), value("restart.max"), value("restart.backoff")),
    )
    return msgspec.structs.replace(spec, **_times(resolution))


def _times(resolution: Resolution) -> dict[str, int]:
    """Return the times that were written; the spec has the others."""
    found = {
        "monitor_interval_ns": resolution.value("containment.monitor_interval"),
        "kill_grace_ns": resolution.value("containment.kill_grace"),
    }
    return {name: each.value for name, each in found.items() if each is not None}


def _limits(resolution: Resolution) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Return those that are enforced, those in shadow, and the names of those nobody wrote."""
    enforced: dict[str, Any] = {}
    shadow: dict[str, Any] = {}
    assumed: list[str] = []
    for name, entry in KEYS.items():
        if entry.section != "containment" or not entry.is_limit:
            continue
        found = resolution.value(name)
        if found is not None and found.active:
            (enforced if found.mode == "enforce" else shadow)[entry.member] = found.value
            if found.layer.label in (LAUNCHER_DEFAULT, MANIFEST_DEFAULT):
                assumed.append(entry.name)
    return enforced, shadow, tuple(assumed)


def _declared(resolution: Resolution) -> tuple[str, ...]:
    """Return the limits whose figure is the manifest's: to raise the policy's changes nothing."""
    found = ((entry, resolution.value(name)) for name, entry in KEYS.items() if entry.section)
    return tuple(
        entry.name
        for entry, each in found
        if each is not None and entry.is_limit and each.layer is resolution.manifest
    )


def _restart(on: Any, most: Any, backoff: Any) -> RestartSpec:
    usual = RestartSpec()
    first, longest = backoff or (usual.first_ns, usual.longest_ns)
    return RestartSpec(on or usual.on, usual.max if most is None else most, first, longest)
