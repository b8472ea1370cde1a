"""Pydantic AI 2: a capability for an agent's every tool, or a toolset around some of them.

    Agent(model, tools=[...], capabilities=[CallgateCapability(router, agent="web")])
    Agent(model, toolsets=[CallgateToolset(toolset, router, agent="web")])

Theory of operation. The capability wraps a tool's whole execution, the hooks of other
capabilities included; the toolset wraps the tool alone. A refusal is a `ToolFailed`: the model
reads why and no retry is spent, since the same call would be refused again. What a tool raises
passes as it is: `ModelRetry`, `CallDeferred`, `ApprovalRequired` are the runtime's to handle.

Tools that the policy denies are not offered to the model. The capability hides them from the model
only, if the policy denies any when it is made, so that a call made in spite of that is refused and
written down; a toolset can only leave them out, and the runtime answers such a call itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

from callgate.mounts.common import missing_extra, readable, user_id
from callgate.mounts.sizes import text_bytes
from callgate.mounts.threads import RuntimeMount, denies
from callgate.router.local import Reading

try:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
    from pydantic_ai.messages import ToolReturn, tool_return_ta
    from pydantic_ai.tools import AgentDepsT
    from pydantic_ai.toolsets import WrapperToolset
except ImportError as error:
    raise missing_extra(__name__, "pydantic-ai-slim", "pydantic-ai") from error

if TYPE_CHECKING:
    from pydantic_ai import RunContext, ToolDefinition
    from pydantic_ai.capabilities import WrapToolExecuteHandler
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.toolsets import ToolsetTool

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router


def user_caller(context: RunContext[Any]) -> str | None:
    """Return `user_id` of the run's `deps`, an object or a mapping; None if they have none."""
    return user_id(context.deps)


class CallRefusedError(ToolFailed):
    """The gate refused a call; `error` is the gate's own, for hooks that look."""

    def __init__(self, error: CallgateError) -> None:
        super().__init__(readable(error))
        self.error = error


class CallgateCapability(AbstractCapability[AgentDepsT]):
    """Puts every tool call of an agent under the router, as a tool of `agent`.

    `caller` is a name or a function of the `RunContext`.
    """

    def __new__(cls, router: Router, *, agent: str, **_: Any) -> Self:
        # A hook on the model is not free, so that it is there only if it has work to do.
        kind: Any = _Hiding if cls is CallgateCapability and denies(router, agent) else cls
        made: Self = super().__new__(kind)
        return made

    def __init__(self, router: Router, *, agent: str, caller: Caller = user_caller) -> None:
        super().__init__()
        self._mount = RuntimeMount(router, agent, caller)

    @classmethod
    def get_serialization_name(cls) -> None:
        """Return None: a router cannot be written in a spec."""

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        return await self._mount.run_task(
            tool_def.name,
            call.args_as_dict(),
            ctx,
            partial(handler, args),
            _refuse,
            in_thread=partial(_is_sync, ctx, tool_def.name),
            reading=_READING,
        )


class _Hiding(CallgateCapability[AgentDepsT]):
    """For a policy that denies some tools: they are not offered to the model."""

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        parameters = request_context.model_request_parameters
        tools = parameters.function_tools
        kept = [tool for tool in tools if self._mount.offers(tool.name, ctx)]
        if len(kept) == len(tools):
            return request_context
        shown = replace(parameters, function_tools=kept)
        return replace(request_context, model_request_parameters=shown)


@dataclass
class CallgateToolset(WrapperToolset[AgentDepsT]):
    """Puts the tools of another toolset under the router, as tools of `agent`.

    `caller` is a name or a function of the `RunContext`.
    """

    router: Router
    agent: str = field(kw_only=True)
    caller: Caller = field(kw_only=True, default=user_caller)
    mount: Any = field(kw_only=True, default=None, repr=False)
    """The toolset's own; a field so that the copies that a run makes share it."""

    def __post_init__(self) -> None:
        if self.mount is None:
            self.mount = RuntimeMount(self.router, self.agent, self.caller)

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        tools = await super().get_tools(ctx)
        mount: RuntimeMount = self.mount
        mount.declare(tools)
        if not mount.denies():
            return tools
        return {name: tool for name, tool in tools.items() if mount.offers(name, ctx)}

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> Any:
        return await self.mount.run_task(
            name,
            tool_args,
            ctx,
            partial(super().call_tool, name, tool_args, ctx, tool),
            _refuse,
            in_thread=partial(_in_thread, tool),
            reading=_READING,
        )


def _is_sync(context: RunContext[Any], name: str) -> bool:
    manager = context.tool_manager
    tools = None if manager is None else manager.tools
    return tools is not None and _in_thread(tools.get(name))


def _in_thread(tool: ToolsetTool[Any] | None) -> bool:
    """Return True if the tool is a sync function, which the runtime gives a thread."""
    while (source := getattr(tool, "source_tool", None)) is not None:  # of a combined toolset
        tool = source
    return getattr(tool, "is_async", True) is False


def _measure(result: Any) -> int:
    """Return the bytes of a result as Pydantic AI writes it for a model, files included."""
    if isinstance(result, ToolReturn):
        extra = 0 if result.content is None else _measure(result.content)
        return _measure(result.return_value) + extra
    return text_bytes(result) if isinstance(result, str) else len(tool_return_ta.dump_json(result))


_READING = Reading(None, _measure, (CallDeferred, ApprovalRequired))


def _refuse(error: CallgateError) -> NoReturn:
    raise CallRefusedError(error)
