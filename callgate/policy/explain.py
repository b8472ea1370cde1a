"""Every effective limit of (caller, agent, tool) with the line that it came from.

Pure. What nothing enforces where the policy is used is shown as `absent`: a limit that is
written and not enforced must never look like one that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from callgate.policy import units
from callgate.policy.document import show
from callgate.policy.fields import Mode
from callgate.policy.keys import KEYS
from callgate.policy.manifest import DEFAULT_NETWORK_BPS, DEFAULT_REQUESTED
from callgate.policy.resolve import MANIFEST_DEFAULT

if TYPE_CHECKING:
    from callgate.model import ResourceLimits
    from callgate.policy.document import Document
    from callgate.policy.keys import Entry
    from callgate.policy.manifest import Manifest
    from callgate.policy.resolve import EffectiveValue, Layer, Resolution

Enforced = Literal["enforced", "shadow", "off", "absent"]

NOT_IN_PROCESS = "by `callgate run`, not in process"
BY_LAUNCHER = "by the launcher (what this host can: --plan)"


class Row(msgspec.Struct, frozen=True):
    """One effective statement."""

    key: str
    value: str
    scope: str
    source: str
    """`callgate.yaml:12`, `profile guarded` or `manifest agent.json`."""
    mode: Mode
    enforced: Enforced
    note: str = ""


class Explainer:
    """Rows of one resolution; `document` and `name` say where in which file."""

    def __init__(
        self,
        resolution: Resolution,
        document: Document,
        name: str,
        caller: str,
        *,
        gated: bool = False,
    ) -> None:
        """`gated`: it is for `callgate run` or a daemon, which have a gate and a launcher."""
        self._gated = gated
        self._resolution = resolution
        self._document = document
        self._name = name
        self._caller = caller

    def rows(self, *, tool: bool) -> list[Row]:
        """Return what is enforced in this process, outermost scope first."""
        rows: list[Row] = []
        for name, entry in KEYS.items():
            found, tried = self._resolution.values(name), self._resolution.tried(name)
            if entry.joins == "access":
                rows += [self._access(found)] if tool else []
            elif name == "timeout":
                rows += [self._timeout(each) for each in found]
            else:
                rows += [self._row(each) for each in found if _is_here(each)]
            rows += [] if tried is None or not _is_here(tried) else [self._row(tried)]
        return rows

    def absent(self, manifest: Manifest | None) -> list[Row]:
        """Return what is not enforced by the router: by a gate, a launcher, or nothing."""
        rows: list[Row] = []
        for entry in sorted(KEYS.values(), key=_absent_order):
            if entry.joins != "access":
                found = self._resolution.values(entry.dotted)
                rows += [self._absent(each) for each in found if not _is_here(each)]
        if manifest is None:
            return rows
        for entry, value in requests_of(manifest.requested):
            rows = [_requesting(row, entry, value) for row in rows]
        return [*rows, self._network(manifest)]

    def _network(self, manifest: Manifest) -> Row:
        """Return the bandwidth that a manifest states for its agent's network."""
        stated = manifest.network_bps
        source = f"manifest {manifest.name}" if stated else MANIFEST_DEFAULT
        text = units.bandwidth_text(stated or DEFAULT_NETWORK_BPS)
        scope = self._resolution.agent_scope.describe(self._caller)
        note = "by nothing yet: `bandwidth` of an agent paces its messages, not its network"
        return Row("network.bandwidth", text, scope, source, "enforce", "absent", note)

    def _access(self, found: list[EffectiveValue]) -> Row:
        if not found:
            scope = self._resolution.tool_scope.describe(self._caller)
            note = "no entry of `tools` matches"
            return Row("access", "allow", scope, "no entry", "enforce", "enforced", note)
        (each,) = found
        row = msgspec.structs.replace(
            self._row(each), key="access", source=self._origin(each.layer)
        )
        return msgspec.structs.replace(row, value="deny" if each.value else "allow")

    def _timeout(self, each: EffectiveValue) -> Row:
        row, ceiling = self._row(each), self._resolution.value("max_timeout")
        if ceiling is None or not ceiling.active or ceiling.mode != "enforce":
            return row
        if each.active and ceiling.value >= each.value:
            return row
        note = f"{row.value} lowered by max_timeout ({self._origin(ceiling.layer, ceiling.entry)})"
        value = value_text(ceiling)
        return msgspec.structs.replace(row, value=value, note=note, enforced="enforced")

    def _row(self, each: EffectiveValue) -> Row:
        notes = [each.note] if each.note else []
        if each.lowered is not None:
            origin = self._origin(each.lowered.layer, each.entry)
            notes.insert(0, f"lowered from {value_text(each.lowered)} ({origin})")
        declared = self._resolution.declared(each)
        if declared is not None and declared.layer is not each.layer:
            notes.append(f"{declared.layer.label} states {value_text(declared)}")
        enforced: Enforced = "enforced" if each.mode == "enforce" else "shadow"
        return Row(
            key=each.entry.dotted,
            value=value_text(each),
            scope=each.scope.describe(self._caller),
            source=self._origin(each.layer, each.entry),
            mode=each.mode,
            enforced=enforced if each.active else "off",
            note="; ".join(notes),
        )

    def _absent(self, each: EffectiveValue) -> Row:
        row, by = self._row(each), each.entry.key.by
        if by != "nothing" and self._gated:
            if by == "launcher":
                row = msgspec.structs.replace(row, note=f"{BY_LAUNCHER}; {row.note}".rstrip("; "))
            blind = by == "gate" and each.entry.is_limit and row.enforced == "shadow"
            return msgspec.structs.replace(row, enforced="off") if blind else row
        note = "by nothing yet" if by == "nothing" else NOT_IN_PROCESS
        note = f"{note}; {row.note}" if row.note else note
        return msgspec.structs.replace(row, enforced="absent", note=note)

    def _origin(self, layer: Layer, entry: Entry | None = None) -> str:
        if layer.label:
            return layer.label
        path = layer.path if entry is None else (*layer.path, *entry.path)
        line, _ = self._document.position(path, key=True)
        return f"{self._name}:{line}"


