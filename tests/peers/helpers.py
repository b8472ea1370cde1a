"""Peers without IO: a client and an agent that speak bytes, and a clock under the test's hand."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from callgate.limits.deadlines import FINE_NS
from callgate.peers import hub as hub_module
from callgate.peers import mcp_agent, mcp_caller, offer, quota_wait, runtime_agent
from callgate.peers.hub import Hub
from callgate.peers.mcp_agent import McpAgent
from callgate.peers.mcp_caller import McpClientPeer
from callgate.peers.outbox import Outbox
from callgate.policy import Policy
from callgate.router import Router
from callgate.router import engine as engine_module
from callgate.router import router as router_module
from callgate.router import timer as timer_module
from tests.router.helpers import assert_nothing_is_left, audit_lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    import pytest

    from callgate.model import StopReason
    from callgate.peers.agent import AgentPeer

Message = dict[str, Any]

MS = 1_000_000

FOREVER_S = 20.0
"""Bounds every wait of a test; none comes near it."""

OPEN = """
version: 1
defaults: {timeout: 10s, max_timeout: 60s, concurrency: unlimited, rate: unlimited}
agents: {web: {}}
"""

META_VERSION = "io.modelcontextprotocol/protocolVersion"
STATELESS = {META_VERSION: "2026-07-28"}


class Clock:
    """Every clock that peers and router read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000 * MS
        modules = (router_module, engine_module, timer_module, hub_module, mcp_agent)
        for module in (*modules, mcp_caller, offer, quota_wait, runtime_agent):
            monkeypatch.setattr(module, "monotonic_ns", self.read)

    def read(self) -> int:
        return self.now_ns

    def pass_ms(self, router: Router, ms: float) -> None:
        """Let time pass; what is due after it is seen, though the wheel may be a slot late."""
        self.now_ns += int(ms * MS) + FINE_NS
        router.timer._wake()


class Pipe:
    """Where an outbox writes to. While `shut` it keeps whole frames, as a full pipe would."""

    def __init__(self) -> None:
        self.shut = False
        self.flooded = False
        self.writes: list[bytes] = []
        """One for each write."""
        self.waiting: list[bytes] = []
        self._seen = 0

    def write(self, frames: list[bytes], first: Sequence[bytes] = ()) -> None:
        if self.shut:
            self.waiting = [*first, *self.waiting, *frames]
        else:
            self.writes.append(b"".join([*first, *frames]))

    def withdraw(self, head: bytes) -> bytes | None:
        for position, waiting in enumerate(self.waiting):
            if waiting.startswith(head):
                return self.waiting.pop(position)
        return None

    def open(self) -> None:
        self.shut = False
        if self.waiting:
            self.writes.append(b"".join(self.waiting))
            self.waiting = []

    def take(self) -> bytes:
        """What was written since the last time."""
        new, self._seen = self.writes[self._seen :], len(self.writes)
        return b"".join(new)


class Rig:
    """A client, a gate and an agent."""

    def __init__(self, router: Router, clock: Clock, kind: type[AgentPeer] = McpAgent) -> None:
        self.router = router
        self.clock = clock
        self.hub = Hub(router)
        self.faults: list[Exception] = []
        self.hub.on_fault = self.faults.append
        self.troubles: list[tuple[StopReason, bool]] = []
        self.agent_pipe = Pipe()
        self.client_pipe = Pipe()
        self.blanks = False
        """Whether both sides write JSON as `json.dumps` does, and not as SDKs do."""
        wire = self.hub.wire
        spec = router.policy.gate("web")
        self.peer = kind(self.hub, spec, Outbox(wire, self.agent_pipe), self.trouble)
        self.caller = McpClientPeer(
            self.hub, self.peer, Outbox(wire, self.client_pipe), "anonymous"
        )

    def trouble(self, reason: StopReason, *, again: bool = False) -> None:
        self.troubles.append((reason, again))

    def client(self, *messages: Message | bytes) -> None:
        """The client writes, and the gate reads it at once."""
        self.caller.receive(lines(*messages, blanks=self.blanks))
        self._take_all_turns()
        self.hub.flush()

    def agent(self, *messages: Message | bytes) -> None:
        """The agent writes, and the gate reads it at once."""
        self.peer.receive(lines(*messages, blanks=self.blanks))
        self._take_all_turns()
        self.hub.flush()

    def _take_all_turns(self) -> None:
        for turns in (self.caller.turns, self.peer.turns):
            while turns.waiting:
                self.hub.flush()
                turns.go_on(self.clock.now_ns)

    def to_agent(self) -> list[Message]:
        """What the agent was sent since the last look."""
        return parsed(self.agent_pipe.take())

    def to_client(self) -> list[Message]:
        """What the client was sent since the last look."""
        return parsed(self.client_pipe.take())

    def one_to_agent(self) -> Message:
        (message,) = self.to_agent()
        return message

    def one_to_client(self) -> Message:
        (message,) = self.to_client()
        return message

    def pass_ms(self, ms: float) -> None:
        self.clock.pass_ms(self.router, ms)

    def shake_hands(self, *tools: str, version: str = "2025-11-25") -> None:
        """The legacy beginning, as far as both sides need it."""
        self.client(initialize(version=version))
        asked = self.one_to_agent()
        self.agent(answer(asked["id"], initialized(version)))
        self.client(note("notifications/initialized"))
        _, listing = self.to_agent()
        self.agent(answer(listing["id"], tool_list(*tools)))
        self.to_client()

    def dies(self, reason: StopReason = "signal", *, again: bool = True) -> None:
        """The process ends."""
        self.peer.process_ended(reason, None, again=again)
        self.hub.flush()

    def starts(self) -> None:
        """Another one takes its place, with a pipe of its own."""
        self.agent_pipe = Pipe()
        self.peer.outbox.pipe = self.agent_pipe
        self.peer.process_launched(None)
        self.peer.started()
        self.hub.flush()

    def assert_idle_but_for_beats(self) -> None:
        """The same, of an agent whose heart is listened to."""
        self.dies()
        self.assert_idle()

    def assert_idle(self) -> None:
        """No fault, and nothing is left of any call."""
        assert self.faults == []
        assert self.caller.in_flight == {}
        assert self.caller.others == 0
        assert self.peer.pending == {}
        assert_nothing_is_left(self.router)


