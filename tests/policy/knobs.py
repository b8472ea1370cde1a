"""Every key that a policy can state, and ways to feel that it bites.

`all_keys` walks the models. A *drive* makes calls through a real router and says in one word
what came of them: `ok`, an error's code, or what its docstring says.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, get_origin

from callgate import CallgateError, Policy, Router, ToolCall
from callgate.policy.fields import Limit
from callgate.policy.keys import model_in
from callgate.policy.schema import PolicyFile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from pydantic import BaseModel

    Drive = Callable[[dict[str, Any], Path], Awaitable[str]]

BOUND_S = 20.0
"""For every wait; none comes near it."""
SHORT_S = 0.15
"""What a tool takes where it must be longer than a timeout of some milliseconds."""

BASE: dict[str, Any] = {
    "defaults": {
        "rate": "unlimited",
        "concurrency": "unlimited",
        "queue": 0,
        "timeout": "20s",
        "max_timeout": "unlimited",
    },
    "agents": {"web": {"tools": {"search": {}}}},
    "callers": {"bot": {}},
}
"""A policy in which nothing bites."""

NAMES = {"agents": "web", "callers": "bot", "tools": "search"}
"""What stands for `*` behind these keys."""


def all_keys(kind: Any = PolicyFile, path: str = "") -> Iterator[str]:
    """Every key, with `*` for a name: `agents.*.tools.*.rate.burst`. Sections are no keys."""
    for name, field in kind.model_fields.items():
        here = f"{path}{field.alias or name}"
        model, step = _inside(field.annotation)
        if model is None:
            yield here
        elif issubclass(model, Limit):
            yield here
            yield from (f"{here}.{part}" for part in model.model_fields if part != "limit")
        else:
            yield from all_keys(model, f"{here}{step}.")


def _inside(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that stands under an annotation, and the step that leads into it."""
    return model_in(annotation), {dict: ".*", list: "[]"}.get(get_origin(annotation), "")


def put(tree: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of a policy with one key set."""
    copy: dict[str, Any] = json.loads(json.dumps(tree))
    node, parts, before = copy, key.split("."), ""
    for part in parts[:-1]:
        name = NAMES[before] if part == "*" else part
        if not isinstance(node.get(name), dict):
            # The short form of a limit becomes a mapping when one of its keys is set.
            node[name] = {} if node.get(name) is None else {"limit": node[name]}
        node, before = node[name], part
    node[parts[-1]] = value
    return copy


async def said(work: Awaitable[Any]) -> str:
    """`ok`, or the code of the error."""
    try:
        async with asyncio.timeout(BOUND_S):
            await work
    except CallgateError as error:
        return error.code
    return "ok"


def call(caller: str = "bot", timeout_ms: int | None = None, **arguments: Any) -> ToolCall:
    return ToolCall("web", "search", arguments, caller, timeout_ms)


@asynccontextmanager
async def router(
    tree: dict[str, Any], path: Path, tool: Callable[..., Awaitable[Any]]
) -> AsyncIterator[Router]:
    policy = Policy.parse(json.dumps(tree), base=path)
    made = Router(policy, state_dir=path / "state")
    made.add_tool("web", "search", tool)
    async with made:
        yield made


async def echo(text: str = "") -> str:
    return text


async def twice(tree: dict[str, Any], path: Path) -> str:
    """The second of two calls, one after the other."""
    async with router(tree, path, echo) as made:
        first = await said(made.call(call()))
        assert first == "ok"
        return await said(made.call(call()))


async def two_callers(tree: dict[str, Any], path: Path) -> str:
    """The second of two calls, by another caller."""
    async with router(tree, path, echo) as made:
        first = await said(made.call(call()))
        assert first == "ok"
        return await said(made.call(call("somebody else")))


async def once(tree: dict[str, Any], path: Path) -> str:
    """One call."""
    async with router(tree, path, echo) as made:
        return await said(made.call(call(text="x" * 100)))


async def together(tree: dict[str, Any], path: Path, count: int = 2) -> str:
    """The last of some calls while the others are inside."""
    entered, leave = asyncio.Semaphore(0), asyncio.Event()

    async def tool() -> None:
        entered.release()
        await leave.wait()

    async with router(tree, path, tool) as made:
        others = [asyncio.create_task(said(made.call(call()))) for _ in range(count - 1)]
        async with asyncio.timeout(BOUND_S):
            for _ in others:
                await entered.acquire()
        last = asyncio.create_task(said(made.call(call())))
        for _ in range(20):
            await asyncio.sleep(0)
        leave.set()
        assert await asyncio.gather(*others) == ["ok"] * (count - 1)
        return await last


async def sixty_one(tree: dict[str, Any], path: Path) -> str:
    """The last of 61 calls, one after the other."""
    async with router(tree, path, echo) as made:
        for _ in range(60):
            assert await said(made.call(call())) == "ok"
        return await said(made.call(call()))


async def slow(tree: dict[str, Any], path: Path, timeout_ms: int | None = None) -> str:
    """One call of a tool that takes some time."""

    async def tool() -> None:
        await asyncio.sleep(SHORT_S)

    async with router(tree, path, tool) as made:
        return await said(made.call(call(timeout_ms=timeout_ms)))


async def slow_and_asks(tree: dict[str, Any], path: Path) -> str:
    """The same call, and it asks for all the time it needs."""
    return await slow(tree, path, timeout_ms=15_000)


async def stubborn(tree: dict[str, Any], path: Path) -> str:
    """A tool that ignores its cancel: is its caller `answered` at the deadline, or `delayed`?"""
    cancelled, leave = asyncio.Event(), asyncio.Event()

    async def tool() -> None:
        try:
            await leave.wait()
        except asyncio.CancelledError:
            cancelled.set()
            await leave.wait()

    async with router(tree, path, tool) as made:
        work = asyncio.create_task(said(made.call(call(timeout_ms=5))))
        async with asyncio.timeout(BOUND_S):
            await cancelled.wait()
        done, _ = await asyncio.wait([work], timeout=SHORT_S)
        leave.set()
        assert await work == "limit.timeout"
        return "answered" if done else "delayed"


async def after_a_stubborn_one(tree: dict[str, Any], path: Path) -> str:
    """A call after one that ignored its cancel and may still hold the only place."""
    leave = asyncio.Event()

    async def tool(text: str = "") -> None:
        while not text and not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue

    async with router(tree, path, tool) as made:
        assert await said(made.call(call(timeout_ms=5))) == "limit.timeout"
        await asyncio.sleep(SHORT_S)
        answer = await said(made.call(call(text="x")))
        leave.set()
        return answer
