"""What an agent says of itself: `opensentience.agent.json`, or a Claude `settings.json`.

Pure, and reading one executes nothing: it is data from the agent's author. It replaces
defaults and is capped by what the policy states for that agent, so an author can ask for
less than the operator gives, never for more. Keys that are not ours are skipped: the files
belong to other programs, and a settings.json may hold secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from callgate.policy import units
from callgate.policy.document import show
from callgate.policy.schema import Containment, Defaults
from callgate.policy.units import UnitError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_MANIFEST_BYTES = 256 * 1024
"""A hundred times the largest example in its specification."""

_MEGABYTE = 2**20
_MAX_COUNT = 100_000
"""Percent, megabytes, calls or processes: in all of them more than any host has."""


class ManifestError(ValueError):
    """One thing that is wrong: which key, what was found, what was expected."""

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
    connections: int | None = None


def read_manifest(data: bytes, name: str) -> tuple[Manifest | None, list[ManifestError]]:
    """The limits in a manifest's text, or everything that is wrong with it."""
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


class _Reader:
    def __init__(self, tree: dict[str, Any]) -> None:
        self.errors: list[ManifestError] = []
        self._tree = tree

    def read(self, name: str) -> Manifest:
        limits: dict[str, Any] = {}
        execution = self._section(self._tree, "execution_limits")
        duration = self._take(execution, "max_tool_call_duration", units.duration_ns)
        if duration is not None:
            limits["timeout"] = limits["max_timeout"] = units.duration_text(duration)
        calls = self._take(execution, "max_concurrent_calls", _count)
        if calls is not None:
            limits["concurrency"] = calls
        rate = self._take(execution, "rate_limit", units.rate)
        if rate is not None:
            limits["rate"] = units.rate_text(*rate)
        resources = self._section(self._tree, "resources")
        network = self._section(resources, "network")
        bandwidth = self._take(network, "bandwidth_limit", units.bandwidth_bps)
        if bandwidth is not None:
            limits["bandwidth"] = units.bandwidth_text(bandwidth)
        connections = self._take(network, "max_connections", _count)
        contained = self._resources(resources)
        if contained:
            limits["containment"] = Containment.model_validate(contained)
        return Manifest(name, Defaults.model_validate(limits), connections)

    def _resources(self, resources: dict[str, Any]) -> dict[str, Any]:
        """`{cpu: {limit: 500m}}` of OpenSentience, `{cpuPercent: 50}` of Claude settings."""
        found = {
            "cpu": self._nested(resources, "cpu", units.millicores),
            "memory": self._nested(resources, "memory", units.size_bytes),
            "disk": self._nested(resources, "disk", units.size_bytes),
        }
        for key, target in (("memoryMb", "memory"), ("diskMb", "disk")):
            count = self._take(resources, key, _count)
            if count is not None:
                found[target] = count * _MEGABYTE
        percent = self._take(resources, "cpuPercent", _count)
        if percent is not None:
            found["cpu"] = percent * 10
        found["pids"] = self._take(resources, "maxProcesses", _count)
        contained: dict[str, Any] = {k: v for k, v in found.items() if v is not None}
        if "cpu" in contained:
            contained["cpu"] = f"{contained['cpu']}m"
        return contained

    def _section(self, parent: dict[str, Any], key: str) -> dict[str, Any]:
        value = parent.get(key, {})
        if isinstance(value, dict):
            return value
        self.errors.append(ManifestError(key, show(value), "a mapping"))
        return {}

    def _nested(
        self, resources: dict[str, Any], key: str, parse: Callable[[object], int]
    ) -> int | None:
        section = self._section(resources, key)
        number: int | None = self._take(section, "limit", parse, prefix=f"{key}.")
        return number

    def _take(
        self,
        section: dict[str, Any],
        key: str,
        parse: Callable[[object], Any],
        prefix: str = "",
    ) -> Any:
        if key not in section:
            return None
        try:
            value = parse(section[key])
        except UnitError as error:
            found = show(section[key])
            self.errors.append(ManifestError(prefix + key, found, error.expected))
            return None
        if value == 0:
            self.errors.append(ManifestError(prefix + key, "zero", "more than zero"))
            return None
        return value


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_COUNT:
        return value
    raise UnitError(f"a whole number from 1 to {_MAX_COUNT}")