def requests_of(requested: ResourceLimits) -> list[tuple[Entry, str]]:
    """Return what a manifest requests, or its format's default: the key and a text."""
    found = []
    for entry in KEYS.values():
        value = getattr(requested, entry.member, None)
        default = getattr(DEFAULT_REQUESTED, entry.member, None)
        if entry.section and entry.unit is not None and (value or default) is not None:
            text = entry.unit.text(value or default)
            found.append((entry, text if value else f"{text} by default"))
    return found


def _requesting(row: Row, entry: Entry, value: str) -> Row:
    if row.key != entry.dotted:
        return row
    return msgspec.structs.replace(row, note=f"{row.note}; requested {value}".removeprefix("; "))


def value_text(each: EffectiveValue) -> str:
    """Return a value in the units of the file."""
    if each.value is None:
        return units.UNLIMITED
    unit, rate = each.entry.unit, each.rate
    text = show(each.value).strip('"') if unit is None else unit.text(each.value)
    if rate is None:
        return text
    if rate.burst is not None:
        text += f", burst {rate.burst}"
    if rate.on_limit == "wait":
        text += ", wait"
    return f"{text}, per caller" if each.scope.per_caller else text


def _is_here(each: EffectiveValue) -> bool:
    """Return True if this process enforces it, not `callgate run` alone."""
    key = each.entry.key
    return key.by == "router" and key.only in (None, each.value)


def _absent_order(entry: Entry) -> tuple[bool, bool, bool]:
    """Sections last, a caller's keys before them; a router's, if absent, after other agents'."""
    return bool(entry.section), entry.joins == "caller", entry.key.by == "router"
