"""The wire in memory: what a call through the gate's two peers costs, in processor time.

A client peer and an agent peer with the router between them, handed bytes by the same calls as
the gate's pipes make, and both audit records of each call written to a real directory. There is
no process and no pipe, so what is measured is the code and nothing of the scheduler. A *read*
brings 1, 4, 16 or 64 frames, and is one pass: the records first, then one write.

Two workloads: the mix of twelve tools (`mix.py`), and the flood of one tool with 200-byte frames,
which is what a quick way for equal calls would be built for. `--against DIR` compares this
checkout with another one, interleaved (`compare.py`); so only what every checkout has is used
here, and `gate` is the one place that knows how a gate is put together.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks import compare as checkouts
from benchmarks import report
from benchmarks.harness import FULL_ROUNDS, QUICK_ROUNDS, Contender, Ready, Result, compare
from benchmarks.mix import PERIOD, mixed
from benchmarks.tool import lines_a_call
from callgate import Policy, Router
from callgate.peers import mcp_caller
from callgate.peers.hub import Hub
from callgate.peers.mcp_agent import McpAgent
from callgate.peers.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

CLIENT_PEER = vars(mcp_caller).get("McpClientPeer") or vars(mcp_caller)["McpCaller"]
"""The same class in checkouts from before and after it was renamed."""
READS = (1, 4, 16, 64)
"""Frames that one read brings."""
MIX = "mix"
FLOOD = "flood"
WORKLOADS = (MIX, FLOOD)
FLOOD_BYTES = 200
BASE = "orjson@mix"

POLICY = """
version: 1
global: {rate: 10000000/second, concurrency: 1000}
callers:
  "*": {rate: 10000000/second}
agents:
  web: {rate: 10000000/second, concurrency: 1000, timeout: 60s}
"""
"""Three rates, two concurrency limits and a deadline on each call; none is ever reached."""
AUDIT = "audit: {{path: {path}, rotate: 16MiB, max_bytes: 64MiB}}\n"
KEPT_RECORDS = 40_000
"""Of more than so many, retention may have deleted some: the audit holds 64 MiB."""

MOST_CALLS = 4_096
"""That one slice can make; a slice of 10 ms makes a tenth of it."""

VERSION = "2025-11-25"
OWN_ID = re.compile(rb'"id":(\d+)')


class Pipe:
    """Keeps what an outbox writes, as a pipe that is read at once."""

    def __init__(self) -> None:
        self.flooded = False
        self.written: list[bytes] = []

    def write(self, frames: list[bytes], first: Sequence[bytes] = ()) -> None:
        """Take everything, in one write."""
        self.written.append(b"".join([*first, *frames]))

    def withdraw(self, head: bytes) -> None:
        """Nothing can be taken back: it was read."""
        del head

    def take(self) -> bytes:
        """Return what was written since the last time."""
        taken, self.written = b"".join(self.written), []
        return taken


class Gate:
    """Both peers of a gate, and the two pipes that they write to."""

    def __init__(self, router: Router) -> None:
        self.to_agent, self.to_client = Pipe(), Pipe()
        self.hub = Hub(router)
        self.faults: list[Exception] = []
        self.hub.on_fault = self.faults.append
        spec = router.policy.gate("web")
        wire = self.hub.wire
        self.agent = McpAgent(self.hub, spec, Outbox(wire, self.to_agent), self._trouble)
        self.caller = CLIENT_PEER(self.hub, self.agent, Outbox(wire, self.to_client), "client")
        self.last_id = 0
        """The newest id of the gate towards the agent."""

    def client_sends(self, data: bytes) -> None:
        """One read of what the client wrote."""
        self.caller.receive(data)
        self.hub.flush()

    def agent_sends(self, data: bytes) -> None:
        """One read of what the agent wrote."""
        self.agent.receive(data)
        self.hub.flush()

    def open(self, tools: Sequence[str]) -> None:
        """Open the session, and let the gate learn which tools there are."""
        about = {"name": "bench", "version": "1"}
        opening = {"protocolVersion": VERSION, "capabilities": {}}
        self.client_sends(_request(0, "initialize", {**opening, "clientInfo": about}))
        self.agent_sends(_answer(self._asked(), {**opening, "serverInfo": about}))
        self.client_sends(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        listed = [{"name": tool, "inputSchema": {"type": "object"}} for tool in tools]
        self.agent_sends(_answer(self._asked(), {"tools": listed}))
        self.to_client.take()

    def check(self, calls: int) -> None:
        """Every call since the last look reached the agent and was answered, each once and well."""
        sent, answers = self.to_agent.take(), self.to_client.take()
        assert self.faults == []
        assert sent.count(b'"tools/call"') == calls, (sent.count(b'"tools/call"'), calls)
        assert len(set(OWN_ID.findall(answers))) == answers.count(b"\n") == calls
        assert b'"isError":true' not in answers
        assert b'"error":' not in answers

    def _asked(self) -> int:
        found = OWN_ID.findall(self.to_agent.take())
        self.last_id = int(found[-1])
        return self.last_id

    @staticmethod
    def _trouble(reason: str, *, again: bool = False) -> None:
        raise AssertionError(f"the agent has to go: {reason}, {again}")


def _request(number: int, method: str, params: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)


def _answer(number: int, result: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "result": result}
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)


def _text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def calls_of(workload: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return `count` calls: the tool and its arguments."""
    if workload == MIX:
        overhead = len(orjson.dumps({"text": ""}))
        return [(tool, {"text": "x" * (size - overhead)}) for tool, size in mixed(count)]
    empty = len(_request(1_000_000_000, "tools/call", {"name": "echo", "arguments": {"text": ""}}))
    return [("echo", {"text": "x" * (FLOOD_BYTES - empty)})] * count


