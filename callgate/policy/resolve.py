"""Which statement wins for each key of (caller, agent, tool), and where it was written.

Pure. For each key the most specific of tool, pattern, agent, manifest, `defaults` and
profile wins; what then only lowers is a ceiling: `global`, the caller, the manifest. Rates
and concurrency do not replace one another across scopes: all of them apply.

Lanes and `explain` are both made from the `Choice`s made here, so that what is shown
cannot differ from what is enforced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from callgate.model import ANY, Scope
from callgate.policy.fields import Limit, Mode, RateLimit, SplitRateLimit
from callgate.policy.patterns import Entries
from callgate.policy.profiles import PROFILES
from callgate.policy.schema import PolicyFile, Tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from callgate.policy.manifest import Manifest
    from callgate.policy.problems import Path

Level = Literal["tool", "agent", "caller", "global"]
GLOBAL = Scope("global")
CALLER = Scope("caller")


@dataclass(frozen=True, slots=True)
class Layer:
    """One place that can state a key; `label` is for places that are not in the file."""

    level: Level
    model: BaseModel
    path: Path = ()
    label: str = ""

    def get(self, key: str) -> Any:
        """What is written for the key here, or None."""
        return getattr(self.model, key) if key in self.model.model_fields_set else None


@dataclass(frozen=True, slots=True)
class Choice:
    """One effective statement; `value` is None for `unlimited`."""

    key: str
    scope: Scope
    value: Any
    mode: Mode
    layer: Layer
    rate: RateLimit | None = None
    note: str = ""
    lowered: Choice | None = None
    """What this one was lower than."""

    @property
    def active(self) -> bool:
        """Whether it says anything to a call."""
        return self.value is not None and self.mode != "off"


class Resolver:
    """The layers of one policy."""

    def __init__(self, file: PolicyFile, manifests: Mapping[str, Manifest]) -> None:
        self._file = file
        self._manifests = manifests
        self._global = Layer("global", file.global_, ("global",))
        self._defaults = Layer("agent", file.defaults, ("defaults",))
        profile = PROFILES[file.profile]
        self._profile = Layer("agent", profile, label=f"profile {file.profile}")
        self._tools: dict[str, Entries[Layer]] = {}
        for name, agent in file.agents.items():
            path = ("agents", name, "tools")
            layers = {key: Layer("tool", tool, (*path, key)) for key, tool in agent.tools.items()}
            self._tools[name] = Entries(layers)

    def tool_key(self, agent: str, tool: str) -> str:
        """The entry that speaks for a name."""
        entries = self._tools.get(agent)
        return ANY if entries is None else entries.key(tool)

    def caller_layer(self, caller_key: str) -> Layer | None:
        """The caller's entry, or the template's."""
        name = caller_key if caller_key in self._file.callers else ANY
        entry = self._file.callers.get(name)
        return None if entry is None else Layer("caller", entry, ("callers", name))

    def tool_layers(self, agent_key: str, tool_key: str) -> list[Layer]:
        """Entries of `tools` that apply, most specific first."""
        entries = self._tools.get(agent_key)
        return [] if entries is None else entries.matching(tool_key)

    def manifest_layer(self, agent_key: str) -> Layer | None:
        """What the agent's manifest says, if it has one."""
        manifest = self._manifests.get(agent_key)
        if manifest is None:
            return None
        return Layer("agent", manifest.limits, label=f"manifest {manifest.name}")

    def agent_layers(self, agent_key: str) -> list[Layer]:
        """Agent, manifest, defaults, profile."""
        layers = [self._defaults, self._profile]
        manifest = self.manifest_layer(agent_key)
        if manifest is not None:
            layers.insert(0, manifest)
        agent = self._file.agents.get(agent_key)
        if agent is not None:
            layers.insert(0, Layer("agent", agent, ("agents", agent_key)))
        return layers

    def resolve(self, caller_key: str, agent_key: str, tool_key: str | None) -> Resolution:
        """Everything that applies to one lane, or to an agent without a tool."""
        return Resolution(self, caller_key, agent_key, tool_key)

    def mode(self, value: object, *layers: Layer | None) -> Mode:
        """The limit's own mode, else that of the nearest layer, else the policy's."""
        own = value.mode if isinstance(value, Limit) else None
        stated = (layer.get("mode") for layer in layers if layer is not None)
        return own or next((mode for mode in stated if mode), None) or self._file.mode

    @property
    def global_layer(self) -> Layer:
        """The layer over all calls."""
        return self._global


