"""A router to mount, tools to call through it, and what they leave behind."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from callgate import Policy, Router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 10.0
"""How long a test waits for what must happen; nothing waits for what must not."""

POLICY = """
version: 1
mode: MODE
callers:
  alice: {rate: 1000/second}
defaults: {rate: 1000/second, concurrency: 64, queue: 0}
agents:
  web:
    tools:
      limited: {rate: 1/hour}
      single: {concurrency: 1}
      slow: {timeout: 50ms}
      slow_sync: {timeout: 50ms, concurrency: 1}
      isolated_sync: {timeout: 50ms, concurrency: 1, isolate: task}
      small: {max_input_bytes: 64}
      "delete_*": deny
audit: {path: PATH}
"""


CALLERS = pytest.mark.parametrize("caller", ["alice", lambda _: "alice"], ids=["name", "function"])
"""What every mount takes as `caller=`; the policy names her, so that the audit does."""


async def until(claim: Callable[[], bool]) -> None:
    """Wait, with a bound, for a state that a thread or the kernel brings about."""
    async with asyncio.timeout(PATIENCE_S):
        while not claim():  # noqa: ASYNC110  # nobody there could set an event
            await asyncio.sleep(0.001)


def is_idle(router: Router) -> bool:
    """Whether no call holds a slot."""
    return not any(slot.used for lane in router._lanes.known.values() for slot in lane.slots)


class Desk:
    """Makes routers and reads what they wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def router(self, mode: str = "enforce", text: str = POLICY, **options: Any) -> Router:
        text = text.replace("PATH", str(self.folder / "audit")).replace("MODE", mode)
        return Router(Policy.parse(text), state_dir=self.folder / "state", **options)

    def records(self) -> list[dict[str, Any]]:
        """The audit records of calls."""
        lines = self.everything().splitlines()
        records = [orjson.loads(line) for line in lines if line.startswith(b'{"v"')]
        return [record for record in records if record["event"].startswith("tool.call.")]

    def events(self) -> list[tuple[str, str | None]]:
        """Of each record of a call, its event and its tool."""
        return [
            (record["event"].removeprefix("tool.call."), record.get("tool"))
            for record in self.records()
        ]

    def everything(self) -> bytes:
        """Whatever was written anywhere."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return b"\n".join(path.read_bytes() for path in files)


class Tools:
    """The tools of agent `web`: the same in every runtime."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.free = asyncio.Event()
        """Lets `single` end."""
        self.thread_free = threading.Event()
        """Lets sync tools end."""

    async def echo(self, text: str) -> str:
        """Answer at once."""
        self.calls.append("echo")
        return text

    async def small(self, text: str) -> str:
        """Take little."""
        self.calls.append("small")
        return text

    async def sized(self, text: str) -> str:
        """Answer with 500 times as much."""
        self.calls.append("sized")
        return text * 500

    async def limited(self) -> str:
        """Once an hour."""
        self.calls.append("limited")
        return "done"

    async def single(self) -> str:
        """One at a time, until `free`."""
        self.calls.append("single")
        self.started.set()
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done"

    async def slow(self) -> str:
        """Never ends by itself."""
        self.calls.append("slow")
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "never"

    async def delete_all(self) -> str:
        """Denied."""
        self.calls.append("delete_all")
        return "deleted"

    async def fail(self, text: str) -> str:
        """Fail with the caller's words."""
        self.calls.append("fail")
        raise ValueError(text)

    def slow_sync(self) -> str:
        """Block a thread until `thread_free`."""
        self.calls.append("slow_sync")
        self.thread_free.wait(PATIENCE_S)
        return "done"

    def isolated_sync(self) -> str:
        """The same, isolated by policy."""
        self.calls.append("isolated_sync")
        self.thread_free.wait(PATIENCE_S)
        return "done"


def functions_of(tools: Tools) -> list[Callable[..., Any]]:
    """All tools."""
    found = (getattr(tools, name) for name in dir(tools) if not name.startswith("_"))
    return [function for function in found if callable(function)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def tools() -> Iterator[Tools]:
    made = Tools()
    yield made
    made.thread_free.set()
