"""What is valid and yet probably not meant: warnings of a policy.

Pure. A warning never changes what is enforced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callgate.model import ANY
from callgate.policy.document import show
from callgate.policy.keys import KEYS
from callgate.policy.problems import Path, Problem, dotted
from callgate.policy.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pydantic import BaseModel

    from callgate.policy.document import Document
    from callgate.policy.resolve import EffectiveValue, Resolution, Resolver
    from callgate.policy.schema import Defaults, PolicyFile, ToolPolicy


def warnings_of(
    file: PolicyFile, document: Document, resolver: Resolver, environ: Mapping[str, str]
) -> list[Problem]:
    """Return every warning, in the order of the file."""
    found = [*_tokens(file, document, environ), *_named_waits(file, document, resolver)]
    for agent in (*file.agents, ANY):
        found += _shadowless(document, resolver, agent)
        found += _processors(document, resolver, agent)
        tools = file.agents[agent].tools if agent in file.agents else {}
        for tool in (None, *tools):
            found += _waits(document, resolver, agent, tool)
            found += _timeouts(document, resolver, agent, tool)
        found += _beside_deny(document, resolver, agent, tools)
    found += _beside_unlimited(file, document)
    unique = {(problem.line, problem.column, problem.found): problem for problem in found}
    return sorted(unique.values(), key=lambda problem: (problem.line, problem.column))


def _tokens(file: PolicyFile, document: Document, environ: Mapping[str, str]) -> Iterator[Problem]:
    for name, caller in file.callers.items():
        if caller.token is not None and not environ.get(caller.token):
            path: Path = ("callers", name, "token")
            line, column = document.position(path)
            found = f"the variable {caller.token}, which is not set"
            yield Problem(dotted(path), line, column, found, "a variable that holds the token")


def unknown_launchers(
    file: PolicyFile, document: Document, known: Collection[str]
) -> Iterator[Problem]:
    """Yield launchers that are named and not installed here; elsewhere they may be."""
    levels: dict[Path, Defaults] = {("defaults",): file.defaults}
    levels |= {("agents", name): agent for name, agent in file.agents.items()}
    for above, level in levels.items():
        if level.launcher is not None and level.launcher not in known:
            path = (*above, "launcher")
            line, column = document.position(path)
            found = f"{show(level.launcher)}, which is not installed here"
            yield Problem(dotted(path), line, column, found, " or ".join(sorted(known)))


def _waits(
    document: Document, resolver: Resolver, agent: str, tool: str | None
) -> Iterator[Problem]:
    """Warn of a rate that waits without a queue to wait in."""
    resolution = resolver.resolve(ANY, agent, tool)
    if not _refuses(resolution):
        return
    for choice in resolution.values("rate"):
        if choice.rate is not None and choice.rate.on_limit == "wait" and choice.layer.path:
            yield _no_queue(document, choice.layer.path)


def _named_waits(file: PolicyFile, document: Document, resolver: Resolver) -> Iterator[Problem]:
    """Warn of callers' such rates, without going through every tool for each of them."""
    if not any(_refuses(resolver.resolve(ANY, agent, None)) for agent in (*file.agents, ANY)):
        return
    for name, caller in file.callers.items():
        if caller.rate is not None and caller.rate.on_limit == "wait":
            yield _no_queue(document, ("callers", name))


def _refuses(resolution: Resolution) -> bool:
    queue = resolution.value("queue")
    return queue is not None and not queue.value


def _no_queue(document: Document, layer: Path) -> Problem:
    expected = "a `queue` above 0 to wait in; calls over the rate are refused"
    path = (*layer, "rate", "on_limit")
    return _at(document, path, "on_limit: wait where the queue is 0", expected)


def _timeouts(
    document: Document, resolver: Resolver, agent: str, tool: str | None
) -> Iterator[Problem]:
    """Warn of a default above its own ceiling: it is lowered, and its author may not know."""
    resolution = resolver.resolve(ANY, agent, tool)
    own, ceiling = resolution.value("timeout"), resolution.nearest("max_timeout")
    if not _both(own, ceiling) or own is None or ceiling is None or not own.layer.path:
        return
    if own.value > ceiling.value:
        found = f"timeout {duration_text(own.value)}"
        expected = f"at most max_timeout, {duration_text(ceiling.value)}, to which it is lowered"
        yield _at(document, (*own.layer.path, "timeout"), found, expected)


MANY_PROCESSORS = 50_000
"""In millicores. More than most hosts have: `500` was meant as `500m`."""


def _processors(document: Document, resolver: Resolver, agent: str) -> Iterator[Problem]:
    """Warn of a share of processors without its unit, in the file or in a manifest."""
    resolution = resolver.resolve(ANY, agent, None)
    own = resolution.value("containment.cpu")
    declared = None if own is None else resolution.declared(own)
    for each in (own, declared):
        if each is not None and each.active and each.value >= MANY_PROCESSORS:
            written = (*each.layer.path, "containment", "cpu")
            path = written if each.layer.path else ("agents", agent, "manifest")
            where = "" if each.layer.path else f" in {each.layer.label}"
            count = each.value // 1000
            yield _at(
                document,
                path,
                f"{count} whole processors{where}",
                f"{count}m, if thousandths of one are meant",
            )


def _shadowless(document: Document, resolver: Resolver, agent: str) -> Iterator[Problem]:
    """Warn of a connection's limit in shadow: what it does is no refusal of one call."""
    resolution = resolver.resolve(ANY, agent, None)
    for key, entry in KEYS.items():
        found = resolution.value(key) if entry.key.by == "gate" and entry.is_limit else None
        if found is not None and found.mode == "shadow" and found.layer.path:
            expected = f"`mode: enforce` or `off`: {key} has no shadow, and is off in that mode"
            path = (*found.layer.path, *entry.path)
            yield _at(document, path, f"{key} in shadow mode", expected)


def _beside_deny(
    document: Document, resolver: Resolver, agent: str, tools: Mapping[str, ToolPolicy]
) -> Iterator[Problem]:
    """Warn of limits of a tool that is never called; in shadow it is called."""
    for name, tool in tools.items():
        limits = sorted(tool.model_fields_set - {"deny", "mode"})
        if not tool.deny or not limits:
            continue
        access = resolver.resolve(ANY, agent, name).value("deny")
        if access is not None and access.mode == "enforce":
            path: Path = ("agents", agent, "tools", name, limits[0])
            yield _at(document, path, "a limit of a denied tool", "`deny`, or limits")


def _beside_unlimited(file: PolicyFile, document: Document) -> Iterator[Problem]:
    """Warn of how to meet a rate where there is none to meet."""
    places: list[tuple[Path, BaseModel]] = [(("defaults",), file.defaults)]
    places.append((("global",), file.global_))
    places += [(("callers", name), caller) for name, caller in file.callers.items()]
    for name, agent in file.agents.items():
        places.append((("agents", name), agent))
        places += [(("agents", name, "tools", key), tool) for key, tool in agent.tools.items()]
    for path, model in places:
        rate = getattr(model, "rate", None)
        if rate is not None and rate.limit is None:
            for key in sorted(rate.model_fields_set & {"burst", "on_limit", "per"}):
                found = f"{key} of a rate that is unlimited"
                yield _at(document, (*path, "rate", key), found, "a rate, or `unlimited` alone")


def _both(own: EffectiveValue | None, ceiling: EffectiveValue | None) -> bool:
    return own is not None and ceiling is not None and own.active and ceiling.active


def _at(document: Document, path: Path, found: str, expected: str) -> Problem:
    line, column = document.position(path)
    return Problem(dotted(path), line, column, found, expected)
