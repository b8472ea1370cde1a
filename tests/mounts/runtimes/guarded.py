"""`guarded`: each tool is a function of the program, which calls it itself."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from callgate import CallgateError
from callgate.mounts.guarded import guarded
from tests.mounts.runtimes import TaskSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router
    from tests.mounts.conftest import Tools


class Program(TaskSession):
    """A program whose functions are guarded."""

    def __init__(self, router: Router, tools: Tools, **gate: Any) -> None:
        self._tools = tools
        self._gate: Any = {"router": router, "agent": "web", **gate}

    async def call(self, tool: str, /, **arguments: Any) -> str:
        function = getattr(self._tools, tool)
        try:
            return str(await guarded(**self._gate)(function)(**arguments))
        except CallgateError as error:
            return error.describe()

    async def offered(self) -> set[str]:
        return {name for name in dir(self._tools) if not name.startswith("_")}


@asynccontextmanager
async def connect(router: Router, tools: Tools, **gate: Any) -> AsyncIterator[Program]:
    yield Program(router, tools, **gate)
