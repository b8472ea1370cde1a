"""Every deliberate error of callgate.

Pure. Grouped by blame: `CallRefused` is a decision and means that the tool did not run;
`CallEnded` means that it may have run, wholly or in part; `ConfigError` blames what the
operator wrote. An error carries data; its text is made from the data only when somebody
reads it, so that a refusal costs no formatting, and it never holds a peer's words.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class LimitInfo(msgspec.Struct, frozen=True, gc=False):
    """Which limit spoke: what it counts, over what, where it stands."""

    type: str
    scope: str
    limit: int | str
    usage: int | None = None


class CallgateError(Exception):
    """Base class; never raised itself."""

    code: ClassVar[str]
    """Contract: docs, audit and wire use it. The text is not one."""
    jsonrpc: ClassVar[int]
    retryable: ClassVar[bool] = False
    """Whether the same call may be sent again: only if the tool cannot have run."""

    def __init__(
        self,
        *,
        request_id: str | None = None,
        agent: str | None = None,
        tool: str | None = None,
        limit: LimitInfo | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        self.request_id = request_id
        self.agent = agent
        self.tool = tool
        self.limit = limit
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        """Return what kind of error it is and of which tool, for logs and debuggers."""
        known = ((name, getattr(self, name)) for name in ("agent", "tool", "request_id"))
        stated = "".join(f", {name}={value!r}" for name, value in known if value is not None)
        return f"{type(self).__name__}(code={self.code!r}{stated})"

    def describe(self) -> str:
        """One sentence that a person or a model can act on."""
        return self.code

    def as_dict(self) -> dict[str, Any]:
        """The structure that callers see, the same in process and on a wire."""
        limit = self.limit
        return {
            "code": self.code,
            "message": self.describe(),
            "request_id": self.request_id,
            "agent": self.agent,
            "tool": self.tool,
            "limit": None if limit is None else msgspec.structs.asdict(limit),
            "retryable": self.retryable,
            "retry_after_ms": self.retry_after_ms,
        }

    def _what(self) -> str:
        """The tool as it may be named aloud."""
        if self.agent is None:
            return "this tool"
        return f"{self.agent}/{self.tool}" if self.tool else f"a tool of {self.agent}"

    def _limit_text(self, noun: str) -> str:
        limit = self.limit
        return noun if limit is None else f"{noun} of {limit.scope.replace(':', ' ', 1)}"


class CallRefused(CallgateError):
    """A decision, not a fault: the tool did not run."""

    retryable = True


class RateLimited(CallRefused):
    """A rate limit is spent; `retry_after_ms` says when the same call would fit."""

    code = "limit.rate"
    jsonrpc = -32003

    def describe(self) -> str:
        text = f"{self._limit_text('rate limit')} reached"
        if self.limit is not None:
            text += f": {self.limit.limit}"
        return text + _try_again(self.retry_after_ms)


class ConcurrencyLimited(CallRefused):
    """No slot is free and the queue is full, or the deadline would pass in it."""

    code = "limit.concurrency"
    jsonrpc = -32004

    def describe(self) -> str:
        limit = self.limit
        if limit is not None and limit.type == "queue":
            return f"{self._limit_text('queue')} is full: {limit.limit} wait; try again later"
        text = f"{self._limit_text('concurrency limit')} reached"
        if limit is not None:
            text += f": {limit.limit} at once"
        return text + "; try again when a running call has ended"


class QuotaExceeded(CallRefused):
    """The caller's budget of this window is spent; unlike a rate it survives restarts."""

    code = "limit.quota"
    jsonrpc = -32008

    def describe(self) -> str:
        text = f"{self._limit_text('quota')} spent"
        if self.limit is not None:
            text += f": {self.limit.limit}"
        return text + _try_again(self.retry_after_ms)


class InputTooLarge(CallRefused):
    """The arguments are over `max_input_bytes`; the same call can never fit."""

    code = "limit.input_bytes"
    jsonrpc = -32005
    retryable = False

    def describe(self) -> str:
        return _too_large("arguments", self.limit)


class PolicyDenied(CallRefused):
    """The policy does not offer this tool to this caller."""

    code = "policy.denied"
    jsonrpc = -32009
    retryable = False

    def describe(self) -> str:
        if self.limit is not None and self.limit.type == "tasks":
            tasks = f"the policy does not allow tasks of {self._what()}"
            return f"{tasks}; `tasks: pass` lets them through"
        return f"the policy does not allow {self._what()}"


class FrameTooLarge(CallRefused):
    """A whole message is over `max_frame_bytes`; it was drained unread."""

    code = "limit.frame_bytes"
    jsonrpc = -32007
    retryable = False

    def describe(self) -> str:
        return _too_large("message", self.limit)


class AgentUnavailable(CallRefused):
    """The agent is down, unhealthy or not ready yet; the call was not sent."""

    code = "agent.unavailable"
    jsonrpc = -32010

    def describe(self) -> str:
        what = "the agent" if self.agent is None else f"agent {self.agent}"
        return f"{what} is not available{_try_again(self.retry_after_ms)}"


class ProtocolInvalid(CallRefused):
    """A message that the protocol does not allow; the connection goes on."""

    code = "protocol.invalid"
    jsonrpc = -32600
    retryable = False

    def describe(self) -> str:
        return "the message is not valid in this protocol"


