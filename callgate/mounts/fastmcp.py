"""FastMCP 4: a middleware for a server, or for a proxy in front of other servers.

    server.add_middleware(CallgateMiddleware(router, agent="web"))

Theory of operation. `on_call_tool` runs the rest of the chain under the router, so it belongs
behind middlewares that may answer alone (a cache) and before those that count or log what really
ran. On a wire a refusal is an error result: text for the model, the structure in its `_meta`.
Code that calls a tool itself (`server.call_tool`, also from inside another tool) gets it as a
`CallRefusedError`, since code that does not look for an error result would take its text for
the answer.

The first call of a name looks the tool up, which tells the audit that the name is real and
whether the work is a coroutine; anything else may end in a thread. A tool can also be called by
a hash of what it is; then it is looked up each time and counted under its own name, or a policy
on that name could be walked around.
"""

from __future__ import annotations

import asyncio
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NoReturn

from callgate.mounts.common import MAX_DECLARED, Mount, error_metadata, missing_extra, readable
from callgate.mounts.sizes import json_bytes
from callgate.protocol.mcp import TIMEOUT_MS
from callgate.router.flight import Ending
from callgate.router.local import CURRENT, Reading

try:
    from fastmcp.exceptions import ToolError
    from fastmcp.server.middleware import Middleware
    from fastmcp.server.providers.addressing import parse_hashed_backend_name
    from fastmcp.server.providers.proxy import ProxyTool
    from fastmcp.tools import FunctionTool, ToolResult
    from mcp_types import TextContent

    from callgate.mounts.mcp_sdk import authenticated
except ImportError as error:
    raise missing_extra(__name__, "fastmcp", "fastmcp") from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastmcp.server.middleware import CallNext, MiddlewareContext
    from fastmcp.tools import Tool
    from mcp_types import CallToolRequestParams, ListToolsRequest

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router

LOOK_UP_S = 5.0
"""A proxy asks its backend; the call itself would ask the same once more."""


def token_caller(context: MiddlewareContext[Any]) -> str | None:
    """Return whom the access token is for: its subject, else its client.

    What a client says of itself (`clientInfo`) is no proof of anything and is not used.
    """
    known = context.fastmcp_context
    request = None if known is None else known.request_context
    return authenticated(None if request is None else request.request)


class CallRefusedError(ToolError):
    """The gate refused a call that a program made; `error` is the gate's own."""

    def __init__(self, error: CallgateError) -> None:
        super().__init__(readable(error))
        self.error = error


class CallgateMiddleware(Middleware):
    """Puts every tool call under the router, as a tool of `agent`; hides what is denied.

    `caller` is a name or a function of the `MiddlewareContext`.
    """

    def __init__(self, router: Router, *, agent: str, caller: Caller = token_caller) -> None:
        self._mount = Mount(router, agent, caller)
        self._coroutine: dict[str, bool] = {}
        """Tools that the server has → whether cancelling one is all it takes to end it."""

    async def on_call_tool(
        self,
        context: MiddlewareContext[CallToolRequestParams],
        call_next: CallNext[CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        mount = self._mount
        message = context.message
        name = message.name
        nested = CURRENT.get() is not None
        known = context.fastmcp_context
        request = None if known is None else known.request_context  # if a client calls
        refuse = _refuse_program if nested or request is None else _refuse_client
        try:
            coroutine = self._coroutine.get(name)
            if coroutine is None:
                name, coroutine = await self._meet(name, context)
            # A call from inside another one has the other's request, and not its timeout.
            meta = None if nested or request is None else request.meta
            timeout_ms = meta.get(TIMEOUT_MS) if meta else None
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
            return refuse(mount.internal_error(error))
        return await mount.run(
            name,
            message.arguments,
            context,
            partial(call_next, context),
            refuse,
            timeout_ms=timeout_ms,
            thread=not coroutine,
            reading=_READING,
        )

    async def on_list_tools(
        self,
        context: MiddlewareContext[ListToolsRequest],
        call_next: CallNext[ListToolsRequest, Sequence[Tool]],
    ) -> Sequence[Tool]:
        tools = await call_next(context)
        for tool in tools:
            self._note(tool)
        self._mount.declare(tool.name for tool in tools)
        return [tool for tool in tools if self._mount.offers(tool.name, context)]

    async def _meet(self, name: str, context: MiddlewareContext[Any]) -> tuple[str, bool]:
        """Look a tool up; return the name that counts, and whether a cancel ends its work."""
        if context.fastmcp_context is None:
            return name, False
        server = context.fastmcp_context.fastmcp
        hashed = parse_hashed_backend_name(name)
        try:
            async with asyncio.timeout(LOOK_UP_S):
                tool = await server.get_tool(name)
                if tool is None and hashed is not None:
                    tool = await server.get_tool_by_hash(*hashed)
        except Exception:
            if hashed is not None:
                raise  # its own name cannot be known
            tool = None  # the call meets the same, and the runtime says so in its own way
        if tool is None:
            return name, False
        self._mount.declare([tool.name])
        return tool.name, self._note(tool)

    def _note(self, tool: Tool) -> bool:
        coroutine = isinstance(tool, ProxyTool) or (
            isinstance(tool, FunctionTool) and iscoroutinefunction(tool.fn)
        )
        if len(self._coroutine) < MAX_DECLARED:
            self._coroutine[tool.name] = coroutine
        return coroutine


def _ending(result: ToolResult) -> Ending:
    # An extension may answer with something else than a ToolResult.
    is_error = getattr(result, "is_error", False)
    return Ending.FAILED if is_error is True else Ending.COMPLETED


_READING = Reading(_ending, json_bytes)


def _refuse_client(error: CallgateError) -> ToolResult:
    content = [TextContent(type="text", text=readable(error))]
    return ToolResult(content=content, meta=error_metadata(error), is_error=True)


def _refuse_program(error: CallgateError) -> NoReturn:
    raise CallRefusedError(error)
