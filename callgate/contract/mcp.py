"""The contract of an MCP server, in both eras.

The session begins as its era asks: `initialize`, or `server/discover` with the version in the
`_meta` of every request. What the runtime protocol has and MCP has not is checked by its
counterpart: a failed handshake is a version that nobody speaks, a heartbeat is an answer to a
small request while a tool runs.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from callgate.contract.malformed import MCP as MALFORMED
from callgate.contract.process import AgentProcess, start_mcp
from callgate.contract.results import CheckFailed, CheckSkipped, Times, Tools, ToolUse, lacks
from callgate.protocol import jsonrpc, mcp, results
from callgate.protocol.jsonrpc import Response, encode_json
from callgate.protocol.mcp_encode import encode_cancelled
from callgate.protocol.members import Known
from callgate.protocol.problem import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from callgate.protocol.problem import Id

LEGACY: Final = "2025-11-25"
STATELESS: Final = "2026-07-28"
NOBODYS: Final = "1900-01-01"
MAX_PAGES: Final = 64
"""Of a tool list; a cursor that never ends is a fault."""

_CLIENT: Final = {"name": "callgate-contract", "version": "1"}


class Session:
    """A conversation that has got past its handshake."""

    def __init__(self, agent: AgentProcess[mcp.Message], times: Times, *, stateless: bool) -> None:
        self.agent = agent
        self.times = times
        self.stateless = stateless
        self._last_id = 0

    def request(self, method: str, params: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """A request of this era, and its id."""
        self._last_id += 1
        members = dict(params or {})
        if self.stateless:
            meta = {
                mcp.VERSION: STATELESS,
                "io.modelcontextprotocol/clientCapabilities": {},
                **members.get("_meta", {}),
            }
            members["_meta"] = meta
        return self._last_id, jsonrpc.encode_request(self._last_id, method, encode_json(members))

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> Response:
        """Send a request and wait for its answer."""
        own_id, line = self.request(method, params)
        await self.agent.send(line)
        return await self.answer(own_id)

    async def answer(self, own_id: Id) -> Response:
        """Wait for the answer to a request."""
        answer, _ = await self.agent.until(is_answer(own_id), self.times.answer_s, "answer")
        return answer

    async def probe(self) -> None:
        """Something harmless that every server with tools must answer well."""
        answer = await self.ask("tools/list")
        if not len(answer.result):
            raise CheckFailed("tools/list was answered with an error")

    async def silence(self, own_id: Id, seconds: float) -> None:
        """Fail if request `own_id` is answered within `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (left_s := deadline - loop.time()) > 0:
            message = await self.agent.next(left_s)
            if message is None:
                return
            if is_answer(own_id)(message):
                raise CheckFailed("a request was answered that must not be")

    async def names(self) -> list[str]:
        """The names of all tools, page by page."""
        names: list[str] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            answer = await self.ask("tools/list", None if cursor is None else {"cursor": cursor})
            try:
                page = results.read_tools(answer.result if len(answer.result) else Raw(b"1"))
            except ProtocolError:
                raise CheckFailed("tools/list was not answered with a list of tools") from None
            names += page.names
            cursor = page.next_cursor
            if cursor is None:
                return names
        raise CheckFailed(f"the tool list does not end after {MAX_PAGES} pages")

    async def needs(self, tool: ToolUse) -> None:
        """End the check if the agent has no such tool."""
        if tool.name not in await self.names():
            raise lacks(tool)

    def call(self, tool: ToolUse, **meta: Any) -> tuple[int, bytes]:
        """A call of a tool."""
        params: dict[str, Any] = {"name": tool.name, "arguments": tool.arguments}
        return self.request("tools/call", {**params, "_meta": meta} if meta else params)


def is_answer(*own_ids: Id) -> Callable[[mcp.Message], Response | None]:
    """Picks an answer to one of these requests."""

    def pick(message: mcp.Message) -> Response | None:
        answers = isinstance(message, Response) and message.id in own_ids
        return message if answers else None  # type: ignore[return-value]  # it answers

    return pick


class McpContract:
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

    async def start(self) -> AgentProcess[mcp.Message]:
        """A new process, before its handshake."""
        return await start_mcp(self._command, mcp.decode, stderr=self._stderr)

    async def open(self) -> Session:
        """A new session, after its handshake."""
        agent = await self.start()
        try:
            return await self._shake_hands(agent)
        except BaseException:
            await agent.close()
            raise

    async def _shake_hands(self, agent: AgentProcess[mcp.Message]) -> Session:
        legacy = Session(agent, self._times, stateless=False)
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": _CLIENT}
        own_id, line = legacy.request("initialize", params)
        await agent.send(line)
        answer, _ = await agent.until(is_answer(own_id), self._times.start_s, "answer")
        if len(answer.result):
            if not _version(answer):
                raise CheckFailed("the answer to initialize states no protocolVersion")
            await agent.send(jsonrpc.encode_notification("notifications/initialized"))
            return legacy
        session = Session(agent, self._times, stateless=True)
        discovered = await session.ask("server/discover")
        if not len(discovered.result):
            raise CheckFailed("neither initialize nor server/discover was answered with a result")
        return session

    async def handshake(self, session: Session) -> str:
        """The session got here, so there was one."""
        await session.probe()
        return "server/discover, no session" if session.stateless else "initialize"

    async def handshake_failure(self, session: Session) -> str:
        """A version that nobody speaks: another is offered, or an error, but it is not taken."""
        agent = await self.start()
        try:
            fresh = Session(agent, self._times, stateless=False)
            params = {"protocolVersion": NOBODYS, "capabilities": {}, "clientInfo": _CLIENT}
            if session.stateless:
                params = {"_meta": {mcp.VERSION: NOBODYS}}
            own_id, line = fresh.request(
                "tools/list" if session.stateless else "initialize", params
            )
            await agent.send(line)
            answer, _ = await agent.until(is_answer(own_id), self._times.start_s, "answer")
        finally:
            await agent.close()
        if not len(answer.result):
            return "answered with an error"
        if session.stateless or _version(answer) in (None, NOBODYS):
            raise CheckFailed("a protocol version that nobody speaks was taken")
        return "answered with another version"

    async def registration(self, session: Session) -> str:
        """The tool list can be read, has names, each once."""
        names = await session.names()
        if not names:
            raise CheckFailed("the agent has no tools")
        if not all(names) or len(set(names)) != len(names):
            raise CheckFailed("a tool has no name, or two have the same")
        return f"{len(names)} tools"

    async def call(self, session: Session) -> str:
        """One call, one answer."""
        await session.needs(self._tools.call)
        own_id, line = session.call(self._tools.call)
        await session.agent.send(line)
        answer = await session.answer(own_id)
        if not len(answer.result) or results.is_failure(answer.result):
            raise CheckFailed("the call failed")
        if "content" not in _members(answer.result):
            raise CheckFailed("the result has no content")
        await session.silence(own_id, self._times.quiet_s)
        return ""

    async def streaming(self, session: Session) -> str:
        """Progress carries the call's token, grows, and comes before the answer."""
        await session.needs(self._tools.stream)
        own_id, line = session.call(self._tools.stream, progressToken="contract")
        await session.agent.send(line)
        _, before = await session.agent.until(is_answer(own_id), self._times.answer_s, "answer")
        news = [message for message in before if isinstance(message, mcp.Progress)]
        if len(news) < 2:  # noqa: PLR2004  # one value cannot grow
            raise CheckFailed("the tool told of its progress less than twice")
        if any(one.token != "contract" for one in news):  # noqa: S105
            raise CheckFailed("progress carries another token than the call's")
        values = [float(bytes(one.params.get("progress", Raw(b"nan")))) for one in news]
        if any(not later > earlier for earlier, later in pairwise(values)):
            raise CheckFailed("progress does not grow")
        await session.silence(own_id, self._times.quiet_s)
        return f"{len(news)} steps"

    async def cancel(self, session: Session) -> str:
        """A cancelled call has no result, and another call is not hurt."""
        await session.needs(self._tools.slow)
        own_id, line = session.call(self._tools.slow)
        other_id, other = session.call(self._tools.slow)
        await session.agent.send(line + other + encode_cancelled(own_id))
        _, before = await session.agent.until(
            is_answer(other_id), self._times.answer_s, "answer to the call that was not cancelled"
        )
        # The two began together, so an answer that was going to come is here, or soon.
        late = await session.agent.next(self._times.quiet_s)
        seen = [*before, *([] if late is None else [late])]
        answers = [answer for message in seen if (answer := is_answer(own_id)(message))]
        if any(len(answer.result) for answer in answers):
            raise CheckFailed("a cancelled call was answered with a result")
        return "answered with an error, where silence is asked for" if answers else ""

    async def heartbeat(self, session: Session) -> str:
        """A small request is answered while a tool runs."""
        await session.needs(self._tools.slow)
        own_id, line = session.call(self._tools.slow)
        small_id, small = session.request("server/discover" if session.stateless else "ping")
        await session.agent.send(line + small)
        _, before = await session.agent.until(
            is_answer(small_id), self._times.answer_s, "answer while a tool runs"
        )
        if any(map(is_answer(own_id), before)):
            raise CheckFailed("a small request had to wait for a tool")
        await session.answer(own_id)
        return ""

    async def framing(self, session: Session) -> str:
        """Lines in pieces and many at once; nothing but messages comes back."""
        own_id, line = session.request("tools/list")
        for place in range(len(line)):
            await session.agent.send(line[place : place + 1])
        await session.answer(own_id)
        several = [session.request("tools/list") for _ in range(8)]
        await session.agent.send(b"".join(line for _, line in several))
        missing: set[Id] = {own_id for own_id, _ in several}
        while missing:
            answer, _ = await session.agent.until(
                is_answer(*missing),
                self._times.answer_s,
                "answer to one of several lines in one write",
            )
            missing.discard(answer.id)
        if session.agent.noise:
            raise CheckFailed("the agent writes lines that are no messages")
        return ""

    async def error_shaping(self, session: Session) -> str:
        """Failures have the shape that clients can read."""
        _check_error(await session.ask("no/such/method"))
        unknown = await session.ask("tools/call", {"name": "no_such_tool", "arguments": {}})
        if not (len(unknown.result) and results.is_failure(unknown.result)):
            _check_error(unknown)
        try:
            await session.needs(self._tools.invalid)
        except CheckSkipped as skipped:
            return f"arguments not tried: {skipped}"
        own_id, line = session.call(self._tools.invalid)
        await session.agent.send(line)
        invalid = await session.answer(own_id)
        if not (len(invalid.result) and results.is_failure(invalid.result)):
            _check_error(invalid)
        return ""

    async def survive(self, session: Session, data: bytes) -> None:
        """Malformed input changes nothing."""
        await session.agent.send(data + b"\n")
        await session.probe()


def _version(answer: Response) -> str | None:
    try:
        return results.negotiated_version(answer.result)
    except ProtocolError:
        return None


def _members(raw: Raw) -> dict[str, Raw]:
    try:
        return _ANY.read(raw)
    except ProtocolError:
        raise CheckFailed("an answer cannot be read") from None


_ANY: Final = Known(("content", "code", "message", "data"))


def _check_error(answer: Response) -> None:
    if not len(answer.error):
        raise CheckFailed("a request that cannot be served was answered with a result")
    error = _members(answer.error)
    code, message = bytes(error.get("code", b"")), bytes(error.get("message", b""))
    if not code.removeprefix(b"-").isdigit() or not message.startswith(b'"'):
        raise CheckFailed("an error has no integer code or no message")
