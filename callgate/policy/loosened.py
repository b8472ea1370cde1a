"""What one policy allows an agent that another did not: limits gone or higher, denials gone.

Pure. Two policies are compared by their effective values, key by key and scope by scope, over
the tools that either file names, its patterns, the tools that the agent lists, and the callers
that either file names. Only what was enforced can be loosened. A tool that nobody has listed yet
and that two different patterns match is compared under each pattern, not by its name.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callgate.model import ANY
from callgate.policy.contained import Mount
from callgate.policy.explain import value_text
from callgate.policy.keys import KEYS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from callgate.policy.fields import Key
    from callgate.policy.keys import Entry
    from callgate.policy.resolve import EffectiveValue, Resolution, Resolver
    from callgate.policy.schema import Audit

_ABSENT: Final = "nothing"


class Loosened(msgspec.Struct, frozen=True):
    """One statement that was stricter before."""

    key: str
    scope: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """Return it as one line."""
        where = f" of {self.scope}" if self.scope else ""
        return f"{self.key}{where}: {self.before} -> {self.after}"


def find_loosened(
    old: Resolver, new: Resolver, agent: str, *, tools: Collection[str], callers: Collection[str]
) -> list[Loosened]:
    """Return everything that `new` allows `agent` and `old` did not, each thing once."""
    lanes: list[tuple[str, str | None]] = [(caller, None) for caller in sorted({ANY, *callers})]
    lanes += [(ANY, tool) for tool in sorted({ANY, *tools})]
    found: dict[Loosened, None] = {}
    for caller, tool in lanes:
        before = old.resolve(caller, agent, tool)
        after = new.resolve(caller, agent, tool)
        found.update(dict.fromkeys(_of_lane(before, after, caller)))
    return list(found)


def audit_loosened(old: Audit | None, new: Audit | None) -> list[Loosened]:
    """Return what is no longer written down, or may get lost."""
    if old is None:
        return []
    if new is None:
        return [Loosened("audit", "", old.path, "off")]
    before, after = (each.on_failure or "fail_closed" for each in (old, new))
    if (before, after) == ("fail_closed", "drop"):
        return [Loosened("audit.on_failure", "", before, after)]
    return []


def _of_lane(before: Resolution, after: Resolution, caller: str) -> Iterator[Loosened]:
    for name, entry in KEYS.items():
        for one, other in _pairs(entry, before.values(name), after.values(name)):
            change = _compare(entry, one, other)
            if change is not None:
                either = one or other
                scope = "" if either is None else either.scope.describe(caller)
                yield Loosened(name, scope, *change)


def _pairs(
    entry: Entry, before: list[EffectiveValue], after: list[EffectiveValue]
) -> Iterator[tuple[EffectiveValue | None, EffectiveValue | None]]:
    """Yield what has to be compared: limits of different scopes all hold, others are one value."""
    if entry.joins == "every":
        others = {each.scope: each for each in after}
        yield from ((each, others.get(each.scope)) for each in before)
    else:
        yield next(iter(before), None), next(iter(after), None)


def _compare(
    entry: Entry, before: EffectiveValue | None, after: EffectiveValue | None
) -> tuple[str, str] | None:
    """Return both values as text if the second is looser."""
    if entry.key.words:
        return _by_word(entry.key, before, after)
    if entry.key.grants:
        return _added(before, after)
    if entry.is_limit:
        return _by_limit(before, after)
    if entry.joins == "access":
        return ("denied", "allowed") if _denies(before) and not _denies(after) else None
    if entry.joins == "caller" and before is not None and after is None:  # a token
        return "required", "not required"
    return None


def _by_limit(
    before: EffectiveValue | None, after: EffectiveValue | None
) -> tuple[str, str] | None:
    if before is None or not _is_enforced(before):
        return None
    if after is None:
        return value_text(before), _ABSENT
    if not _is_enforced(after):
        text = value_text(after)
        return value_text(before), text if after.value is None else f"{text} ({after.mode})"
    return (value_text(before), value_text(after)) if _exceeds(after, before) else None


def _exceeds(one: EffectiveValue, other: EffectiveValue) -> bool:
    mine, others = _number(one.value), _number(other.value)
    return mine > others or (mine == others and _burst(one) > _burst(other))


def _number(value: Any) -> Fraction:
    return Fraction(*value) if isinstance(value, tuple) else Fraction(value)


def _burst(each: EffectiveValue) -> int:
    if each.rate is None:
        return 0
    return int(each.value[0] if each.rate.burst is None else each.rate.burst)


def _by_word(
    key: Key, before: EffectiveValue | None, after: EffectiveValue | None
) -> tuple[str, str] | None:
    unwritten = key.words[0] if key.unwritten is None else key.unwritten
    # A word in shadow is not applied, which is as if it were not written.
    one, other = (
        each.value if each is not None and _is_enforced(each) else unwritten
        for each in (before, after)
    )
    if key.words.index(other) > key.words.index(one):
        return str(one), str(other)
    return None


def _added(before: EffectiveValue | None, after: EffectiveValue | None) -> tuple[str, str] | None:
    """Return how many there were and are if one was added: a variable, a path, a right to write."""
    one, other = (_members(each) for each in (before, after))
    return (str(len(one)), str(len(other))) if other - one else None


def _members(each: EffectiveValue | None) -> set[object]:
    found: set[object] = set()
    for item in () if each is None else each.value:
        if isinstance(item, Mount):
            found |= {item.path} if item.read_only else {item.path, (item.path, "write")}
        else:
            found.add(item)
    return found


def _denies(each: EffectiveValue | None) -> bool:
    return each is not None and each.value is True and each.mode == "enforce"


def _is_enforced(each: EffectiveValue) -> bool:
    return each.value is not None and each.mode == "enforce"