class Unauthorized(CallRefused):
    """The token is missing, wrong or used up."""

    code = "protocol.unauthorized"
    jsonrpc = -32016
    retryable = False

    def describe(self) -> str:
        return "the token is missing or not valid"


class AgentUnknown(CallRefused):
    """Nobody registered the agent."""

    code = "agent.unknown"
    jsonrpc = -32602
    retryable = False

    def describe(self) -> str:
        return "no such agent is registered"


class ToolUnknown(CallRefused):
    """The agent is known, the tool is not."""

    code = "tool.unknown"
    jsonrpc = -32602
    retryable = False

    def describe(self) -> str:
        return f"agent {self.agent} has no such tool"


class InvalidInput(CallRefused):
    """The arguments do not fit the tool's parameters, or cannot be measured."""

    code = "tool.invalid_input"
    jsonrpc = -32602
    retryable = False

    def describe(self) -> str:
        return f"the arguments do not fit {self._what()}"


class AuditUnavailable(CallgateError):
    """The audit log cannot be written and the policy says `fail_closed`.

    Retryable when it struck before the tool ran; after that the answer is withheld and the
    same call must not be sent again blindly.
    """

    code = "audit.unavailable"
    jsonrpc = -32014

    def __init__(self, *, tool_ran: bool = False, **fields: Any) -> None:
        super().__init__(**fields)
        self.retryable = not tool_ran  # type: ignore[misc]  # the one code that means both

    def describe(self) -> str:
        return "the audit log cannot be written, so no call is let through"


class StateUnavailable(CallRefused):
    """The store of quotas cannot be read or written, so nothing can be spent."""

    code = "state.unavailable"
    jsonrpc = -32015

    def describe(self) -> str:
        return "the store of quotas is unavailable, so no call is let through"


class CallEnded(CallgateError):
    """The call was started and ended by us; the tool may have run, wholly or in part."""


class CallTimedOut(CallEnded):
    """The deadline passed while the tool ran. Passing it in a queue is `ConcurrencyLimited`."""

    code = "limit.timeout"
    jsonrpc = -32001

    def describe(self) -> str:
        text = f"{self._what()} did not answer in time"
        return text if self.limit is None else f"{text}: {self.limit.limit} ms"


class CallCanceled(CallEnded):
    """The caller, or somebody with its `request_id`, cancelled the call."""

    code = "tool.canceled"
    jsonrpc = -32013

    def describe(self) -> str:
        return f"the call of {self._what()} was cancelled"


class OutputTooLarge(CallEnded):
    """The result is over `max_output_bytes`; the tool has run."""

    code = "limit.output_bytes"
    jsonrpc = -32006

    def describe(self) -> str:
        return _too_large("result", self.limit)


class AgentCrashed(CallEnded):
    """The agent's process ended with the call in flight; `stop_reason` says why.

    `run_id` names that process in the audit and in `callgate runs`.
    """

    code = "agent.crashed"
    jsonrpc = -32011

    def __init__(
        self, *, stop_reason: str | None = None, run_id: str | None = None, **fields: Any
    ) -> None:
        super().__init__(**fields)
        self.stop_reason = stop_reason
        self.run_id = run_id

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "stop_reason": self.stop_reason, "run_id": self.run_id}

    def describe(self) -> str:
        what = "the agent" if self.agent is None else f"agent {self.agent}"
        text = f"{what} ended while it worked on the call"
        return text if self.stop_reason is None else f"{text}: {self.stop_reason}"


class ResourceLimitExceeded(AgentCrashed):
    """The agent was ended by its containment: `limit` says which limit, and how far over."""

    code = "resource_limit_exceeded"
    jsonrpc = -32012

    def describe(self) -> str:
        what = "the agent" if self.agent is None else f"agent {self.agent}"
        text = f"{what} was ended by its containment"
        if self.limit is None:
            return text
        usage = "" if self.limit.usage is None else f", used {self.limit.usage}"
        return f"{text}: {self.limit.type} limit {self.limit.limit}{usage}"


class InternalError(CallgateError):
    """A fault of ours; the call was refused rather than let through unchecked."""

    code = "internal"
    jsonrpc = -32603

    def __init__(self, *, reason: str | None = None, **fields: Any) -> None:
        """`reason` is a constant text of ours: what is wrong, and what to do about it."""
        super().__init__(**fields)
        self.reason = reason

    def describe(self) -> str:
        text = "callgate failed inside and refused the call"
        return text if self.reason is None else f"{text}: {self.reason}"


class ConfigError(CallgateError):
    """What the operator wrote cannot be used."""

    code = "config.invalid"
    jsonrpc = -32603


def _try_again(retry_after_ms: int | None) -> str:
    if retry_after_ms is None:
        return ""
    tenths = -(-retry_after_ms // 100)  # up: who obeys must not come too early
    return f"; try again in {tenths / 10:.1f} s"


def _too_large(noun: str, limit: LimitInfo | None) -> str:
    if limit is None:
        return f"the size of the {noun} cannot be measured, so it cannot be let through"
    if limit.usage is None:
        return f"the size of the {noun} is over the {limit.limit} bytes that are allowed"
    return f"the size of the {noun} is {limit.usage} bytes; at most {limit.limit} are allowed"