class Resolution:
    """One lane's choices, key by key."""

    def __init__(
        self, resolver: Resolver, caller_key: str, agent_key: str, tool_key: str | None
    ) -> None:
        self._resolver = resolver
        self._caller = resolver.caller_layer(caller_key)
        self._tools = [] if tool_key is None else resolver.tool_layers(agent_key, tool_key)
        self._agents = resolver.agent_layers(agent_key)
        self._manifest = resolver.manifest_layer(agent_key)
        self.agent_scope = Scope("agent", agent_key)
        self.tool_scope = Scope("tool", agent_key, tool_key)

    def access(self) -> Choice | None:
        """The most specific entry decides; one without `deny` allows, as it is listed."""
        if not self._tools:
            return None
        layer = self._tools[0]
        denied = isinstance(layer.model, Tool) and layer.model.deny is True
        mode = self._resolver.mode(None, *self._tools, *self._agents)
        return Choice("access", self.tool_scope, denied, mode, layer)

    def plain(self, key: str, *, manifest: bool = True) -> Choice | None:
        """A key that nothing lowers: the first layer that states it."""
        layers = [each for each in self._agents if manifest or each != self._manifest]
        layer = _first(key, [*self._tools, *layers])
        if layer is None:
            return None
        value = layer.get(key)
        scope = self.tool_scope if layer.level == "tool" else self.agent_scope
        mode = self._resolver.mode(value, *self._tools, *self._agents)
        limit = value.limit if isinstance(value, Limit) else value
        return Choice(key, scope, limit, mode, layer)

    def lowest(self, key: str) -> Choice | None:
        """A key with ceilings: the lowest that is enforced, else the lowest in shadow."""
        own = self.plain(key, manifest=False)
        choices = [own] if own is not None else []
        choices += self._side(key, self._resolver.global_layer, GLOBAL)
        choices += self._side(key, self._caller, CALLER)
        choices += self._side(key, self._manifest, self.agent_scope, *self._agents)
        return _lowest(choices)

    def part(self, section: str, key: str, *extra: Layer) -> Choice | None:
        """A key of a section such as `containment`, filled key by key like the rest."""
        found: list[Choice] = []
        for layer in (*self._agents, *extra):
            model = layer.get(section) if section else layer.model
            if not isinstance(model, BaseModel) or key not in model.model_fields_set:
                continue
            value = getattr(model, key)
            limit = value.limit if isinstance(value, Limit) else value
            mode = self._resolver.mode(value, *self._agents)
            choice = Choice(key, self.agent_scope, limit, mode, layer)
            if not found or (layer == self._manifest and isinstance(value, Limit)):
                found.append(choice)
        return _lowest(found) if len(found) > 1 else next(iter(found), None)

    def rates(self) -> list[Choice]:
        """One for each scope, outermost first; the manifest may add a whole agent's."""
        return self._scoped("rate")

    def slots(self) -> list[Choice]:
        """One for each scope, outermost first."""
        return self._scoped("concurrency")

    def quota(self) -> Choice | None:
        """The caller's budget."""
        found = self._side("quota", self._caller, CALLER)
        return found[0] if found else None

    def token(self) -> Choice | None:
        """The variable with the caller's token."""
        name = None if self._caller is None else self._caller.get("token")
        if self._caller is None or name is None:
            return None
        return Choice("token", CALLER, name, "enforce", self._caller)

    def _scoped(self, key: str) -> list[Choice]:
        found = self._side(key, self._resolver.global_layer, GLOBAL)
        found += self._side(key, self._caller, CALLER)
        found += self._agent_scoped(key)
        tool = _first(key, self._tools)
        modes = (*self._tools, *self._agents)
        return found + self._side(key, tool, self.tool_scope, *modes)

    def _agent_scoped(self, key: str) -> list[Choice]:
        """The agent's own, and the minimum with its manifest's."""
        layer = _first(key, self._agents)
        own = self._side(key, layer, self.agent_scope, *self._agents)
        if self._manifest is None or not own:
            return own
        manifest = self._side(key, self._manifest, self.agent_scope, *self._agents)
        if not manifest:
            return own
        if key == "rate":
            return self._agent_rates(own[0], manifest[0])
        lowest = _lowest([own[0], *manifest])
        return own if lowest is None else [lowest]

    def _agent_rates(self, own: Choice, manifest: Choice) -> list[Choice]:
        """A manifest states N/period only; how to meet it is the operator's word."""
        written = [layer for layer in self._agents if layer != self._manifest]
        stated = next((rate for rate in (each.get("rate") for each in written) if rate), None)
        wait = stated.on_limit if stated is not None else "deny"
        burst = own.rate.burst if own.rate is not None else None
        count = manifest.value[0]
        shaped = SplitRateLimit.model_validate(
            {"limit": "unlimited", "on_limit": wait, "burst": min(burst or count, count)}
        )
        manifest = replace(manifest, rate=shaped)
        if own.layer == self._manifest:
            return [manifest]
        if own.scope.per_caller:  # not comparable: one counts callers apart, one together
            return [own, manifest]
        lowest = _lowest([own, manifest])
        return [own] if lowest is None else [lowest]

    def _side(self, key: str, layer: Layer | None, scope: Scope, *modes: Layer) -> list[Choice]:
        """The layer's own statement as a list, empty if it makes none."""
        value = None if layer is None else layer.get(key)
        if layer is None or value is None:
            return []
        mode = self._resolver.mode(value, *(modes or (layer,)))
        rate = value if isinstance(value, RateLimit) else None
        if isinstance(value, SplitRateLimit) and value.per == "caller":
            scope = Scope(scope.kind, scope.agent, scope.tool, per_caller=True)
        return [Choice(key, scope, value.limit, mode, layer, rate)]


def _first(key: str, layers: Sequence[Layer]) -> Layer | None:
    return next((layer for layer in layers if layer.get(key) is not None), None)


def _lowest(choices: list[Choice]) -> Choice | None:
    """Never gives up an enforced limit for a lower one that is only in shadow."""
    if not choices:
        return None
    active = [choice for choice in choices if choice.active]
    enforced = [choice for choice in active if choice.mode == "enforce"]
    if not active:
        return choices[0]
    best = min(enforced or active, key=_size)
    hidden = [choice for choice in active if _size(choice) < _size(best)]
    note = "a lower limit in shadow is not recorded beside it" if hidden else ""
    first = choices[0]
    lowered = first if first is not best else None
    return replace(best, note=note, lowered=lowered)


def _size(choice: Choice) -> Fraction:
    value = choice.value
    return Fraction(*value) if isinstance(value, tuple) else Fraction(value)
