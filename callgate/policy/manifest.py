"""What an agent says of itself: `opensentience.agent.json`, or a Claude `settings.json`.

Pure, and reading one executes nothing: it is data from the agent's author. It replaces the
profile's values and is capped by what the policy states, for that agent or in `defaults`, so an
author can ask for less than the operator gives, never for more. What it leaves out of its
resources has the defaults that its format has. What it requests, and its bandwidth on the
network, is only shown. Keys that are not ours are skipped: the files belong to other programs,
and a settings.json may hold secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from callgate.model import ResourceLimits  # msgspec reads it
from callgate.policy import units
from callgate.policy.contained import Containment
from callgate.policy.document import show
from callgate.policy.schema import Defaults
from callgate.policy.units import UnitError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_MANIFEST_BYTES = 256 * 1024
"""A hundred times the largest example in its specification."""

_MAX_COUNT = 100_000
"""Percent, megabytes, calls or processes: in all of them more than any host has."""


class ManifestError(ValueError):
    """Tells one thing that is wrong: which key, what was found, what was expected."""

    def __init__(self, key: str, found: str, expected: str) -> None:
        super().__init__(f"{key}: found {found}, expected {expected}")
        self.key = key
        self.found = found
        self.expected = expected


class Manifest(msgspec.Struct, frozen=True):
    """A manifest in the policy's own terms."""

    name: str
    limits: Defaults
    """Only what the manifest states."""
    requested: ResourceLimits = ResourceLimits()
    """What its author expects it to use; only shown."""
    network_bps: int | None = None
    """Bits a second on the network, which nothing enforces yet."""


DEFAULT_REQUESTED = ResourceLimits(cpu_millicores=50, memory_bytes=64 * 1024 * 1024)
DEFAULT_NETWORK_BPS = 5_000_000
"""The format's own, where a manifest says nothing; only shown."""


def read_manifest(data: bytes, name: str) -> tuple[Manifest | None, list[ManifestError]]:
    """Return the limits in a manifest's text, or everything that is wrong with it."""
    if len(data) > MAX_MANIFEST_BYTES:
        expected = f"a file of at most {MAX_MANIFEST_BYTES} bytes"
        return None, [ManifestError("", f"more than {MAX_MANIFEST_BYTES} bytes", expected)]
    try:
        tree = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        found = f"a syntax error in line {error.lineno}, column {error.colno}"
        return None, [ManifestError("", found, "JSON")]
    if not isinstance(tree, dict):
        return None, [ManifestError("", show(tree), "a mapping")]
    reader = _Reader(tree)
    manifest = reader.read(name)
    return (None, reader.errors) if reader.errors else (manifest, [])


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_COUNT:
        return value
    raise UnitError(f"a whole number from 1 to {_MAX_COUNT}")


_KEYS: tuple[tuple[str, Callable[[object], Any], dict[str, Callable[[Any], Any]]], ...] = (
    (
        "execution_limits.max_tool_call_duration",
        units.duration_ns,
        {"timeout": units.duration_text, "max_timeout": units.duration_text},
    ),
    ("execution_limits.max_concurrent_calls", _count, {"concurrency": int}),
    ("execution_limits.rate_limit", units.rate, {"rate": units.RATE.text}),
    ("resources.network.max_connections", _count, {"containment.connections": int}),
    ("resources.cpu.limit", units.millicores, {"containment.cpu": "{}m".format}),
    ("resources.memory.limit", units.size_bytes, {"containment.memory": int}),
    ("resources.disk.limit", units.size_bytes, {"containment.disk": int}),
    # Claude's settings.json
    ("resources.memoryMb", _count, {"containment.memory": "{}MiB".format}),
    ("resources.diskMb", _count, {"containment.disk": "{}MiB".format}),
    ("resources.cpuPercent", _count, {"containment.cpu": lambda percent: f"{percent}0m"}),
    ("resources.maxProcesses", _count, {"containment.pids": int}),
)
"""A manifest's key, how it is read, and the keys of a policy that it states, spelled as there."""


_REQUESTS: dict[str, tuple[str, Callable[[object], int]]] = {
    "cpu_millicores": ("resources.cpu.request", units.millicores),
    "memory_bytes": ("resources.memory.request", units.size_bytes),
}
"""Members of `ResourceLimits`, where they stand in a manifest, and how they are read."""


class _Reader:
    def __init__(self, tree: dict[str, Any]) -> None:
        self.errors: list[ManifestError] = []
        self._sections: dict[str, dict[str, Any]] = {"": tree}

    def read(self, name: str) -> Manifest:
        limits: dict[str, Any] = {}
        contained: dict[str, Any] = {}
        for path, parse, stated in _KEYS:
            value = self._take(path, parse)
            for key, spelled in stated.items() if value is not None else ():
                section, _, word = key.rpartition(".")
                (contained if section else limits)[word] = spelled(value)
        if contained and not self.errors:
            limits["containment"] = Containment.model_validate(contained)
        asked = {name: self._take(*place) for name, place in _REQUESTS.items()}
        network = self._take("resources.network.bandwidth_limit", units.bandwidth_bps)
        return Manifest(name, Defaults.model_validate(limits), ResourceLimits(**asked), network)

    def _section(self, path: str) -> dict[str, Any]:
        """Return what stands at a path, empty if nothing does; not a mapping is one error."""
        if path not in self._sections:
            above, _, key = path.rpartition(".")
            value = self._section(above).get(key, {})
            if not isinstance(value, dict):
                self.errors.append(ManifestError(key, show(value), "a mapping"))
                value = {}
            self._sections[path] = value
        return self._sections[path]

    def _take(self, path: str, parse: Callable[[object], Any]) -> Any:
        above, _, key = path.rpartition(".")
        section = self._section(above)
        if key not in section:
            return None
        shown = path.removeprefix("resources.") if key in ("limit", "request") else key
        try:
            value = parse(section[key])
        except UnitError as error:
            self.errors.append(ManifestError(shown, show(section[key]), error.expected))
            return None
        if value == 0:
            self.errors.append(ManifestError(shown, "zero", "more than zero"))
        return value or None
