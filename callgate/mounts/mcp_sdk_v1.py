"""The MCP Python SDK 1.x, which has no middlewares: the server's handlers are wrapped in place.

    guard_server(router, server, agent="web")

Theory of operation. A server of 1.x keeps its handlers in a mapping by type of request.
`guard_server` puts one in its place that wraps the handlers of `tools/call` and `tools/list`,
those that are there and those that are registered later, so that the order in which a program
is written cannot leave a tool unguarded.

1.x runs sync tools on the event loop itself: nothing else runs until one has ended, no deadline
and no cancel, so none is enforced on them. Make them `async`, or move them into a thread.
"""

from __future__ import annotations

from collections import UserDict
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from callgate.mounts.common import Mount, error_metadata, missing_extra, readable, token_subject
from callgate.mounts.sizes import json_bytes
from callgate.protocol.mcp import TIMEOUT_MS
from callgate.router.flight import Ending
from callgate.router.local import Reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router

    Handler = Callable[[Any], Awaitable[Any]]

# By name, and typed as Any: where types are checked, the other era of the same package stands.
try:
    types: Any = import_module("mcp.types")
    _request_context: Any = import_module("mcp.server.lowlevel.server").request_ctx
    _authenticated: Any = import_module("mcp.server.auth.middleware.bearer_auth").AuthenticatedUser
    _access_token: Any = import_module("mcp.server.auth.middleware.auth_context").get_access_token
except (ImportError, AttributeError) as error:
    raise missing_extra(__name__, "mcp", "mcp-v1") from error


def token_caller(context: Any) -> str | None:
    """Return whom the access token is for: its subject, else its client.

    What a client says of itself (`clientInfo`) is no proof of anything and is not used.
    """
    user = getattr(getattr(context, "request", None), "scope", {}).get("user")
    return token_subject(user.access_token if isinstance(user, _authenticated) else _access_token())


def guard_server(router: Router, server: Any, *, agent: str, caller: Caller = token_caller) -> None:
    """Put every tool call of a server under the router; hide what is denied.

    `server` is a `FastMCP` or a low-level `Server`; `caller` is a name or a function of the
    SDK's `RequestContext`, which is None when a program calls without a request.
    """
    low_level = getattr(server, "_mcp_server", server)
    low_level.request_handlers = _Handlers(Mount(router, agent, caller), low_level.request_handlers)


class _Handlers(UserDict[Any, Any]):
    """A server's handlers, those of tools under the gate.

    No `dict`: every way to put something into a `UserDict` ends in `__setitem__`.
    """

    def __init__(self, mount: Mount, handlers: Mapping[Any, Handler]) -> None:
        self._mount = mount
        self._list: Handler | None = None
        super().__init__(handlers)

    def __setitem__(self, kind: Any, handler: Handler) -> None:
        if kind is types.CallToolRequest:
            handler = partial(self._call, handler)
        elif kind is types.ListToolsRequest:
            self._list = handler
            handler = partial(self._offered, handler)
        super().__setitem__(kind, handler)

    async def _call(self, handler: Handler, request: Any) -> Any:
        mount = self._mount
        try:
            if getattr(request.params, "task", None) is not None and not self._takes_tasks():
                return _refuse(mount.deny(request.params.name, _request_context.get(None)))
            await mount.learn(self._names)
            meta = request.params.meta
            timeout_ms = None if meta is None else (meta.model_extra or {}).get(TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
            return _refuse(mount.internal_error(error))
        return await mount.run(
            request.params.name,
            request.params.arguments,
            _request_context.get(None),
            partial(handler, request),
            _refuse,
            timeout_ms=timeout_ms,
            reading=_READING,
        )

    def _takes_tasks(self) -> bool:
        """Return True if calls may start work that outlives them."""
        return self._mount.router.policy.gate(self._mount.agent).tasks == "pass"

    async def _names(self) -> Iterable[str]:
        if self._list is None:
            return ()
        result = await self._list(types.ListToolsRequest(method="tools/list"))
        return [tool.name for tool in result.root.tools]

    async def _offered(self, handler: Handler, request: Any) -> Any:
        result = await handler(request)
        listed = result.root
        self._mount.declare(tool.name for tool in listed.tools)
        context = _request_context.get(None)
        kept = [tool for tool in listed.tools if self._mount.offers(tool.name, context)]
        return types.ServerResult(listed.model_copy(update={"tools": kept}))


def _ending(result: Any) -> Ending:
    return Ending.FAILED if getattr(result.root, "isError", False) is True else Ending.COMPLETED


_READING = Reading(_ending, json_bytes)


def _refuse(error: CallgateError) -> Any:
    content = [types.TextContent(type="text", text=readable(error))]
    return types.ServerResult(
        types.CallToolResult(content=content, isError=True, _meta=error_metadata(error))
    )
