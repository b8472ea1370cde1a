"""The runtime protocol v1: its table of messages, a class for each payload.

Pure. What is not ours (input, output, schemas, stream data) stays `Raw`. The protocol asks for
an answer to a message that is not taken but has no type for it; `core.error` and
`agent.error` are ours: an empty payload beside the envelope's `error`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, Raw

from callgate.protocol.members import MAX_ID, MAX_ID_CHARS, NOTHING

MAX_NAMES: Final = 4096
"""Of tools in one registration, as in one MCP list."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]
Count = Annotated[int, Meta(ge=0, le=MAX_ID)]
Text = Annotated[str, Meta(max_length=4096)]
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_NAMES)]


class _Part(msgspec.Struct, omit_defaults=True, gc=False):
    """An object of a payload. Members that are left out are None, or `NOTHING` if raw."""


class Error(_Part):
    """The protocol's error object."""

    code: Name
    message: Text
    details: Raw = NOTHING
    retryable: bool | None = None
    where: Text | None = None
    debug: Raw = NOTHING


class Body(_Part):
    """A payload; `type` names it on the wire."""

    type: ClassVar[str]


class Offer(_Part):
    """What an agent can speak."""

    supported_versions: Annotated[tuple[int, ...], Meta(max_length=64)]
    capabilities: Names = ()


class Hello(Body):
    """The first message of an agent. It never shows its token."""

    type = "agent.hello"
    session_token: Annotated[str, Meta(max_length=1024)]
    agent_id: Name
    agent_version: Name
    protocol: Offer
    manifest_hash: Name | None = None
    sdk: Raw = NOTHING

    def __repr__(self) -> str:
        return f"Hello(agent_id={self.agent_id!r})"


class Server(_Part):
    """Who welcomes."""

    core_version: Name
    instance_id: Name


class Welcome(Body):
    """The answer to a good hello."""

    type = "core.welcome"
    accepted_version: int
    session_id: Name
    heartbeat_interval_ms: Count
    max_frame_bytes: Count
    server: Server


class Refused(Body):
    """The answer to a bad hello: the same type, its payload empty, an error beside it."""

    type = "core.welcome"


class Goodbye(Body):
    """The core will close the connection."""

    type = "core.goodbye"
    reason: Text
    retry_after_ms: Count | None = None


class Tool(_Part):
    """A tool as its agent describes it."""

    tool_id: Name
    name: Name
    description: Annotated[str, Meta(max_length=65_536)]
    input_schema: Raw
    output_schema: Raw = NOTHING
    capabilities: Names | None = None
    side_effects: bool | None = None
    requires_directive: bool | None = None
    tags: Names | None = None


class Register(Body):
    """The tools of an agent. One that cannot be read is its id only, and rejected alone."""

    type = "agent.tools.register"
    tools: tuple[Tool | str, ...]
    replace: bool = False


class Rejected(_Part):
    """A tool that was not taken, and why."""

    tool_id: str
    error: Error


class Registered(Body):
    """The answer to a registration."""

    type = "core.tools.registered"
    registered: Names
    rejected: tuple[Rejected, ...] = ()


class Unregister(Body):
    """Tools that are gone."""

    type = "agent.tools.unregister"
    tool_ids: Names


class Unregistered(Body):
    """The answer to that."""

    type = "core.tools.unregistered"
    tool_ids: Names = ()


class Call(Body):
    """Run a tool."""

    type = "core.tool.call"
    call_id: Name
    tool_id: Name
    input: Raw
    timeout_ms: Count | None = None
    idempotency_key: Name | None = None
    caller: Raw = NOTHING
    context: Raw = NOTHING


class Stream(Body):
    """A piece of a running call's output."""

    type = "agent.tool.stream"
    call_id: Name
    seq: Annotated[int, Meta(ge=1, le=MAX_ID)]
    channel: Literal["stdout", "stderr", "log", "partial_result", "status"]
    data: Raw
    done: bool = False


class Result(Body):
    """The one end of a call."""

    type = "agent.tool.result"
    call_id: Name
    status: Literal["succeeded", "failed", "canceled"]
    output: Raw = NOTHING
    error: Error | None = None
    started_at: Name | None = None
    finished_at: Name | None = None
    metrics: Raw = NOTHING


class Cancel(Body):
    """Stop a call, if possible."""

    type = "core.tool.cancel"
    call_id: Name
    reason: Text | None = None
    deadline_ms: Count | None = None


class CancelAck(Body):
    """The agent has read a cancel."""

    type = "agent.tool.cancel_ack"
    call_id: Name
    accepted: bool
    note: Text | None = None


class Heartbeat(Body):
    """The agent lives."""

    type = "agent.heartbeat"
    session_id: Name
    uptime_ms: Count
    inflight_calls: Count
    status: Literal["ok", "degraded", "unhealthy"]
    details: Raw = NOTHING


class Ping(Body):
    """Are you there?"""

    type = "core.ping"


class Pong(Body):
    """Yes."""

    type = "agent.pong"


class CoreError(Body):
    """A message of the agent's was not taken."""

    type = "core.error"


class AgentError(Body):
    """A message of the core's was not taken."""

    type = "agent.error"
