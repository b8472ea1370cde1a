"""Google's Agent Development Kit: a plugin for a runner, over all of its agents.

    InMemoryRunner(root_agent, plugins=[CallgatePlugin(router)])

Theory of operation. A plugin is told before and after a tool runs, but cannot be around it, so it
could not end one. Therefore `before_tool_callback` gives the tool object another `run_async`,
once, and notes that this very call is the plugin's; what runs is the tool under the router, after
the agent's own callbacks and confirmations. A call that no plugin noted (the same tool in another
runner) runs as it did. A refusal is `{"error": text}`, ADK's own way.

Denied tools are not declared to the model; a call made in spite of that is refused.

ADK runs sync functions on the event loop itself, unless the run has a `tool_thread_pool_config`:
without one nothing else runs until they have ended, no deadline and no cancel. A tool that
streams in a live session is counted and rated; its stream is not timed.
"""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from callgate.mounts.common import MAX_DECLARED, missing_extra, readable
from callgate.mounts.sizes import json_bytes
from callgate.mounts.threads import RuntimeMount
from callgate.router.flight import Ending
from callgate.router.local import Reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router

# By name, and typed as Any: it needs an older OpenTelemetry than the rest, so that it is not there
# where types are checked.
try:
    _plugin: Any = import_module("google.adk.plugins.base_plugin").BasePlugin
except ImportError as error:
    raise missing_extra(__name__, "google-adk", "google-adk") from error


def user_caller(context: Any) -> str | None:
    """Return the user whose session it is."""
    user: str | None = context.user_id
    return user


class CallgatePlugin(_plugin):  # type: ignore[misc]  # see above
    """Puts every tool call of a runner under the router.

    The tools are those of `agent`, or else of the ADK agent that calls, by its name. `caller` is
    a name or a function of ADK's `Context`.
    """

    def __init__(
        self,
        router: Router,
        *,
        agent: str | None = None,
        caller: Caller = user_caller,
        name: str = "callgate",
    ) -> None:
        super().__init__(name)
        self._router = router
        self._agent = agent
        self._caller = caller
        self._mounts: dict[str, RuntimeMount] = {}
        self._noted: WeakKeyDictionary[Any, tuple[Any, RuntimeMount]] = WeakKeyDictionary()
        """Contexts of calls that are this plugin's → the tool and where it is mounted."""

    async def before_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any
    ) -> dict[str, Any] | None:
        """Put the tool under the router, if it is not yet, and note that the call is ours."""
        del tool_args
        mount = self._mount(tool_context)
        try:
            if not _is_guarded(tool, self):
                tool.run_async = _Guarded(self, tool.run_async, tool)
            self._noted[tool_context] = tool, mount
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
            return _refuse(mount.internal_error(error))
        return None

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Leave out the declarations of denied tools; the tools stay, to be refused."""
        mount = self._mount(callback_context)
        if not mount.denies():
            return
        entries = llm_request.config.tools or []
        shown = []
        for entry in entries:
            declared = getattr(entry, "function_declarations", None) or []
            kept = [each for each in declared if mount.offers(each.name, callback_context)]
            if len(kept) == len(declared):
                shown.append(entry)
            elif kept:
                shown.append(entry.model_copy(update={"function_declarations": kept}))
        llm_request.config.tools = shown or None

    def of(self, tool_context: Any) -> tuple[Any, RuntimeMount] | None:
        """Return the tool that is to run, and its mount, if the call is this plugin's."""
        return self._noted.get(tool_context)

    def _mount(self, context: Any) -> RuntimeMount:
        agent = self._agent or context.agent_name
        mount = self._mounts.get(agent)
        if mount is None:
            mount = RuntimeMount(self._router, agent, self._caller)
            if len(self._mounts) < MAX_DECLARED:
                self._mounts[agent] = mount
        return mount


class _Guarded:
    """The `run_async` of a tool object."""

    __slots__ = ("_tool", "plugin", "run")

    def __init__(
        self, plugin: CallgatePlugin, run: Callable[..., Awaitable[Any]], tool: Any
    ) -> None:
        self.plugin = plugin
        self.run = run
        self._tool = tool

    async def __call__(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        noted = self.plugin.of(tool_context)
        if noted is None:
            return await self.run(args=args, tool_context=tool_context)
        tool, mount = noted
        # A copy of a tool, as a prefix makes one, brings this object along; the work is its own.
        run = self.run if tool is self._tool else partial(type(tool).run_async, tool)
        return await mount.run_task(
            tool.name,
            args,
            tool_context,
            partial(run, args=args, tool_context=tool_context),
            _refuse,
            in_thread=partial(_in_thread, tool, tool_context),
            reading=Reading(partial(_ending, tool_context), json_bytes),
        )


def _is_guarded(tool: Any, plugin: CallgatePlugin) -> bool:
    """Return True if the tool is under this plugin already, perhaps inside of others."""
    run = vars(tool).get("run_async")
    while isinstance(run, _Guarded):
        if run.plugin is plugin:
            return True
        run = run.run
    return False


def _in_thread(tool: Any, tool_context: Any) -> bool:
    """Return True if ADK gives the function a thread."""
    function = getattr(tool, "func", None)
    pool = getattr(tool_context.run_config, "tool_thread_pool_config", None)
    if function is None or pool is None:
        return False
    function = inspect.unwrap(function)
    return not any(
        is_async(each)
        for is_async in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        for each in (function, getattr(function, "__call__", None))  # noqa: B004  # an object
    )


def _ending(tool_context: Any, result: Any) -> Ending:
    # ADK answers with an error when it has asked a person.
    call_id, actions = tool_context.function_call_id, tool_context.actions
    if call_id in actions.requested_tool_confirmations or call_id in actions.requested_auth_configs:
        return Ending.SUSPENDED
    failed = isinstance(result, dict) and bool(result.get("error"))
    return Ending.FAILED if failed else Ending.COMPLETED


def _refuse(error: CallgateError) -> dict[str, Any]:
    return {"error": readable(error)}
