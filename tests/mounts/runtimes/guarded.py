"""`guarded`: each tool is a function of the program, which calls it itself."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from callgate import CallgateError
from callgate.mounts.guarded import guarded
from tests.mounts.runtimes import TaskSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callgate import Router
    from tests.mounts.conftest import Tools


class Program(TaskSession):
    """A program whose functions are guarded, or else the blocks that call them."""

    def __init__(
        self, router: Router, tools: Tools, *, block: bool, second: Router | None, **gate: Any
    ) -> None:
        self._tools = tools
        self._outer = second
        self._block = block
        self._gate: Any = {"router": router, "agent": "web", **gate}

    async def call(self, tool: str, /, **arguments: Any) -> str:
        function = getattr(self._tools, tool)
        try:
            guard = guarded(**self._gate)(function)  # from here on the audit knows its name
            if self._outer is not None:
                guard = guarded(**{**self._gate, "router": self._outer})(guard)
            if not self._block:
                return str(await guard(**arguments))
            async with AsyncExitStack() as stack:
                for router in filter(None, (self._outer, self._gate["router"])):
                    gate = {**self._gate, "router": router}
                    block = guarded(**gate, name=tool, arguments=arguments)
                    await stack.enter_async_context(block)
                if asyncio.iscoroutinefunction(function):
                    return str(await function(**arguments))
                return str(await asyncio.to_thread(function, **arguments))
        except CallgateError as error:
            return error.describe()

    async def offered(self) -> set[str]:
        return {name for name in dir(self._tools) if not name.startswith("_")}


@asynccontextmanager
async def connect(
    router: Router,
    tools: Tools,
    *,
    block: bool = False,
    second: Router | None = None,
    **gate: Any,
) -> AsyncIterator[Program]:
    yield Program(router, tools, block=block, second=second, **gate)
