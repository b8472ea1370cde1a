"""LangChain 1 and LangGraph: a middleware for `create_agent`, or a wrapper for any `ToolNode`.

    agent = create_agent(model, tools, middleware=[CallgateMiddleware(router, agent="web")])

    gate = CallgateMiddleware(router, agent="web")
    ToolNode(tools, wrap_tool_call=gate.wrap_tool_call, awrap_tool_call=gate.awrap_tool_call)

Theory of operation. Both ways of a tool call are wrapped. `ainvoke` runs the tool in the agent's
own task, on the router's loop. `invoke` has no loop: the call is carried to the router's, which
must be running in another thread, and the tool runs in a thread that the router gives it. Either
way a refusal is a `ToolMessage` with `status="error"`: text for the model, the structure in its
`artifact`, which no model sees. What a tool raises passes as it is, so that interrupts and other
`GraphBubbleUp`s reach the graph.

Tools that the policy denies are not offered to the model, if it denies any when the middleware is
made; one that a later policy denies is refused only.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from callgate.mounts.common import error_metadata, missing_extra, readable, user_id
from callgate.mounts.sizes import messages_bytes
from callgate.mounts.threads import RuntimeMount, denies
from callgate.router.flight import Ending
from callgate.router.local import Reading

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import BaseTool, StructuredTool, Tool
    from langgraph.config import get_config
    from langgraph.errors import GraphBubbleUp
    from langgraph.types import Command, TracePolicy
except ImportError as error:
    raise missing_extra(__name__, "langchain", "langchain") from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from langchain.agents.middleware import ModelRequest, ModelResponse
    from langchain.tools.tool_node import ToolCallRequest

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router

    Answer = ToolMessage | Command[Any]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

_AUTHENTICATED = "langgraph_auth_user_id"
"""Where LangGraph's server puts the user that it has authenticated."""
_OF_FUNCTIONS = (StructuredTool, Tool)


def user_caller(runtime: Any) -> str | None:
    """Return the user that LangGraph's server authenticated, else the context's `user_id`.

    The context is what the program passed as `context=`: an object or a mapping; else
    `user_id` under `configurable` in its `config=`.
    """
    config = getattr(runtime, "config", None) or get_config()
    configurable = config.get("configurable", {})
    user = (
        configurable.get(_AUTHENTICATED) or user_id(runtime.context) or configurable.get("user_id")
    )
    return None if user is None else str(user)


def _nothing(_: Any) -> dict[str, Any]:
    return {}


class _Signed(Generic[P, R]):
    """A method that carries its signature: LangSmith asks for it on every call.

    To make one takes 20 µs in the middle of a step, and to bind the one of a plain method 8.
    """

    def __init__(self, hook: Callable[Concatenate[Any, P], R]) -> None:
        self._hook = hook
        signature = inspect.signature(hook)
        _, *parameters = signature.parameters.values()
        self._signature = signature.replace(parameters=parameters)

    def __get__(self, instance: object, owner: type) -> Callable[P, R]:
        bound = partial(self._hook, instance)
        bound.__signature__ = self._signature  # type: ignore[attr-defined]  # any partial may have
        return bound


class CallgateMiddleware(AgentMiddleware[Any, Any, Any]):
    """Puts every tool call under the router, as a tool of `agent`; hides what is denied.

    `caller` is a name or a function of LangGraph's `Runtime` (during a tool call, a
    `ToolRuntime`). Two gates in one agent need two names: `name`, or else their `agent`s differ.
    """

    trace_policy = TracePolicy(process_inputs=_nothing, process_outputs=_nothing)
    """The hooks' own spans say nothing that the tool's and the model's do not."""

    def __new__(cls, router: Router, *, agent: str, **_: Any) -> Self:
        # A hook on the model costs as much again, so that it is there only if it has work to do.
        kind: Any = _Hiding if cls is CallgateMiddleware and denies(router, agent) else cls
        made: Self = super().__new__(kind)
        return made

    def __init__(
        self,
        router: Router,
        *,
        agent: str,
        caller: Caller = user_caller,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._mount = RuntimeMount(router, agent, caller)
        self._name = name or f"CallgateMiddleware({agent})"

    @property
    def name(self) -> str:
        """The name in this agent's graph, where each middleware needs one of its own."""
        return self._name

    # A plain function that returns a coroutine: LangChain puts LangSmith around each hook, which
    # spends two threads and a task on every call of an `async def`, traced or not.
    @_Signed
    def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Coroutine[Any, Any, Answer]:
        call = request.tool_call
        return self._mount.run_task(
            call["name"],
            call["args"],
            request.runtime,
            partial(handler, request),
            partial(_refuse, request),
            listed=request.tool is not None,
            in_thread=partial(_in_thread, request.tool),
            reading=_READING,
        )

    @_Signed
    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]
    ) -> Answer:
        call = request.tool_call
        answer: Answer = self._mount.run_sync(
            call["name"],
            call["args"],
            request.runtime,
            partial(handler, request),
            partial(_refuse, request),
            listed=request.tool is not None,
            reading=_READING,
        )
        return answer


class _Hiding(CallgateMiddleware):
    """For a policy that denies some tools: they are not offered to the model."""

    @_Signed
    def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> Coroutine[Any, Any, ModelResponse[Any]]:
        return _awaited(handler(self._offered(request)))

    @_Signed
    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        return handler(self._offered(request))

    def _offered(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Return the request without denied tools; what a provider runs is not ours."""
        offers = partial(self._mount.offers, context=request.runtime)
        kept = [
            tool for tool in request.tools if not isinstance(tool, BaseTool) or offers(tool.name)
        ]
        return request if len(kept) == len(request.tools) else request.override(tools=kept)


async def _awaited(response: Awaitable[T]) -> T:
    return await response


def _in_thread(tool: BaseTool | None) -> bool:
    """Return True if LangChain gives the tool a thread, for want of a coroutine."""
    if tool is None:
        return False
    if isinstance(tool, _OF_FUNCTIONS):
        return tool.coroutine is None
    return type(tool)._arun is BaseTool._arun  # noqa: SLF001  # how a tool says that it is async


def _ending(answer: Any) -> Ending:
    failed = isinstance(answer, ToolMessage) and answer.status == "error"
    return Ending.FAILED if failed else Ending.COMPLETED


def _measure(answer: Any) -> int:
    """Return the bytes of the messages in an answer; an artifact is not for the model."""
    if not isinstance(answer, Command):
        return messages_bytes(answer)
    updates = answer._update_as_tuples()  # noqa: SLF001  # how LangGraph itself reads one
    return messages_bytes([value for _, value in updates])


_READING = Reading(_ending, _measure, (GraphBubbleUp,))


def _refuse(request: ToolCallRequest, error: CallgateError) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(
        content=readable(error),
        artifact=error_metadata(error),
        name=call["name"],
        tool_call_id=call["id"],
        status="error",
    )