class Traffic:
    """Reads for both sides: of the client's calls, and of the answers in their order."""

    def __init__(self, workload: str, frames: int) -> None:
        self._frames = frames
        self._calls = calls_of(workload, PERIOD)
        self._last_id = 1_000_000_000
        """Of the client: ids have one width, so frames of one size stay of one size."""

    def reads(self, count: int, first_own_id: int) -> list[tuple[bytes, bytes]]:
        """Return at least `count` calls, a read each of calls and of their answers.

        The gate numbers what it sends: the first call becomes `first_own_id`.
        """
        made = []
        own_id = first_own_id
        for _ in range(-(-count // self._frames)):
            sent, answered = [], []
            for _ in range(self._frames):
                self._last_id += 1
                tool, arguments = self._calls[self._last_id % len(self._calls)]
                call = {"name": tool, "arguments": arguments}
                sent.append(_request(self._last_id, "tools/call", call))
                answered.append(_answer(own_id, _text(arguments["text"])))
                own_id += 1
            made.append((b"".join(sent), b"".join(answered)))
        return made


@asynccontextmanager
async def gated(folder: Path, workload: str, frames: int) -> AsyncIterator[Ready]:
    """The gate under one workload; frames are made, and answers looked at, outside the clock."""
    audit = folder / "audit"
    policy = Policy.parse(POLICY + AUDIT.format(path=audit))
    traffic = Traffic(workload, frames)
    reads: list[tuple[bytes, bytes]] = []
    sent = made = 0
    router = Router(policy, state_dir=folder / "state", batched=True)
    async with router:
        gate = Gate(router)
        gate.open(sorted({tool for tool, _ in calls_of(workload, PERIOD)}))

        async def prepare() -> None:
            nonlocal reads, sent
            await asyncio.sleep(0)  # the router's timer has its turn outside of the clock
            gate.check(sent)
            gate.last_id += sent
            reads, sent = traffic.reads(MOST_CALLS, gate.last_id + 1), 0

        async def batch(calls: int) -> None:
            nonlocal sent, made
            mine = reads[: -(-calls // frames)]
            assert len(mine) * frames >= calls
            for asked, answered in mine:
                gate.client_sends(asked)
                gate.agent_sends(answered)
            sent = len(mine) * frames
            made += sent

        def evidence(calls: int) -> str:
            gate.check(sent)
            assert made >= calls
            return lines_a_call(audit.rglob("*.jsonl"), min(made, KEPT_RECORDS // 2), 2)

        yield Ready(batch, before_slice=prepare, evidence=evidence)


@asynccontextmanager
async def by_orjson(workload: str) -> AsyncIterator[Ready]:
    """The base: each frame decoded and encoded again, both ways; nothing is decided."""
    pairs = Traffic(workload, 1).reads(PERIOD, 1)

    async def batch(calls: int) -> None:
        for at in range(calls):
            sent, answered = pairs[at % PERIOD]
            orjson.dumps(orjson.loads(sent))
            orjson.dumps(orjson.loads(answered))

    yield Ready(batch)


def contenders(folder: Path) -> list[Contender]:
    """Each workload at each size of a read, each with a folder of its own, and the base."""
    found = [
        Contender(
            BASE,
            "orjson, mixed tools",
            "loads and dumps of the call and of its answer, one at a time.",
            "any decision, any record, any state.",
            partial(by_orjson, MIX),
        )
    ]
    for workload in WORKLOADS:
        for frames in READS:
            key = f"{workload}@{frames}"
            own = folder / key.replace("@", "-")
            own.mkdir()
            what = "mixed tools, 20 B to 2 KB" if workload == MIX else "one tool, 200 B"
            found.append(
                Contender(
                    key,
                    f"{what}, {frames} a read",
                    "both peers, three rates, two concurrency limits, a deadline, two chained "
                    "records a call on disk.",
                    "pipes and processes.",
                    partial(gated, own, workload, frames),
                )
            )
    return found


async def measure(rounds: int, only: Sequence[str] = ()) -> Result:
    """Run the comparison in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder:
        made = contenders(Path(folder))
        return await compare(
            "wire",
            "The wire in memory: processor time of a call through both peers",
            [one for one in made if not only or one.key in {BASE, *only}],
            base=BASE,
            rounds=rounds,
            clock_ns=time.process_time_ns,
        )


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    parser = report.arguments("what a call costs between the gate's two peers")
    checkouts.add_arguments(parser)
    options = parser.parse_args(argv)
    only = [key for key in options.only.split(",") if key]
    if options.against is not None:
        return checkouts.run("wire", options)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    return report.emit(asyncio.run(measure(rounds, only)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
