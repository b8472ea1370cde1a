"""Which statement wins for each key of (caller, agent, tool), and where it was written.

Pure. For each key the most specific of tool, pattern, agent, `defaults`, manifest and profile
wins: an author replaces the profile's values and nothing that an operator wrote. What then only
lowers is a ceiling: `global`, the caller, the manifest. Rates
and concurrency do not replace one another across scopes: all of them apply. Which of these
a key follows is its entry's `joins`.

Lanes and `explain` are both made from the `EffectiveValue`s made here, so that what is shown
cannot differ from what is enforced.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from callgate.model import ANY, Scope
from callgate.policy.fields import Limit, Mode, RateLimit, SplitRateLimit
from callgate.policy.keys import CONTAINED, DECLARED, KEYS, PROFILES, Entry
from callgate.policy.patterns import Entries
from callgate.policy.problems import Path
from callgate.policy.schema import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from callgate.policy.manifest import Manifest
    from callgate.policy.purpose import Purpose
    from callgate.policy.schema import PolicyFile

GLOBAL = Scope("global")
CALLER = Scope("caller")
LAUNCHER_DEFAULT = "launcher default"
MANIFEST_DEFAULT = "manifest default"


class Layer(Struct, frozen=True):
    """One place that can state a key; `label` is for places that are not in the file."""

    level: Literal["tool", "agent", "caller", "global"]
    model: Limits
    path: Path = ()
    label: str = ""

    def get(self, entry: Entry) -> Any:
        """Return what is written for the key here, or None."""
        model: Any = getattr(self.model, entry.section, None) if entry.section else self.model
        stated = model is not None and entry.field in model.model_fields_set
        return getattr(model, entry.field) if stated else None


class EffectiveValue(Struct, frozen=True):
    """The value that holds for a key in one scope; None is `unlimited`."""

    entry: Entry
    scope: Scope
    value: Any
    mode: Mode
    layer: Layer
    rate: RateLimit | None = None
    note: str = ""
    lowered: EffectiveValue | None = None
    """What this one was lower than."""

    @property
    def active(self) -> bool:
        """Return True if it says anything to a call."""
        return self.value is not None and self.mode != "off"


class Resolver:
    """The layers of one policy."""

    def __init__(
        self, file: PolicyFile, manifests: Mapping[str, Manifest], purpose: Purpose
    ) -> None:
        self._file = file
        self.profile = file.profile or purpose.profile
        self.global_layer = Layer("global", file.global_, ("global",))
        self._defaults = Layer("agent", file.defaults, ("defaults",))
        self._profile = _profile_layer(self.profile)
        self.tried = None if purpose.tried is None else _profile_layer(purpose.tried)
        """The layer of the profile that is only tried."""
        self._manifests = {
            agent: Layer("agent", manifest.limits, label=f"manifest {manifest.name}")
            for agent, manifest in manifests.items()
        }
        self._tools: dict[str, Entries[Layer]] = {}
        for name, agent in file.agents.items():
            path = ("agents", name, "tools")
            layers = {key: Layer("tool", tool, (*path, key)) for key, tool in agent.tools.items()}
            self._tools[name] = Entries(layers)

    def tool_key(self, agent: str, tool: str) -> str:
        """Return the entry that speaks for a name."""
        entries = self._tools.get(agent)
        return ANY if entries is None else entries.key(tool)

    def tool_entries(self, agent_key: str) -> tuple[str, ...]:
        """Return the entries of `tools` of an agent, as they are written."""
        agent = self._file.agents.get(agent_key)
        return () if agent is None else tuple(agent.tools)

    def caller_layer(self, caller_key: str) -> Layer | None:
        """Return the caller's entry, or the template's."""
        name = caller_key if caller_key in self._file.callers else ANY
        entry = self._file.callers.get(name)
        return None if entry is None else Layer("caller", entry, ("callers", name))

    def tool_layers(self, agent_key: str, tool_key: str) -> list[Layer]:
        """Return the entries of `tools` that apply, most specific first."""
        entries = self._tools.get(agent_key)
        return [] if entries is None else entries.matching(tool_key)

    def manifest_layer(self, agent_key: str) -> Layer | None:
        """Return what the agent's manifest says, if it has one."""
        return self._manifests.get(agent_key)

    def agent_layers(self, agent_key: str) -> list[Layer]:
        """Return agent, defaults, manifest and profile, as far as there are such."""
        agent = self._file.agents.get(agent_key)
        own = None if agent is None else Layer("agent", agent, ("agents", agent_key))
        layers = (own, self._defaults, self._manifests.get(agent_key), self._profile)
        return [layer for layer in layers if layer is not None]

    def resolve(self, caller_key: str, agent_key: str, tool_key: str | None) -> Resolution:
        """Return all that applies to one lane, or to an agent without a tool."""
        return Resolution(self, caller_key, agent_key, tool_key)

    def mode(self, value: object, *layers: Layer) -> Mode:
        """Return the limit's own mode, else that of the nearest layer, else the policy's."""
        own = value.mode if isinstance(value, Limit) else None
        modes = (own, *(layer.model.mode for layer in layers))
        return next((mode for mode in modes if mode), self._file.mode)


