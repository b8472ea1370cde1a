"""Every effective limit of (caller, agent, tool) with the line that it came from.

Pure. What nothing in this process enforces is shown as `absent`: a limit that is written
and not enforced must never look like one that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from callgate.policy import units
from callgate.policy.document import Document, show
from callgate.policy.fields import Mode, Strict
from callgate.policy.profiles import CONTAINED, NOTHING
from callgate.policy.resolve import Choice, Layer, Resolution
from callgate.policy.schema import Containment, Env, Requests, Restart

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.policy.manifest import Manifest

Enforced = Literal["enforced", "shadow", "off", "absent"]

NOT_IN_PROCESS = "by `callgate run`, not in process"
_LAUNCHER = "launcher default"

_ABSENT = ("protocol", "max_frame_bytes", "bandwidth", "handshake", "denials", "tasks", "launcher")
_SECTIONS: dict[str, type[Strict]] = {
    "requests": Requests,
    "env": Env,
    "containment": Containment,
    "restart": Restart,
}


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

    def __init__(self, resolution: Resolution, document: Document, name: str, caller: str) -> None:
        self._resolution = resolution
        self._document = document
        self._name = name
        self._caller = caller

    def rows(self, *, tool: bool) -> list[Row]:
        """What is enforced in this process, outermost scope first."""
        resolution = self._resolution
        rows = [self._access(resolution.access())] if tool else []
        ceiling = resolution.lowest("max_timeout")
        rows += self._timeout(resolution.plain("timeout"), ceiling)
        single = [ceiling, *resolution.rates(), *resolution.slots(), resolution.plain("queue")]
        single += [resolution.quota()]
        single += [resolution.lowest(key) for key in ("max_input_bytes", "max_output_bytes")]
        single += [resolution.plain(key) for key in ("isolate", "cancel_grace")]
        ignored = resolution.plain("on_ignored_cancel")
        if ignored is not None and ignored.value == "release":
            single.append(ignored)
        return rows + [self._row(choice) for choice in single if choice is not None]

    def absent(self, manifest: Manifest | None) -> list[Row]:
        """What is written, checked and enforced by nothing here."""
        resolution = self._resolution
        rows = [self._absent(key, resolution.part("", key)) for key in ("command", *_ABSENT)]
        ignored = resolution.plain("on_ignored_cancel")
        if ignored is not None and ignored.value != "release":  # there is no process to end
            rows.append(self._absent("on_ignored_cancel", ignored))
        rows.append(self._absent("token", resolution.token()))
        contained = resolution.part("", "containment") is not None
        for section, model in _SECTIONS.items():
            extra = CONTAINED if contained else NOTHING
            default = Layer("agent", extra, label=_LAUNCHER)
            for key, field in model.model_fields.items():
                name = f"{section}.{field.alias or key}"
                rows.append(self._absent(name, resolution.part(section, key, default)))
        if manifest is not None and manifest.connections is not None:
            scope = resolution.agent_scope.describe(self._caller)
            source = f"manifest {manifest.name}"
            value = str(manifest.connections)
            rows.append(
                Row("connections", value, scope, source, "enforce", "absent", NOT_IN_PROCESS)
            )
        return [row for row in rows if row is not None]

    def _access(self, choice: Choice | None) -> Row:
        if choice is None:
            scope = self._resolution.tool_scope.describe(self._caller)
            note = "no entry of `tools` matches"
            return Row("access", "allow", scope, "no entry", "enforce", "enforced", note)
        source = self._origin(choice.layer, None)
        scope = choice.scope.describe(self._caller)
        value = "deny" if choice.value else "allow"
        return Row("access", value, scope, source, choice.mode, _enforced(choice))

    def _timeout(self, choice: Choice | None, ceiling: Choice | None) -> list[Row]:
        if choice is None:
            return []
        row = self._row(choice)
        lower = (
            ceiling is not None
            and ceiling.active
            and ceiling.mode == "enforce"
            and (not choice.active or ceiling.value < choice.value)
        )
        if ceiling is None or not lower:
            return [row]
        note = f"{row.value} lowered by max_timeout ({self._origin(ceiling.layer, 'max_timeout')})"
        value = units.duration_text(ceiling.value)
        return [msgspec.structs.replace(row, value=value, note=note, enforced="enforced")]

    def _row(self, choice: Choice) -> Row:
        notes = [choice.note] if choice.note else []
        if choice.lowered is not None:
            above = choice.lowered
            origin = self._origin(above.layer, above.key)
            notes.insert(0, f"lowered from {value_text(above)} ({origin})")
        return Row(
            key=choice.key,
            value=value_text(choice),
            scope=choice.scope.describe(self._caller),
            source=self._origin(choice.layer, choice.key),
            mode=choice.mode,
            enforced=_enforced(choice),
            note="; ".join(notes),
        )

    def _absent(self, name: str, choice: Choice | None) -> Row | None:
        if choice is None:
            return None
        section, _, key = name.rpartition(".")
        value = "set" if name == "command" else value_text(choice)
        source = self._origin(choice.layer, key, section)
        scope = choice.scope.describe(self._caller)
        return Row(name, value, scope, source, choice.mode, "absent", NOT_IN_PROCESS)

    def _origin(self, layer: Layer, key: str | None, section: str = "") -> str:
        if layer.label:
            return layer.label
        path = (*layer.path, *(part for part in (section, key) if part))
        line, _ = self._document.position(path, key=True)
        return f"{self._name}:{line}"


def value_text(choice: Choice) -> str:
    """A value in the units of the file."""
    if choice.value is None:
        return units.UNLIMITED
    if choice.key in ("rate", "quota"):
        return _rate_text(choice)
    return _TEXTS.get(choice.key, _word)(choice.value)


def _word(value: object) -> str:
    return show(value).strip('"')


def _names(value: list[str]) -> str:
    return ", ".join(value)


def _range(value: tuple[int, int]) -> str:
    return "..".join(units.duration_text(end) for end in value)


_TEXTS: dict[str, Callable[[Any], str]] = {
    "timeout": units.duration_text,
    "max_timeout": units.duration_text,
    "cancel_grace": units.duration_text,
    "handshake": units.duration_text,
    "cpu_time": units.duration_text,
    "wall_time": units.duration_text,
    "monitor_interval": units.duration_text,
    "max_input_bytes": units.size_text,
    "max_output_bytes": units.size_text,
    "max_frame_bytes": units.size_text,
    "memory": units.size_text,
    "disk": units.size_text,
    "address_space": units.size_text,
    "core_size": units.size_text,
    "bandwidth": units.bandwidth_text,
    "token": "env:{}".format,
    "cpu": "{}m".format,
    "backoff": _range,
    "pass_": _names,
    "secret": _names,
    "mounts": lambda mounts: str(len(mounts)),
}


def _rate_text(choice: Choice) -> str:
    text = units.rate_text(*choice.value)
    rate = choice.rate
    if rate is None:
        return text
    if rate.burst is not None:
        text += f", burst {rate.burst}"
    if rate.on_limit == "wait":
        text += ", wait"
    return f"{text}, per caller" if choice.scope.per_caller else text


def _enforced(choice: Choice) -> Enforced:
    if not choice.active:
        return "off"
    return "enforced" if choice.mode == "enforce" else "shadow"
