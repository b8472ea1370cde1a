"""CrewAI: a hook before and a hook after each tool of every crew in this process.

    uninstall = install(router, agent="crew")

Theory of operation. CrewAI runs tools in threads of its own; its hooks are plain functions,
which are carried to the router's loop, in another thread. A call holds its places from one hook
to the other. **A hook cannot end a tool**: when the deadline passes the audit says `timed_out`,
and the tool goes on and its answer reaches the model.

CrewAI runs a tool whose hook fails, unless the failure is `HookAborted`: so that is what every
refusal and every fault of ours becomes. It then shows the model a fixed text, but runs the hooks
after the tool also then; ours puts the reason in its place.

CrewAI does not tell the hooks of one call that they belong together. They get the same dict of
arguments, so its identity is the call's. Nor does it say whether a tool failed: the audit's
`failed` goes by the texts that CrewAI writes.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from callgate.errors import InternalError
from callgate.mounts.common import missing_extra, readable
from callgate.mounts.hook_calls import HOLD_S, HookCalls
from callgate.mounts.sizes import value_bytes
from callgate.mounts.threads import RuntimeMount, on_loop
from callgate.router.flight import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router

# By name, and typed as Any: it needs the other era of MCP than the rest, so that it is not there
# where types are checked.
try:
    _tool_hooks: Any = import_module("crewai.hooks.tool_hooks")
    _aborted: Any = import_module("crewai.hooks.dispatch").HookAborted
    _failure: Any = import_module("crewai.tools.tool_failure").ToolFailure
except ImportError as error:
    raise missing_extra(__name__, "crewai", "crewai") from error

_BLOCKED = "Tool execution blocked by hook."
_FAILED = ("Error executing tool", "I encountered an error while trying to use the tool.")


def role_caller(context: Any) -> str | None:
    """Return the role of the agent that calls; None outside of one."""
    role = getattr(context.agent, "role", None)
    return None if role is None else str(role).strip()


def install(
    router: Router, *, agent: str, caller: Caller = role_caller, hold_s: float = HOLD_S
) -> Callable[[], None]:
    """Put each tool call of every crew under the router; return a function that undoes it.

    `caller` is a name or a function of CrewAI's `ToolCallHookContext`. Slots are held for
    `hold_s` at most, if CrewAI does not say that a tool has ended.
    """
    hooks = _Hooks(RuntimeMount(router, agent, caller), hold_s)
    _tool_hooks.register_before_tool_call_hook(hooks.before)
    _tool_hooks.register_after_tool_call_hook(hooks.after)

    def uninstall() -> None:
        _tool_hooks.unregister_before_tool_call_hook(hooks.before)
        _tool_hooks.unregister_after_tool_call_hook(hooks.after)

    return uninstall


class _Key:
    """A call, by the identity of its arguments; keeps them, so that the identity stays unique."""

    __slots__ = ("_arguments",)

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._arguments is other._arguments

    def __hash__(self) -> int:
        return id(self._arguments)


class _Hooks:
    def __init__(self, mount: RuntimeMount, hold_s: float) -> None:
        self._mount = mount
        self._calls: HookCalls[_Key] = HookCalls(mount, hold_s)
        self._here = threading.local()
        """The last refusal of a thread, and whose it is: CrewAI runs the other hook at once."""

    def before(self, context: Any) -> None:
        """Called before a tool runs: admit the call, or abort it."""
        text = readable(InternalError(agent=self._mount.agent))
        with suppress(Exception):  # or CrewAI would run the tool
            refused = self._on_loop(partial(self._enter, context))
            if refused is None:
                return
            text = readable(refused)
        self._here.refused = context.tool_input, text
        raise _aborted(text, source="callgate")

    def after(self, context: Any) -> str | None:
        """Called after a tool: settle the call, or return why it was aborted."""
        whose, text = getattr(self._here, "refused", (None, None))
        if whose is context.tool_input:
            self._here.refused = None, None
            return text
        text = readable(InternalError(agent=self._mount.agent))
        with suppress(Exception):  # or CrewAI would pass the answer
            withheld = self._on_loop(partial(self._leave, context))
            return None if withheld is None else readable(withheld)
        return text

    def _on_loop(
        self, call: Callable[[], Coroutine[Any, Any, CallgateError | None]]
    ) -> CallgateError | None:
        try:
            return on_loop(self._mount.router, call)
        except Exception as error:  # noqa: BLE001  # CrewAI would run the tool, or pass its answer
            return self._mount.internal_error(error)

    async def _enter(self, context: Any) -> CallgateError | None:
        name = context.tool_name
        if context.tool is not None:
            self._mount.declare((name,))
        return await self._calls.enter(_Key(context.tool_input), name, context.tool_input, context)

    async def _leave(self, context: Any) -> CallgateError | None:
        ending = _ending(context.raw_tool_result)
        return self._calls.leave(_Key(context.tool_input), ending, context.tool_result, value_bytes)


def _ending(result: Any) -> Ending:
    if isinstance(result, _failure):
        return Ending.FAILED
    if isinstance(result, str):
        if result.startswith(_BLOCKED):  # by another hook, after ours let it in
            return Ending.CANCELLED
        if result.lstrip().startswith(_FAILED):
            return Ending.FAILED
    return Ending.COMPLETED