class Resolution:
    """One lane's values, key by key."""

    def __init__(
        self, resolver: Resolver, caller_key: str, agent_key: str, tool_key: str | None
    ) -> None:
        self._resolver = resolver
        self._caller = resolver.caller_layer(caller_key)
        self._tools = [] if tool_key is None else resolver.tool_layers(agent_key, tool_key)
        self._agents = resolver.agent_layers(agent_key)
        self.manifest = resolver.manifest_layer(agent_key)
        contained = any("containment" in layer.model.model_fields_set for layer in self._agents)
        self._parts = [*self._agents]
        if self.manifest is not None:
            self._parts.append(Layer("agent", DECLARED, label=MANIFEST_DEFAULT))
        if contained or self.manifest is not None:
            self._parts.append(Layer("agent", CONTAINED, label=LAUNCHER_DEFAULT))
        self.agent_scope = Scope("agent", agent_key)
        self.tool_scope = Scope("tool", agent_key, tool_key)

    def value(self, name: str) -> EffectiveValue | None:
        """Return what holds for a key that has one value; None if nobody states it."""
        return next(iter(self.values(name)), None)

    def tried(self, name: str) -> EffectiveValue | None:
        """Return the limit of the profile that is only tried: in shadow, and counted apart."""
        entry, layer = KEYS[name], self._resolver.tried
        if layer is None or not entry.is_limit or layer.get(entry) is None:
            return None
        scope = replace(self.agent_scope, tried=True)
        return replace(self._stated(entry, layer, scope), mode="shadow")

    def would_wait(self, each: EffectiveValue) -> int:
        """Return how many calls would wait for a limit in shadow before one is refused."""
        entry, tried = KEYS["queue"], self._resolver.tried
        if each.scope.tried and tried is not None:
            return int(tried.get(entry) or 0)
        found = self._nearest(entry)
        return 0 if found is None else int(found.value)

    def nearest(self, name: str) -> EffectiveValue | None:
        """Return what holds nearest to the tool, without ceilings."""
        return self._nearest(KEYS[name])

    def declared(self, each: EffectiveValue) -> EffectiveValue | None:
        """Return what the agent's manifest states for a key of the agent's, if it does."""
        if self.manifest is None or each.scope.kind != "agent" or each.scope.tried:
            return None
        found = self._side(each.entry, self.manifest, self.agent_scope, *self._agents)
        return next(iter(found), None)

    def values(self, name: str) -> list[EffectiveValue]:
        """Return all that hold for a key, outermost scope first."""
        entry = KEYS[name]
        match entry.joins:
            case "access":
                one = self._access(entry)
            case "nearest":
                one = self._nearest(entry)
            case "lowest":
                one = self._lowest(entry)
            case "capped":
                one = self._capped(entry)
            case "caller":
                found = self._side(entry, self._caller, CALLER)
                # A token is no limit: no mode makes it unnecessary.
                return (
                    found if entry.is_limit else [replace(each, mode="enforce") for each in found]
                )
            case "every":
                return self._every(entry)
        return [] if one is None else [one]

    def _access(self, entry: Entry) -> EffectiveValue | None:
        """Return what the most specific entry says; one without `deny` allows."""
        if not self._tools:
            return None
        layer = self._tools[0]
        mode = self._resolver.mode(None, *self._tools, *self._agents)
        return EffectiveValue(entry, self.tool_scope, layer.get(entry) is True, mode, layer)

    def _nearest(self, entry: Entry) -> EffectiveValue | None:
        layer = _first(entry, [*self._tools, *self._agents])
        if layer is None:
            return None
        scope = self.tool_scope if layer.level == "tool" else self.agent_scope
        return self._stated(entry, layer, scope, *self._tools, *self._agents)

    def _lowest(self, entry: Entry) -> EffectiveValue | None:
        """Return the lowest that is enforced, else the lowest in shadow."""
        own = self._nearest(entry)
        found = [] if own is None else [own]
        found += self._side(entry, self._resolver.global_layer, GLOBAL)
        found += self._side(entry, self._caller, CALLER)
        if own is None or own.layer is not self.manifest:
            found += self._side(entry, self.manifest, self.agent_scope, *self._agents)
        return _lowest(found)

    def _capped(self, entry: Entry) -> EffectiveValue | None:
        """Return the agent's own, lowered by its manifest."""
        layers = [each for each in self._parts if each.get(entry) is not None]
        kept = [each for each in layers[1:] if each is self.manifest and entry.is_limit]
        found = [
            self._stated(entry, layer, self.agent_scope, *self._agents)
            for layer in layers[:1] + kept
        ]
        return _lowest(found) if len(found) > 1 else next(iter(found), None)

    def _every(self, entry: Entry) -> list[EffectiveValue]:
        found = self._side(entry, self._resolver.global_layer, GLOBAL)
        found += self._side(entry, self._caller, CALLER)
        found += self._of_agent(entry)
        tool = _first(entry, self._tools)
        modes = (*self._tools, *self._agents)
        return found + self._side(entry, tool, self.tool_scope, *modes)

    def _of_agent(self, entry: Entry) -> list[EffectiveValue]:
        """Return the agent's own, lowered by its manifest."""
        layer = _first(entry, self._agents)
        own = self._side(entry, layer, self.agent_scope, *self._agents)
        manifest = self._side(entry, self.manifest, self.agent_scope, *self._agents)
        if not manifest or not own:
            return own
        if own[0].rate is not None:
            return self._agent_rates(own[0], manifest[0])
        lowest = _lowest([own[0], *manifest])
        return own if lowest is None else [lowest]

    def _agent_rates(self, own: EffectiveValue, manifest: EffectiveValue) -> list[EffectiveValue]:
        """Return the lower rate; a manifest states N/period only, the operator how to meet it."""
        written = [layer for layer in self._agents if layer is not self.manifest]
        stated = _first(own.entry, written)
        wait = stated.get(own.entry).on_limit if stated is not None else "deny"
        burst = own.rate.burst if own.rate is not None else None
        count = manifest.value[0]
        shaped = SplitRateLimit.model_validate(
            {"limit": "unlimited", "on_limit": wait, "burst": min(burst or count, count)}
        )
        manifest = replace(manifest, rate=shaped)
        if own.layer is self.manifest:
            return [manifest]
        if own.scope.per_caller:  # not comparable: one counts callers apart, one together
            return [own, manifest]
        lowest = _lowest([own, manifest])
        return [own] if lowest is None else [lowest]

    def _side(
        self, entry: Entry, layer: Layer | None, scope: Scope, *modes: Layer
    ) -> list[EffectiveValue]:
        """Return the layer's own statement as a list, empty if it makes none."""
        if layer is None or layer.get(entry) is None:
            return []
        return [self._stated(entry, layer, scope, *(modes or (layer,)))]

    def _stated(self, entry: Entry, layer: Layer, scope: Scope, *modes: Layer) -> EffectiveValue:
        value = layer.get(entry)
        mode = self._resolver.mode(value, *modes)
        rate = value if isinstance(value, RateLimit) else None
        if isinstance(value, SplitRateLimit) and value.per == "caller":
            scope = Scope(scope.kind, scope.agent, scope.tool, per_caller=True)
        limit = value.limit if isinstance(value, Limit) else value
        return EffectiveValue(entry, scope, limit, mode, layer, rate)


def _profile_layer(name: str) -> Layer:
    return Layer("agent", PROFILES[name], label=f"profile {name}")


def _first(entry: Entry, layers: Sequence[Layer]) -> Layer | None:
    return next((layer for layer in layers if layer.get(entry) is not None), None)


def _lowest(found: list[EffectiveValue]) -> EffectiveValue | None:
    """Return the lowest, but never a shadow's for an enforced one."""
    if not found:
        return None
    active = [each for each in found if each.active]
    enforced = [each for each in active if each.mode == "enforce"]
    if not active:
        return found[0]
    best = min(enforced or active, key=_size)
    hidden = [each for each in active if _size(each) < _size(best)]
    note = "a lower limit in shadow is not recorded beside it" if hidden else ""
    first = found[0]
    lowered = first if first is not best else None
    return replace(best, note=note, lowered=lowered)


def _size(each: EffectiveValue) -> Fraction:
    value = each.value
    return Fraction(*value) if isinstance(value, tuple) else Fraction(value)
