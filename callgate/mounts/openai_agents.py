"""The OpenAI Agents SDK: function tools, and an agent's tools, under the router.

    tools = guard_tools(router, [search, fetch], agent="web")
    agent = guard_agent(router, agent)

Theory of operation. The SDK's guardrails can refuse a call but not end one, so each tool is
copied with another invoker. What the SDK makes from a Python function has its own invoker around
the function, which turns errors into messages and prepares arguments for approval; the gate goes
inside that one, so that both still work and the audit sees a failure as a failure. A refusal is
the tool's output, a `Refusal`: text for the model, the error in it for programs. Where a tool has
an output schema, which a text does not fit, a guardrail rejects the output in its favour.

A tool that the policy denies is disabled, so that it is not offered to the model, if the policy
denies any when the tools are guarded; one that a later policy denies is refused only. Tools that
run at OpenAI, or in the SDK itself (shell, computer, patches), never pass here and are named in an
error, unless `allow_unguarded` says that they may stay. So are MCP servers of an agent: put
`callgate run` in front of them.
"""

from __future__ import annotations

import copy
from functools import partial, wraps
from inspect import isawaitable
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from callgate.mounts.common import missing_extra, readable, user_id
from callgate.mounts.sizes import json_bytes, text_bytes, value_bytes
from callgate.mounts.threads import RuntimeMount
from callgate.router.flight import Ending
from callgate.router.local import Reading

try:
    from agents import (
        Agent,
        FunctionTool,
        ItemHelpers,
        ToolGuardrailFunctionOutput,
        agent_tool_state,
        tool_output_guardrail,
    )
except ImportError as error:
    raise missing_extra(__name__, "openai-agents", "openai-agents") from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from agents import AgentBase, RunContextWrapper, Tool, ToolOutputGuardrailData
    from agents.tool_context import ToolContext

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router

    Invoker = Callable[[ToolContext[Any], str], Awaitable[Any]]

_SYNC_MARKER = "__agents_sync_function_tool__"
_INSIDE = "_invoke_tool_impl"
"""Where the SDK's own invoker keeps what it invokes; without it, the gate goes around it all."""


TIMER_S = 0.05
"""How much of a tool's own timeout may have passed before the gate saw the call."""


def user_caller(context: RunContextWrapper[Any]) -> str | None:
    """Return `user_id` of the run's context, an object or a mapping; None if it has none."""
    return user_id(context.context)


class Refusal(str):
    """The output of a call that the gate refused; `error` is the gate's own."""

    __slots__ = ("error",)

    error: CallgateError

    @classmethod
    def of(cls, error: CallgateError) -> Refusal:
        """Make the text of an error, with the error in it."""
        refusal = cls(readable(error))
        refusal.error = error
        return refusal


