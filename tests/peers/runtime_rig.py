"""An agent of the runtime protocol behind a gate, without IO."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from callgate.peers.runtime_agent import RuntimeAgent
from callgate.protocol.framing import Lengths, with_length
from tests.peers.helpers import Clock, Message, Rig, rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

POLICY = """
version: 1
defaults: {timeout: 10s, max_timeout: 60s, concurrency: unlimited, rate: unlimited}
agents: {web: {protocol: runtime, handshake: 10s}}
"""
TOKEN = "the-one-token"  # noqa: S105  # not a secret
BEAT_MS = 5_000


class Agent:
    """The agent's side: what it says, and what it has heard."""

    def __init__(self, gate: Rig) -> None:
        self.gate = gate
        self._frames = Lengths(1 << 24)
        self._sent = 0
        self.session = ""

    @property
    def peer(self) -> RuntimeAgent:
        assert isinstance(self.gate.peer, RuntimeAgent)
        return self.gate.peer

    def say(self, kind: str, payload: Message, **envelope: Any) -> str:
        self._sent += 1
        own_id = f"agent-{self._sent}"
        message = {"v": 1, "type": kind, "id": own_id, "ts": "2026-01-01T00:00:00Z"}
        self.raw(with_length(json.dumps({**message, **envelope, "payload": payload}).encode()))
        return own_id

    def raw(self, data: bytes) -> None:
        self.gate.peer.receive(data)
        self.gate.hub.flush()

    def heard(self) -> list[Message]:
        frames = self._frames.feed(self.gate.agent_pipe.take())
        return [json.loads(frame) for frame in frames if isinstance(frame, bytes)]

    def one_heard(self) -> Message:
        (message,) = self.heard()
        return message

    def hello(self, token: str = TOKEN, agent_id: str = "web", versions: Any = (1,)) -> str:
        return self.say(
            "agent.hello",
            {
                "session_token": token,
                "agent_id": agent_id,
                "agent_version": "1",
                "protocol": {"supported_versions": list(versions), "capabilities": []},
            },
        )

    def register(self, *tools: str, **more: Any) -> str:
        described = [
            {"tool_id": f"web/{tool}", "name": tool, "description": "", "input_schema": {}}
            for tool in tools
        ]
        return self.say("agent.tools.register", {"tools": described, **more})

    def result(self, call_id: str, **payload: Any) -> str:
        members = {"call_id": call_id, "status": "succeeded", **payload}
        return self.say("agent.tool.result", members)

    def stream(self, call_id: str, seq: int, **data: Any) -> str:
        members = {"call_id": call_id, "seq": seq, "channel": "log", "data": data}
        return self.say("agent.tool.stream", members)

    def beat(self, status: str = "ok", session: str | None = None) -> str:
        members = {
            "session_id": self.session if session is None else session,
            "uptime_ms": 1,
            "inflight_calls": 0,
            "status": status,
        }
        return self.say("agent.heartbeat", members)

    def shake_hands(self, *tools: str) -> None:
        self.hello()
        (welcome,) = self.heard()
        self.session = welcome["payload"]["session_id"]
        self.register(*(tools or ("echo",)))
        self.heard()

    def restarts(self, token: str = TOKEN) -> None:
        """Another process comes, which knows another token."""
        self.gate.starts()
        self.gate.peer.process_launched(token)
        self._frames = Lengths(1 << 24)


@asynccontextmanager
async def runtime_rig(
    tmp_path: Path, clock: Clock, text: str = POLICY, **options: Any
) -> AsyncIterator[tuple[Rig, Agent]]:
    """A gate whose agent was started and has not spoken yet."""
    async with rig(tmp_path, clock, text, kind=RuntimeAgent, **options) as gate:
        gate.peer.process_launched(TOKEN)
        yield gate, Agent(gate)
