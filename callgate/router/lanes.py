"""Lanes: everything about (caller, agent, tool) that one policy revision decides, resolved once.

A call finds its lane with one look-up in `Lanes.known`. The counters are outside (see
`callgate.limits.counters`), so that a reload can drop all lanes and keep what was counted.
Names that peers choose never become keys without a bound: an unlisted tool's lane is that of
the pattern that matched it, reached by a bounded number of aliases, and callers are bounded by
`Counters`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from callgate.audit import events
from callgate.audit.names import caller_name, safe_tool
from callgate.limits.deadlines import NEVER
from callgate.limits.queue import Queue
from callgate.model import ANONYMOUS, ANY, OTHERS
from callgate.router.doubles import ODD, Doubles, is_odd
from callgate.telemetry.stats import ToolStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from callgate.limits.counters import Caller, Counters
    from callgate.limits.quota import Quota
    from callgate.limits.rate import Rate
    from callgate.limits.slots import Slots
    from callgate.model import LaneSpec, TimeSpec
    from callgate.policy import Policy
    from callgate.router.flight import Flight
    from callgate.router.recorder import Merged, Recorder
    from callgate.router.tools import Tool

Key = tuple[str, str, str]
"""Caller, agent, tool."""

MAX_ALIASES = 16_384
"""Look-ups remembered for names that nobody listed; beyond it they are matched anew, which
costs some microseconds. About 4 MB."""
MAX_LANES = 262_144
"""Lanes and aliases that are kept: strangers times listed tools would be without a bound."""
MAX_NAME_CHARS = 256
"""A peer's name that is kept. A longer caller is known by its digest, a longer tool not at all."""
MAX_LISTED_TOOLS = 4_096
"""Tools of one agent that have lanes of their own; the design's bound."""


class Agent:
    """What the router knows of one agent: its tools and who waits for it."""

    __slots__ = ("listed", "name", "queue", "tools")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tools: dict[str, Tool] = {}
        self.listed: set[str] = set()
        """Names that the agent or the program declared; the policy may name more."""
        self.queue: Queue[Flight] = Queue()


class Lane:
    """The way of one caller to one tool under one policy."""

    __slots__ = (
        "agent",
        "caller",
        "ceiling_ns",
        "default_ns",
        "floods",
        "fragment",
        "is_odd",
        "output_bytes",
        "plain",
        "quota",
        "rates",
        "recorder",
        "screened",
        "shadow_ceiling_ns",
        "shadow_default_ns",
        "shadow_rates",
        "shadow_slots",
        "slots",
        "spec",
        "stats",
        "tool",
    )

    def __init__(
        self,
        spec: LaneSpec,
        caller: Caller,
        agent: Agent,
        stats: ToolStats,
        tool: Tool | None,
        recorder: Recorder,
    ) -> None:
        self.spec = spec
        self.recorder = recorder
        """Of the policy's own audit log: a call's records stay together over a reload."""
        self.caller = caller
        self.agent = agent
        self.stats = stats
        self.tool = tool
        self.rates: tuple[Rate, ...] = ()
        self.slots: tuple[Slots, ...] = ()
        self.shadow_rates: tuple[Rate, ...] = ()
        self.shadow_slots: tuple[Slots, ...] = ()
        self.quota: Quota | None = None
        self.floods: dict[str, Merged] = {}
        """What limits in shadow would refuse and is only counted just now, by code."""
        self.fragment = events.call_fragment(caller.shown, spec.agent, spec.tool, spec.policy)
        self.ceiling_ns = _enforced_ns(spec.max_timeout)
        self.default_ns = min(_enforced_ns(spec.timeout), self.ceiling_ns)
        self.shadow_ceiling_ns = min(
            _shadowed_ns(spec.max_timeout), _shadowed_ns(spec.tried_max_timeout)
        )
        self.shadow_default_ns = min(
            _shadowed_ns(spec.timeout), _shadowed_ns(spec.tried_timeout), self.shadow_ceiling_ns
        )
        self.output_bytes = NEVER if spec.max_output_bytes is None else spec.max_output_bytes.limit
        self.is_odd = spec.tool_key == ODD
        """Whether it is the lane of all names that are none."""
        self.screened = bool(
            self.is_odd or spec.denied or spec.denied_shadow or spec.quota or spec.max_input_bytes
        )
        """Whether `screen` may have a reason to refuse."""
        self.plain = not (
            self.screened
            or self.shadow_default_ns != NEVER
            or any(rate.shadow for rate in spec.rates)
            or any(slots.shadow for slots in spec.slots)
        )
        """Whether rates, slots and a deadline are all there is to check."""


