"""The MCP Python SDK 2.x: a middleware for `MCPServer` and the low-level `Server`.

    server = MCPServer("web", middleware=[callgate_middleware(router, agent="web")])

Theory of operation. The SDK's middlewares see every inbound message before it is validated; this
one acts on `tools/call` and `tools/list` and passes the rest on. A refusal is a result and no
error, in the words of the connection's era: text for the model, the structure in `_meta`.

The SDK runs sync tools in threads and does not tell a middleware which those are, so each call is
a task of its own: its caller is answered at the deadline, and its slot is free when the work has
really ended. A server whose tools are all async can do without: `threads=False`. Before the first
call the server is asked for its tools, so that the audit can name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from callgate.errors import InvalidInput
from callgate.mounts.common import Mount, error_metadata, missing_extra, readable, token_subject
from callgate.mounts.sizes import json_bytes
from callgate.protocol.mcp import CALL, TIMEOUT_MS
from callgate.router.flight import Ending
from callgate.router.local import Reading

try:
    from mcp.server.auth.middleware.auth_context import get_access_token
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS
except ImportError as error:
    raise missing_extra(__name__, "mcp", "mcp") from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router

    Context = ServerRequestContext[Any, Any]

LIST = "tools/list"


def token_caller(context: Context) -> str | None:
    """Return whom the access token is for: its subject, else its client.

    What a client says of itself (`clientInfo`) is no proof of anything and is not used.
    """
    return authenticated(context.request)


def authenticated(request: Any) -> str | None:
    """Return whom the access token of an HTTP request, or of its session, is for.

    The request's own token comes first: a session may be older than it.
    """
    user = None if request is None else request.scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else get_access_token()
    return token_subject(token)


def callgate_middleware(
    router: Router, *, agent: str, caller: Caller = token_caller, threads: bool = True
) -> ServerMiddleware[Any]:
    """Put every tool call under the router, as a tool of `agent`; hide what is denied.

    `caller` is a name or a function of the `ServerRequestContext`. `threads` says whether a tool
    may be sync.
    """
    mount = Mount(router, agent, caller)

    async def middleware(ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method == CALL:
            return await _call(mount, ctx, call_next, threads=threads)
        if ctx.method == LIST:
            return _offered(mount, ctx, await call_next(ctx))
        return await call_next(ctx)

    return middleware


async def _call(
    mount: Mount, context: Context, call_next: CallNext, *, threads: bool
) -> HandlerResult:
    refuse = partial(_refuse, context)
    try:
        params = context.params or {}
        name = params.get("name")
        if not isinstance(name, str):
            return refuse(InvalidInput(agent=mount.agent))
        await mount.learn(partial(_names, context, call_next))
        timeout_ms: Any = context.meta.get(TIMEOUT_MS) if context.meta else None
    except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
        return refuse(mount.internal_error(error))
    return await mount.run(
        name,
        params.get("arguments"),
        context,
        partial(call_next, context),
        refuse,
        timeout_ms=timeout_ms,
        thread=threads,
        reading=_READING,
    )


async def _names(context: Context, call_next: CallNext) -> Iterable[str]:
    """Ask the rest of the chain for the tools, on behalf of whoever calls one."""
    params = None if context.meta is None else {"_meta": context.meta}
    return _by_name(await call_next(replace(context, method=LIST, params=params)))


def _offered(mount: Mount, context: Context, result: HandlerResult) -> HandlerResult:
    """Return a list of tools without those that are denied."""
    tools = _by_name(result)
    mount.declare(tools)
    kept = [tool for name, tool in tools.items() if mount.offers(name, context)]
    if len(kept) == len(tools):
        return result
    if isinstance(result, dict):
        return {**result, "tools": kept}
    return None if result is None else result.model_copy(update={"tools": kept})


def _by_name(result: HandlerResult) -> dict[str, Any]:
    """Return the tools by name: the chain gives a mapping, a middleware perhaps a model."""
    if isinstance(result, Mapping):
        return {tool["name"]: tool for tool in result.get("tools", ())}
    return {tool.name: tool for tool in getattr(result, "tools", ())}


def _ending(result: HandlerResult) -> Ending:
    if isinstance(result, Mapping):
        is_error = result.get("isError")
    else:
        is_error = getattr(result, "is_error", False)
    return Ending.FAILED if is_error is True else Ending.COMPLETED


_READING = Reading(_ending, json_bytes)


def _refuse(context: Context, error: CallgateError) -> dict[str, Any]:
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": readable(error)}],
        "isError": True,
        "_meta": error_metadata(error),
    }
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        result["resultType"] = "complete"
    return result