@tool_output_guardrail
def _reject_refusal(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Reject the output in favour of a refusal, which no output schema fits."""
    if isinstance(data.output, Refusal):
        return ToolGuardrailFunctionOutput.reject_content(data.output)
    return ToolGuardrailFunctionOutput.allow()


def guard_tools(
    router: Router,
    tools: Iterable[Tool],
    *,
    agent: str,
    caller: Caller = user_caller,
    allow_unguarded: bool = False,
) -> list[Tool]:
    """Return copies of tools that are under the router, as tools of `agent`.

    `caller` is a name or a function of the SDK's `RunContextWrapper` (during a call, a
    `ToolContext`).
    """
    mount = RuntimeMount(router, agent, caller)
    found = list(tools)
    foreign = sorted({type(tool).__name__ for tool in found if not isinstance(tool, FunctionTool)})
    if foreign and not allow_unguarded:
        raise ValueError(
            f"{', '.join(foreign)} cannot be guarded: it does not run in this process as a"
            " function; leave it out, or pass allow_unguarded=True"
        )
    mount.declare(tool.name for tool in found if isinstance(tool, FunctionTool))
    return [_guard(mount, tool) if isinstance(tool, FunctionTool) else tool for tool in found]


def guard_agent(
    router: Router,
    agent_object: Agent[Any],
    *,
    agent: str | None = None,
    caller: Caller = user_caller,
    allow_unguarded: bool = False,
) -> Agent[Any]:
    """Return a copy of an agent whose tools are under the router, as `agent`'s or its own.

    Agents that it hands over to are other agents: guard each.
    """
    if agent_object.mcp_servers and not allow_unguarded:
        raise ValueError(
            "tools of MCP servers cannot be guarded here: put `callgate run` in front of the"
            " servers, or pass allow_unguarded=True"
        )
    tools = guard_tools(
        router,
        agent_object.tools,
        agent=agent or agent_object.name,
        caller=caller,
        allow_unguarded=allow_unguarded,
    )
    return agent_object.clone(tools=tools)


def _guard(mount: RuntimeMount, tool: FunctionTool) -> FunctionTool:
    copied = copy.copy(tool)
    invoker = copied.on_invoke_tool
    guarded = partial(_invoke, mount, tool, partial(getattr, invoker, _SYNC_MARKER, False))
    inside = getattr(invoker, _INSIDE, None)
    if inside is None:
        copied.on_invoke_tool = partial(guarded, invoker)
    else:
        copied.on_invoke_tool = copy.copy(invoker)
        # `wraps` also takes along how the SDK prepares arguments for approval.
        setattr(copied.on_invoke_tool, _INSIDE, wraps(inside)(partial(guarded, inside)))
    if tool.output_json_schema is not None:
        copied.tool_output_guardrails = [*(tool.tool_output_guardrails or ()), _reject_refusal]
    if mount.denies():
        copied.is_enabled = partial(_is_enabled, mount, tool)
    return copied


async def _invoke(
    mount: RuntimeMount,
    tool: FunctionTool,
    in_thread: Callable[[], bool],
    invoker: Invoker,
    context: ToolContext[Any],
    arguments: str,
) -> Any:
    timeout_s = tool.timeout_seconds
    return await mount.run_task(
        tool.name,
        _parsed(arguments),
        context,
        partial(invoker, context, arguments),
        Refusal.of,
        in_thread=in_thread,
        reading=Reading(
            partial(_ending, context),
            partial(_measure, tool),
            canceled=None if timeout_s is None else partial(_canceled, monotonic(), timeout_s),
        ),
    )


def _ending(context: ToolContext[Any], output: Any) -> Ending:
    if isinstance(output, Refusal):
        return Ending.FAILED  # of another gate, inside of this one
    if output is None and context.tool_call is not None:  # so returns an agent whose run waits
        scope = agent_tool_state.get_agent_tool_state_scope(context)
        run = agent_tool_state.peek_agent_tool_run_result(context.tool_call, scope_id=scope)
        if run is not None and run.interruptions:
            return Ending.SUSPENDED
    return Ending.COMPLETED


def _canceled(begun_s: float, timeout_s: float) -> Ending:
    """Tell the SDK's own timeout, which cancels a tool's task, from a cancel of the run."""
    early_s = min(TIMER_S, timeout_s / 10)
    return Ending.TIMED_OUT if monotonic() - begun_s >= timeout_s - early_s else Ending.CANCELLED


def _measure(tool: FunctionTool, output: Any) -> int:
    """Return the bytes of an output as the SDK writes it for the model."""
    if isinstance(output, str):
        return text_bytes(output)
    if tool.output_json_schema is not None:
        return json_bytes(output)
    return value_bytes(ItemHelpers._convert_tool_output(output))  # noqa: SLF001  # the SDK's own


async def _is_enabled(
    mount: RuntimeMount, tool: FunctionTool, context: RunContextWrapper[Any], agent: AgentBase[Any]
) -> bool:
    if not mount.offers(tool.name, context):
        return False
    enabled = tool.is_enabled
    if isinstance(enabled, bool):
        return enabled
    answer = enabled(context, agent)
    return bool(await answer if isawaitable(answer) else answer)


def _parsed(arguments: str) -> Mapping[str, Any]:
    """Parse arguments, for size limits only; the tool reports what cannot be parsed."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"": arguments}
