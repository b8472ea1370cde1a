"""The contract of an agent that speaks the runtime protocol v1: the nine tests of its source.

Here callgate is the core: it takes the hello, welcomes or refuses, acknowledges the tools and
then calls. Every message that belongs to a call must echo its three ids.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Raw

from callgate.contract.malformed import RUNTIME as MALFORMED
from callgate.contract.process import AgentProcess, start_runtime
from callgate.contract.results import CheckFailed, CheckSkipped, Times, Tools, ToolUse, lacks
from callgate.protocol import runtime
from callgate.protocol.framing import with_length
from callgate.protocol.jsonrpc import encode_json
from callgate.protocol.runtime import Message, check_tools
from callgate.protocol.runtime_table import (
    Body,
    Call,
    Cancel,
    Error,
    Heartbeat,
    Hello,
    Refused,
    Register,
    Registered,
    Result,
    Server,
    Stream,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

BodyT = TypeVar("BodyT", bound=Body)

_BEATS: Final = 3
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.IGNORECASE)
"""RFC 3339."""


class Session:
    """A connection that has got past its handshake and registration."""

    def __init__(self, agent: AgentProcess[Message], times: Times, hello: Hello) -> None:
        self.agent = agent
        self.times = times
        self.agent_id = hello.agent_id
        self.session_id = secrets.token_hex(8)
        self.register = Register(())
        self._last = 0

    def write(self, body: Body, **envelope: Any) -> bytes:
        """A frame of the core's."""
        self._last += 1
        ts = datetime.now(tz=UTC).isoformat()
        return runtime.encode(body, f"core-{self._last}", ts, **envelope)

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bytes]:
        """A call of a tool, and its id."""
        call_id = f"call-{self._last + 1}"
        body = Call(call_id, f"{self.agent_id}/{name}", Raw(encode_json(arguments)), 60_000)
        return call_id, self.write(body, **self.chain(call_id))

    @staticmethod
    def chain(call_id: str) -> dict[str, str]:
        """The ids that every message of a call echoes."""
        return {
            "request_id": f"request-of-{call_id}",
            "correlation_id": f"correlation-of-{call_id}",
            "causation_id": f"causation-of-{call_id}",
        }

    async def result(self, call_id: str) -> tuple[Result, list[Message]]:
        """The one end of a call, and what came before it."""
        (message, result), before = await self.agent.until(
            is_result(call_id), self.times.answer_s, "result"
        )
        self.check_chain(call_id, [message])
        return result, before

    def check_chain(self, call_id: str, messages: Sequence[Message]) -> None:
        """Every message of a call echoes its ids."""
        for message in messages:
            echoed = {key: getattr(message, key) for key in self.chain(call_id)}
            if echoed != self.chain(call_id):
                raise CheckFailed("a message of a call does not echo the call's three ids")

    async def probe(self) -> None:
        """A call that every agent must answer, and that does nothing."""
        call_id, frame = self.call("no_such_tool", {})
        await self.agent.send(frame)
        result, _ = await self.result(call_id)
        if result.status != "failed":
            raise CheckFailed("a call of a tool that does not exist did not fail")

    async def silence(self, call_id: str, seconds: float) -> None:
        """Fail if the call has a second end within `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (left_s := deadline - loop.time()) > 0:
            message = await self.agent.next(left_s)
            if message is None:
                return
            if is_result(call_id)(message):
                raise CheckFailed("a call has two results")

    def needs(self, tool: ToolUse) -> None:
        """End the check if the agent has no such tool."""
        taken, _ = check_tools(self.register, self.agent_id)
        if tool.name not in {one.name for one in taken}:
            raise lacks(tool)


def is_result(*call_ids: str) -> Callable[[Message], tuple[Message, Result] | None]:
    """Picks the end of one of these calls."""

    def pick(message: Message) -> tuple[Message, Result] | None:
        body = message.body
        if isinstance(body, Result) and body.call_id in call_ids:
            return message, body
        return None

    return pick


def is_a(kind: type[BodyT]) -> Callable[[Message], tuple[Message, BodyT] | None]:
    """Picks a message of one type."""

    def pick(message: Message) -> tuple[Message, BodyT] | None:
        return (message, message.body) if isinstance(message.body, kind) else None

    return pick


class RuntimeContract:
    """Starts sessions with the command, and checks them."""

    def __init__(self, command: Sequence[str], tools: Tools, times: Times, stderr: int) -> None:
        self._command = command
        self._tools = tools
        self._times = times
        self._stderr = stderr
        self.malformed = MALFORMED
        self.checks: tuple[Callable[[Session], Awaitable[str]], ...] = (
            self.handshake,
            self.handshake_failure,
            self.registration,
            self.call,
            self.streaming,
            self.cancel,
            self.heartbeat,
            self.framing,
            self.error_shaping,
        )

    async def _hello(self, token: str) -> tuple[AgentProcess[Message], Message, Hello]:
        agent = await start_runtime(
            self._command,
            lambda frame: runtime.decode(frame, "agent"),
            token=token,
            stderr=self._stderr,
        )
        try:
            (message, hello), before = await agent.until(is_a(Hello), self._times.start_s, "hello")
            if before or agent.noise:
                raise CheckFailed("the first message is no hello")  # noqa: TRY301
        except BaseException:
            await agent.close()
            raise
        return agent, message, hello

    async def open(self) -> Session:
        """A new session, after handshake and registration."""
        token = secrets.token_urlsafe(32)
        agent, message, hello = await self._hello(token)
        session = Session(agent, self._times, hello)
        try:
            if hello.session_token != token:
                raise CheckFailed("the hello does not carry the session token")  # noqa: TRY301
            if runtime.V1 not in hello.protocol.supported_versions:
                raise CheckFailed("the agent does not speak version 1")  # noqa: TRY301
            if not _TIME.fullmatch(message.ts):
                raise CheckFailed("the time of a message is not RFC 3339")  # noqa: TRY301
            await self._welcome(session, message.id)
        except BaseException:
            await agent.close()
            raise
        return session

    async def _welcome(self, session: Session, hello_id: str) -> None:
        welcome = Welcome(
            runtime.V1,
            session.session_id,
            self._times.heartbeat_ms,
            runtime.MAX_FRAME_BYTES,
            Server("contract", "contract"),
        )
        await session.agent.send(session.write(welcome, in_reply_to=hello_id))
        (message, register), _ = await session.agent.until(
            is_a(Register), self._times.answer_s, "registration"
        )
        session.register = register
        taken, rejected = check_tools(register, session.agent_id)
        body = Registered(tuple(tool.tool_id for tool in taken), tuple(rejected))
        await session.agent.send(session.write(body, in_reply_to=message.id))

    async def handshake(self, session: Session) -> str:
        """The session got here, so there was one."""
        await session.probe()
        return f"agent {session.agent_id}"

    async def handshake_failure(self, session: Session) -> str:
        """An agent that is refused says nothing more and goes."""
        agent, message, _ = await self._hello("a token that is not taken")
        try:
            error = Error("protocol.unauthorized", "the token is not valid", retryable=False)
            frame = session.write(Refused(), in_reply_to=message.id, error=error)
            await agent.send(frame)
            after = await agent.next(self._times.answer_s)
            if after is not None:
                raise CheckFailed("an agent that was refused goes on")
            if not agent.ended:
                raise CheckFailed("an agent that was refused does not close the connection")
        finally:
            await agent.close()
        return ""

    async def registration(self, session: Session) -> str:
        """Every tool can be taken."""
        taken, rejected = check_tools(session.register, session.agent_id)
        if rejected:
            raise CheckFailed(f"{len(rejected)} tools are rejected: {rejected[0].error.message}")
        if not taken:
            raise CheckFailed("the agent has no tools")
        return f"{len(taken)} tools"

    async def call(self, session: Session) -> str:
        """One call, one result."""
        session.needs(self._tools.call)
        call_id, frame = session.call(self._tools.call.name, self._tools.call.arguments)
        await session.agent.send(frame)
        result, _ = await session.result(call_id)
        if result.status != "succeeded":
            raise CheckFailed("the call failed")
        await session.silence(call_id, self._times.quiet_s)
        return ""

    async def streaming(self, session: Session) -> str:
        """Chunks are numbered from 1 without a gap, and come before the result."""
        tool = self._tools.stream
        session.needs(tool)
        call_id, frame = session.call(tool.name, tool.arguments)
        await session.agent.send(frame)
        _, before = await session.result(call_id)
        chunks = [
            message
            for message in before
            if isinstance(message.body, Stream) and message.body.call_id == call_id
        ]
        session.check_chain(call_id, chunks)
        numbers = [chunk.body.seq for chunk in chunks if isinstance(chunk.body, Stream)]
        if len(numbers) < 2:  # noqa: PLR2004  # one number has no order
            raise CheckFailed("the tool streamed less than two chunks")
        if numbers != list(range(1, len(numbers) + 1)):
            raise CheckFailed("the chunks are not numbered 1, 2, 3")
        await session.silence(call_id, self._times.quiet_s)
        return f"{len(numbers)} chunks"

    async def cancel(self, session: Session) -> str:
        """A cancelled call ends as canceled, once; another is not hurt."""
        tool = self._tools.slow
        session.needs(tool)
        call_id, frame = session.call(tool.name, tool.arguments)
        other_id, other = session.call(tool.name, tool.arguments)
        await session.agent.send(frame + other)
        cancel = Cancel(call_id, "contract", int(self._times.answer_s * 1000))
        await session.agent.send(session.write(cancel, **session.chain(call_id)))
        result, before = await session.result(call_id)
        if result.status != "canceled":
            raise CheckFailed(f"a cancelled call ended as {result.status}")
        if any(map(is_result(other_id), before)):
            raise CheckFailed("a cancelled call ended after one that was not")
        end, _ = await session.result(other_id)
        if end.status != "succeeded":
            raise CheckFailed("a call that was not cancelled did not succeed")
        await session.silence(call_id, self._times.quiet_s)
        return ""

    async def heartbeat(self, session: Session) -> str:
        """Beats come in time and tell the truth."""
        await self._idle_beats(session)
        tool = self._tools.slow
        taken, _ = check_tools(session.register, session.agent_id)
        if tool.name not in {one.name for one in taken}:
            return "idle only: the agent has no slow tool"
        call_id, frame = session.call(tool.name, tool.arguments)
        await session.agent.send(frame)
        _, before = await session.result(call_id)
        counted = [one.body.inflight_calls for one in before if isinstance(one.body, Heartbeat)]
        # Any number of beats may have been on their way when the call was sent. Those of the call
        # come after them, and in one pipe before its result.
        if counted != sorted(counted) or set(counted) - {0} != {1}:
            raise CheckFailed(f"a heartbeat counts calls that are not there: {counted}, of 1")
        return ""

    async def _idle_beats(self, session: Session) -> None:
        """A beat may have been on its way before, so the first is not judged."""
        limit_s = max(self._times.heartbeat_ms * 5 / 1000, 1.0)
        for number in range(_BEATS + 1):
            (_, beat), _ = await session.agent.until(is_a(Heartbeat), limit_s, "heartbeat")
            if beat.session_id != session.session_id:
                raise CheckFailed("a heartbeat is of another session")
            if number and beat.inflight_calls:
                raise CheckFailed("a heartbeat counts calls that are not there")
            if beat.status != "ok":
                raise CheckFailed(f"the agent calls itself {beat.status}")

    async def framing(self, session: Session) -> str:
        """Frames in pieces and many at once; nothing but messages comes back."""
        call_id, frame = session.call("no_such_tool", {})
        for place in range(len(frame)):
            await session.agent.send(frame[place : place + 1])
        await session.result(call_id)
        several = [session.call("no_such_tool", {}) for _ in range(8)]
        await session.agent.send(b"".join(frame for _, frame in several))
        missing = {call_id for call_id, _ in several}
        while missing:
            (_, result), _ = await session.agent.until(
                is_result(*missing),
                self._times.answer_s,
                "result of one of several frames in one write",
            )
            missing.discard(result.call_id)
        if session.agent.noise:
            raise CheckFailed("the agent sends frames that are no messages")
        return ""

    async def error_shaping(self, session: Session) -> str:
        """Failures have the protocol's error object."""
        await self._fails(session, ToolUse("no_such_tool", {}))
        try:
            session.needs(self._tools.invalid)
        except CheckSkipped as skipped:
            return f"input not tried: {skipped}"
        await self._fails(session, self._tools.invalid)
        return ""

    async def _fails(self, session: Session, tool: ToolUse) -> None:
        call_id, frame = session.call(tool.name, tool.arguments)
        await session.agent.send(frame)
        result, _ = await session.result(call_id)
        if result.status != "failed":
            raise CheckFailed("a call that cannot be served did not fail")
        if result.error is None:
            raise CheckFailed("a failed call has no error object")

    async def survive(self, session: Session, data: bytes) -> None:
        """Malformed input changes nothing."""
        await session.agent.send(with_length(data))
        await session.probe()
