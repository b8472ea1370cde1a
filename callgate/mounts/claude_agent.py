"""The Claude Agent SDK: hooks that Claude Code asks before and tells after each tool.

    ClaudeAgentOptions(hooks=callgate_hooks(router, agent="claude"))

Theory of operation. Claude Code runs the tools, its own and those of MCP servers; the SDK asks
this process before each (`PreToolUse`) and tells it afterwards. So a call can be denied, rated,
counted and written down, and holds its places from one hook to the other; **a hook cannot end a
tool**. When the deadline passes the audit says `timed_out`, and the tool goes on and its answer
reaches the model. Claude Code has timeouts of its own for shell commands.

A refusal is a decision to deny, whose reason the model reads. A call that is let in gets no
decision: Claude's own permissions still apply. If they stop the tool, or somebody interrupts it,
no second hook comes for it. Then the end of all calls of a turn (`PostToolBatch`), the agent's
own end (`Stop`, `SubagentStop`) or its first call for another prompt lets go of it, and at last
`hold_s`.

If anything fails here the call is denied; `on_failure="block"` does the same if this process
does not answer at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from callgate.errors import OutputTooLarge
from callgate.mounts.common import missing_extra, readable
from callgate.mounts.hook_calls import HOLD_S, HookCalls
from callgate.mounts.sizes import json_bytes
from callgate.mounts.threads import RuntimeMount
from callgate.router.flight import Ending

try:
    from claude_agent_sdk import HookMatcher
except ImportError as error:
    raise missing_extra(__name__, "claude-agent-sdk", "claude-agent") from error

if TYPE_CHECKING:
    from claude_agent_sdk.types import HookEvent, HookJSONOutput

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router


_ENCODED = frozenset({"base64", "data"})


def callgate_hooks(
    router: Router, *, agent: str, caller: Caller = None, hold_s: float = HOLD_S
) -> dict[HookEvent, list[HookMatcher]]:
    """Make hooks that put each tool call of a session under the router, as one of `agent`.

    `caller` is a name or a function of the hook's input, which has `session_id` and, of a call
    by a subagent, `agent_id` and `agent_type`. Slots are held for `hold_s` at most.
    """
    hooks = _Hooks(RuntimeMount(router, agent, caller), hold_s)
    made = {
        "PreToolUse": HookMatcher(hooks=[hooks.before], on_failure="block"),
        "PostToolUse": HookMatcher(hooks=[hooks.after]),
        "PostToolUseFailure": HookMatcher(hooks=[hooks.failed]),
        "PostToolBatch": HookMatcher(hooks=[hooks.batch]),  # the SDK's list of names lacks it
        "Stop": HookMatcher(hooks=[hooks.stopped]),
        "SubagentStop": HookMatcher(hooks=[hooks.stopped]),
    }
    return {cast("HookEvent", event): [matcher] for event, matcher in made.items()}


@dataclass(frozen=True, slots=True)
class _Key:
    """A call; whose it is and for which prompt is not part of its identity."""

    session: str
    call: str
    agent: str | None = field(compare=False, default=None)
    prompt: str | None = field(compare=False, default=None)

    @classmethod
    def of(cls, data: Any) -> _Key:
        who = data.get("agent_id"), data.get("prompt_id")
        return cls(data["session_id"], data["tool_use_id"], *who)


class _Hooks:
    def __init__(self, mount: RuntimeMount, hold_s: float) -> None:
        self._mount = mount
        self._calls: HookCalls[_Key] = HookCalls(mount, hold_s)

    async def before(self, data: Any, *_: Any) -> HookJSONOutput:
        """Called before a tool runs: admit the call, or deny it."""
        refused: CallgateError | None
        try:
            key = _Key.of(data)
            # Calls for an earlier prompt are over: an agent works on one after another.
            if key.prompt is not None:
                earlier = [held for held in self._left_by(data) if held.prompt != key.prompt]
                self._end(earlier, Ending.CANCELLED)
            # Claude Code asks for tools that it has, never for a name that a model made up.
            self._mount.declare((data["tool_name"],))
            refused = await self._calls.enter(key, data["tool_name"], data["tool_input"], data)
        except Exception as fault:  # noqa: BLE001  # whatever it is, nothing is let through
            refused = self._mount.internal_error(fault)
        if refused is None:
            return {}
        return {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": readable(refused),
            }
        }

    async def after(self, data: Any, *_: Any) -> HookJSONOutput:
        """Called when a tool has answered: settle the call, or replace what is too large."""
        answer = data.get("tool_response")
        withheld = self._calls.leave(_Key.of(data), Ending.COMPLETED, answer, json_bytes)
        if isinstance(withheld, OutputTooLarge):
            text = readable(withheld)
            return _replaced(data["tool_name"], answer, text, withheld) or _stop(text)
        return {} if withheld is None else _stop(readable(withheld))

    async def failed(self, data: Any, *_: Any) -> HookJSONOutput:
        """Called when a tool has failed."""
        return self._end([_Key.of(data)], Ending.FAILED)

    async def batch(self, data: Any, *_: Any) -> HookJSONOutput:
        """Called when all calls of a turn have ended."""
        session = data["session_id"]
        calls = [_Key(session, call["tool_use_id"]) for call in data["tool_calls"]]
        return self._end(calls, Ending.CANCELLED)

    async def stopped(self, data: Any, *_: Any) -> HookJSONOutput:
        """Called when an agent has stopped: all its calls have ended."""
        return self._end(self._left_by(data), Ending.CANCELLED)

    def _left_by(self, data: Any) -> list[_Key]:
        """Return the calls of an agent that are between their hooks."""
        whose = data["session_id"], data.get("agent_id")
        return [key for key in self._calls.held if (key.session, key.agent) == whose]

    def _end(self, calls: list[_Key], ending: Ending) -> HookJSONOutput:
        """Settle those of these calls that run; stop the agent if that cannot be recorded."""
        for call in calls:
            unwritten = self._calls.leave(call, ending)
            if unwritten is not None:
                return _stop(readable(unwritten))
        return {}


def _replaced(tool: str, answer: Any, text: str, error: OutputTooLarge) -> HookJSONOutput | None:
    """Return what puts a text in an answer's place; None if that cannot be done.

    Claude Code keeps the answer of a tool of its own if what replaces it has another shape, so
    the shape is kept there, and long strings in it are replaced.
    """
    if tool.startswith("mcp__"):
        shorter: Any = [{"type": "text", "text": text}]
    else:
        shorter = _shortened(answer, text)
        most = error.limit.limit if error.limit is not None else 0
        if not isinstance(most, int) or json_bytes(shorter) > max(most, 2 * len(text)):
            return None
    return {"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": shorter}}


def _shortened(answer: Any, text: str) -> Any:
    """Return a copy of an answer whose long strings are `text`, but for files in base64."""
    if isinstance(answer, dict):
        return {
            key: value if key in _ENCODED else _shortened(value, text)
            for key, value in answer.items()
        }
    if isinstance(answer, list):
        return [_shortened(value, text) for value in answer]
    return text if isinstance(answer, str) and len(answer) > len(text) else answer


def _stop(reason: str) -> HookJSONOutput:
    """Stop the agent, whose model would read what it may not."""
    return {"continue_": False, "stopReason": reason}
