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
from callgate.policy.profiles import CONTAINED, NOTHING
from callgate.policy.resolve import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import PurePath

    from callgate.policy.manifest import Manifest
    from callgate.policy.resolve import Choice, Resolution

LAUNCHER_DEFAULT = "launcher default"
_LIMITS = {
    "memory": "memory_bytes",
    "cpu": "cpu_millicores",
    "pids": "pids",
    "disk": "disk_bytes",
    "files": "files",
    "open_files": "open_files",
    "cpu_time": "cpu_time_ns",
    "wall_time": "wall_time_ns",
    "address_space": "address_space_bytes",
    "core_size": "core_bytes",
}
"""A key of `containment` → the member of `ResourceLimits`."""


def launch_spec(
    resolution: Resolution,
    agent: str,
    command: Sequence[str],
    *,
    base: PurePath,
    manifest: Manifest | None = None,
    tokens: Sequence[str] = (),
) -> LaunchSpec:
    """What the policy says of an agent's process.

    `base` is the directory that mounts are relative to; `tokens` are the variables that hold
    callers' tokens, which no agent gets unless it is named for it.
    """
    part = _Part(resolution)
    limits, shadow, assumed = part.limits()
    if manifest is not None and manifest.connections is not None:
        limits["connections"] = manifest.connections
    level = part.enforced("containment", "level")
    mounts = part.enforced("containment", "mounts") or []
    contained = level is not None or any(value is not None for value in limits.values())
    interval = part.value("containment", "monitor_interval")
    protocol = resolution.plain("protocol")
    launcher = resolution.plain("launcher")
    spec = LaunchSpec(
        agent=agent,
        command=tuple(command),
        launcher=BUILT_IN if launcher is None else launcher.value,
        level=level or "privileged",
        contained=contained,
        allow_degraded=bool(part.value("containment", "allow_degraded")),
        limits=ResourceLimits(**limits),
        shadow=ResourceLimits(**shadow),
        assumed=assumed,
        mounts=tuple(MountSpec(str(base / each.path), each.read_only) for each in mounts),
        env=part.env(tokens, contained=contained),
        protocol="mcp" if protocol is None else protocol.value,
        restart=part.restart(),
    )
    if interval is None:
        return spec
    return msgspec.structs.replace(spec, monitor_interval_ns=interval)


class _Part:
    """Keys of the sections that are about a process."""

    def __init__(self, resolution: Resolution) -> None:
        self._resolution = resolution
        contained = resolution.part("", "containment") is not None
        extra = CONTAINED if contained else NOTHING
        self._default = Layer("agent", extra, label=LAUNCHER_DEFAULT)

    def choice(self, section: str, key: str) -> Choice | None:
        return self._resolution.part(section, key, self._default)

    def value(self, section: str, key: str) -> Any:
        choice = self.choice(section, key)
        return None if choice is None else choice.value

    def enforced(self, section: str, key: str) -> Any:
        choice = self.choice(section, key)
        return None if choice is None or choice.mode != "enforce" else choice.value

    def limits(self) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
        """Those that are enforced, those in shadow, and the names of those nobody wrote."""
        enforced: dict[str, Any] = {}
        shadow: dict[str, Any] = {}
        assumed: list[str] = []
        for key, member in _LIMITS.items():
            choice = self.choice("containment", key)
            if choice is None or not choice.active:
                continue
            (enforced if choice.mode == "enforce" else shadow)[member] = choice.value
            if choice.layer is self._default:
                assumed.append(key)
        return enforced, shadow, tuple(assumed)

    def env(self, tokens: Sequence[str], *, contained: bool) -> EnvSpec:
        names = self.value("env", "pass_")
        return EnvSpec(
            pass_all=names is None and not contained,
            names=tuple(names or ()),
            secret=tuple(self.value("env", "secret") or ()),
            withheld=tuple(tokens),
        )

    def restart(self) -> RestartSpec:
        usual = RestartSpec()
        most = self.value("restart", "max")
        backoff = self.value("restart", "backoff")
        first, longest = (usual.first_ns, usual.longest_ns) if backoff is None else backoff
        return RestartSpec(
            on=self.value("restart", "on") or usual.on,
            max=usual.max if most is None else most,
            first_ns=first,
            longest_ns=longest,
        )