@asynccontextmanager
async def rig(
    tmp_path: Path,
    clock: Clock,
    text: str = OPEN,
    *,
    audited: bool = True,
    kind: type[AgentPeer] = McpAgent,
    **options: Any,
) -> AsyncIterator[Rig]:
    """A gate at work; at the end there must have been no fault."""
    if audited:
        text += f"audit: {{path: {tmp_path / 'audit'}}}\n"
    router = Router(Policy.parse(text), state_dir=tmp_path / "state", batched=True, **options)
    async with router:
        made = Rig(router, clock, kind)
        yield made
        assert made.faults == []


def lines(*messages: Message | bytes, blanks: bool = False) -> bytes:
    separators = None if blanks else (",", ":")
    return b"".join(
        message
        if isinstance(message, bytes)
        else json.dumps(message, separators=separators).encode() + b"\n"
        for message in messages
    )


def parsed(data: bytes) -> list[Message]:
    return [json.loads(line) for line in data.splitlines()]


def call(own_id: Any = 1, tool: Any = "echo", arguments: Any = None, **meta: Any) -> Message:
    params: Message = {"name": tool, "arguments": {} if arguments is None else arguments}
    if meta:
        params["_meta"] = meta
    return request(own_id, "tools/call", params)


def request(own_id: int | str, method: str, params: Message | None = None) -> Message:
    message: Message = {"jsonrpc": "2.0", "id": own_id, "method": method}
    return message if params is None else {**message, "params": params}


def note(method: str, params: Message | None = None) -> Message:
    message: Message = {"jsonrpc": "2.0", "method": method}
    return message if params is None else {**message, "params": params}


def cancel(own_id: int | str) -> Message:
    return note("notifications/cancelled", {"requestId": own_id})


def progress(token: int | str, value: int = 1) -> Message:
    return note("notifications/progress", {"progressToken": token, "progress": value})


def answer(own_id: Any, result: Any = None) -> Message:
    return {"jsonrpc": "2.0", "id": own_id, "result": text("hi") if result is None else result}


def failure(own_id: Any, code: int = -32000, message: str = "no") -> Message:
    return {"jsonrpc": "2.0", "id": own_id, "error": {"code": code, "message": message}}


def text(words: str, **more: Any) -> Message:
    return {"content": [{"type": "text", "text": words}], **more}


def initialize(own_id: int | str = 0, version: str = "2025-11-25") -> Message:
    params = {
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    return request(own_id, "initialize", params)


def initialized(version: str = "2025-11-25") -> Message:
    about = {"name": "web", "version": "1"}
    return {"protocolVersion": version, "capabilities": {}, "serverInfo": about}


def tool_list(*tools: str, cursor: str | None = None, **more: Any) -> Message:
    listed = [{"name": tool, "inputSchema": {"type": "object"}} for tool in tools]
    result: Message = {"tools": listed, **more}
    return result if cursor is None else {**result, "nextCursor": cursor}


def code_of(message: Message) -> str:
    """Which error of ours it is, in either form."""
    return str(refusal_of(message)["code"])


def refusal_of(message: Message) -> Message:
    if "error" in message:
        found: Message = message["error"]["data"]
    else:
        assert message["result"]["isError"] is True
        found = message["result"]["_meta"]["callgate/error"]
    return found


def events(tmp_path: Path, prefix: str = "") -> list[str]:
    """What the audit has, in order."""
    names = [line["event"] for line in audit_lines(tmp_path / "audit")]
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


async def settle(rig: Rig) -> None:
    """Wait for what runs in threads: the quota's store."""
    async with asyncio.timeout(FOREVER_S):
        while rig.hub._fetching:  # noqa: ASYNC110  # a thread sets no asyncio.Event
            await asyncio.sleep(0.001)
