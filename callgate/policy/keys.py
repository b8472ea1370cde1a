"""The models of `schema` read as one table: which keys there are, and what holds unwritten.

Pure. `KEYS` has each key that a lane or an agent's process can have, in the order in which
`explain` shows them; `PROFILES` are the values of their `Key`s. `guarded` has the values of
OpenSentience's defaults, and a queue, because every model makes some calls at once; in
`interactive` nothing that a well-behaved client does is refused, however long it takes, and
agents may start cold from a package index. `purpose` says which of them a file starts from.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec
from pydantic import BaseModel

from callgate.policy.fields import Joins, Key, Limit
from callgate.policy.schema import AgentPolicy, CallerPolicy, Defaults, PolicyFile, ToolPolicy
from callgate.policy.units import Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic.fields import FieldInfo


class Entry(msgspec.Struct, frozen=True):
    """One key: where it stands, what it is, and the `Key` that was written beside it."""

    section: str
    """`containment` of `containment.memory`, else empty."""
    field: str
    """The model's attribute."""
    name: str
    """As in the file."""
    key: Key
    joins: Joins
    member: str
    """Of the compiled spec."""
    unit: Unit | None = None
    is_limit: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Return the keys that lead to this one from its agent, caller or tool."""
        return (self.section, self.name) if self.section else (self.name,)

    @property
    def dotted(self) -> str:
        """Return the key as `explain` shows it."""
        return ".".join(self.path)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that stands under an annotation, also in a list or a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, get_args(annotation))), None)


def key_of(field: FieldInfo) -> Key:
    """Return the row that stands beside a field."""
    return next(each for each in field.metadata if isinstance(each, Key))


def unit_of(field: FieldInfo) -> Unit | None:
    """Return the unit of a field's values; None for words, texts and sections."""
    model = model_in(field.annotation)
    if model is not None and issubclass(model, Limit):
        return model.unit
    marks = [*field.metadata]
    for kind in (field.annotation, *get_args(field.annotation)):
        marks += getattr(kind, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Unit)), None)


def entries(model: type[BaseModel], section: str = "") -> Iterator[Entry]:
    """Yield the keys of a model that somebody enforces, each section's where it stands."""
    for field, info in model.model_fields.items():
        key, inner, name = key_of(info), model_in(info.annotation), info.alias or field
        if key.by is not None:
            unit = unit_of(info)
            is_limit = inner is not None and issubclass(inner, Limit)
            suffix = "" if unit is None or (is_limit and key.by == "router") else unit.suffix
            member = key.member or name.removesuffix(suffix) + suffix
            joins = key.joins or ("nearest" if key.by == "router" else "capped")
            yield Entry(section, field, name, key, joins, member, unit, is_limit)
        elif inner is not None and get_origin(info.annotation) is not dict:
            yield from entries(inner, name)


def _table() -> dict[str, Entry]:
    models = (ToolPolicy, AgentPolicy, CallerPolicy)
    found = {entry.dotted: entry for model in models for entry in entries(model)}
    order = sorted(found, key=lambda name: "." in name)
    for name in [name for name in order if found[name].key.after is not None]:
        order.remove(name)
        above = found[name].key.after
        order.insert(order.index(above) + 1 if above else 0, name)
    return {name: found[name] for name in order}


KEYS = MappingProxyType(_table())


def _layer(value_of: Callable[[Key], Any]) -> Defaults:
    """Return a layer of values, through the model of the whole file, which is built anyway."""
    tree: dict[str, Any] = {}
    for entry in KEYS.values():
        value = value_of(entry.key)
        if value is not None:
            part = tree.setdefault(entry.section, {}) if entry.section else tree
            part[entry.name] = value
    return PolicyFile.model_validate({"defaults": tree}).defaults


PROFILES = MappingProxyType(
    {
        "guarded": _layer(lambda key: key.guarded),
        "interactive": _layer(
            lambda key: key.guarded if key.interactive is None else key.interactive
        ),
    }
)
CONTAINED = _layer(lambda key: key.contained)
"""The seeds' limits, for an agent that asks for containment and leaves these out."""
DECLARED = _layer(lambda key: key.declared)
"""The seeds' limits of agents, for one whose manifest leaves these out."""