def _enforced_ns(time: TimeSpec | None) -> int:
    return NEVER if time is None or time.shadow else time.limit_ns


def _shadowed_ns(time: TimeSpec | None) -> int:
    return time.limit_ns if time is not None and time.shadow else NEVER


def _short(name: str) -> str:
    """Stands for a caller's name that is too long to keep; no policy can name it."""
    return "~" + sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


class Lanes:
    """Finds and makes lanes for one policy."""

    def __init__(self, policy: Policy, counters: Counters, key: bytes, recorder: Recorder) -> None:
        self.known: dict[Key, Lane] = {}
        """By canonical key and by alias; the hot path reads it directly."""
        self._policy = policy
        self._doubles = Doubles(policy)
        self._counters = counters
        self._key = key
        self._recorder = recorder
        self._aliases = 0
        self._specs: dict[Key, LaneSpec] = {}
        self._stats: dict[tuple[str, str], ToolStats] = {}
        self.agents: dict[str, Agent] = {}
        self._stranger = Agent(ANY)
        """Stands for all agents that nobody declared."""

    @property
    def policy(self) -> Policy:
        """The policy that new calls are under."""
        return self._policy

    def use_key(self, key: bytes) -> None:
        """Change the key of pseudonyms, for calls from now on."""
        self._key = key
        self._counters.rename(self._introduce)

    def stats(self) -> list[ToolStats]:
        """The counters of all tools so far."""
        return list(self._stats.values())

    def agent(self, name: str) -> Agent:
        """An agent, declared by this very look-up."""
        agent = self.agents.get(name)
        if agent is None:
            agent = self.agents[name] = Agent(name)
        return agent

    def declare(self, name: str, tools: Iterable[str]) -> Agent:
        """List an agent and tools of it, so that each has its own counters and is named.

        What cannot be named in the audit, or is one too many, is left unlisted: it still is
        under the patterns that match it.
        """
        agent = self.agent(name)
        for tool in tools:
            if len(agent.listed) < MAX_LISTED_TOOLS and safe_tool(tool) is not None:
                agent.listed.add(tool)
        self._forget_lanes()
        return agent

    def listed(self, name: str) -> frozenset[str]:
        """The tools that were listed of an agent."""
        agent = self.agents.get(name)
        return frozenset() if agent is None else frozenset(agent.listed)

    def change(self, policy: Policy, recorder: Recorder) -> None:
        """Put new calls under another policy."""
        self._policy = policy
        self._doubles = Doubles(policy)
        self._recorder = recorder
        self._specs.clear()
        self._forget_lanes()
        self._counters.rename(self._introduce)

    def find(self, caller: str, agent: str, tool: str, now_ns: int, wall_ns: int) -> Lane:
        """The lane of a call, made if need be; `known` is asked first."""
        if len(caller) > MAX_NAME_CHARS:
            caller = _short(caller)
        owner = self._caller(caller, now_ns, wall_ns)
        agent_key, tool_key = self.keys(agent, tool)
        if is_odd(tool):
            tool = tool_key = ODD
        keeper = None if agent_key == ANY else self.agent(agent)
        key = (owner.name, agent_key, tool_key)
        lane = self.known.get(key)
        if lane is None:
            lane = self._make(key, owner, keeper or self._stranger, now_ns)
            self._remember(key, lane)
        alias = (caller, agent, tool)
        if (
            alias != key
            and owner.name == caller
            and self._aliases < MAX_ALIASES
            and len(agent) + len(tool) <= MAX_NAME_CHARS
        ):
            self._aliases += 1
            self._remember(alias, lane)
        return lane

    def keys(self, agent: str, tool: str) -> tuple[str, str]:
        """What a lane is kept under: names that somebody listed, a pattern, or `*`."""
        keeper = self.agents.get(agent)
        agent_key = self._policy.agent_key(agent) if keeper is None else agent
        if keeper is not None and tool in keeper.listed:
            return agent_key, tool
        tool_key = self._policy.tool_key(agent, tool)
        if tool_key == tool or is_odd(tool):
            return agent_key, tool_key
        return agent_key, self._doubles.denied(agent_key, tool) or tool_key

    def _caller(self, name: str, now_ns: int, wall_ns: int) -> Caller:
        caller = self._counters.others if name == OTHERS else self._counters.caller(name)
        if caller is None:
            shown, named = self._introduce(name)
            caller, forgotten = self._counters.add_caller(
                name, shown, named=named, now_ns=now_ns, wall_ns=wall_ns
            )
            for gone in forgotten:
                self._forget(gone)
        return caller

    def _introduce(self, name: str) -> tuple[str, bool]:
        """A caller's name as it may be shown, and whether the policy has it."""
        named = name == ANONYMOUS or name in self._policy.callers
        return caller_name(name, self._policy.callers, self._key), named

    def _make(self, key: Key, owner: Caller, keeper: Agent, now_ns: int) -> Lane:
        spec = self._spec(key, owner)
        stats_key = key[1:]
        stats = self._stats.get(stats_key)
        if stats is None:
            stats = self._stats[stats_key] = ToolStats(spec.agent, spec.tool)
        # A key that is not listed may be a pattern, and a tool of that very name another's.
        tool = keeper.tools.get(key[2]) if key[2] in keeper.listed else None
        lane = Lane(spec, owner, keeper, stats, tool, self._recorder)
        counters = self._counters
        rates = [counters.rate(rate, owner, now_ns) for rate in spec.rates]
        slots = [counters.slots(slot, owner) for slot in spec.slots]
        lane.rates = tuple(rate for rate in rates if not rate.spec.shadow)
        lane.slots = tuple(slot for slot in slots if not slot.spec.shadow)
        lane.shadow_rates = tuple(rate for rate in rates if rate.spec.shadow)
        lane.shadow_slots = tuple(slot for slot in slots if slot.spec.shadow)
        if spec.quota is not None:
            lane.quota = counters.quota(spec.quota, owner)
        return lane

    def _spec(self, key: Key, owner: Caller) -> LaneSpec:
        _, agent_key, tool_key = key
        caller_key = owner.name if owner.name in self._policy.callers else ANY
        spec = self._specs.get((caller_key, agent_key, tool_key))
        if spec is None:
            spec = self._policy.lane(
                caller_key,
                agent_key,
                tool_key,
                agent=None if agent_key == ANY else safe_tool(agent_key),
                tool=safe_tool(tool_key),
            )
            self._specs[caller_key, agent_key, tool_key] = spec
        return spec

    def _remember(self, key: Key, lane: Lane) -> None:
        if len(self.known) >= MAX_LANES:
            return  # it is made anew for each call; what it counts in is not its own
        self.known[key] = lane
        if not lane.caller.lasting:
            lane.caller.lanes += (key,)

    def _forget(self, caller: Caller) -> None:
        for key in caller.lanes:
            lane = self.known.pop(key, None)
            if lane is not None and (lane.spec.agent_key, lane.spec.tool_key) != key[1:]:
                self._aliases -= 1

    def _forget_lanes(self) -> None:
        self.known.clear()
        self._aliases = 0
        self._counters.drop_lanes()
