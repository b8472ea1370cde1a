"""Everything at once, at random: every request has one answer, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from callgate.audit import writer as writer_module
from callgate.audit.verify import verify
from callgate.policy import Policy
from tests.conftest import FULL
from tests.peers.helpers import (
    Rig,
    answer,
    call,
    cancel,
    failure,
    note,
    progress,
    request,
    rig,
    settle,
    tool_list,
)
from tests.peers.runtime_rig import Agent, runtime_rig
from tests.router.helpers import audit_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.peers.helpers import Clock, Message

STORMS = 400 if FULL else 12
TERMINAL = {"completed", "failed", "timed_out", "cancelled", "crashed", "lost"}
MODES = ("{}", "{}", "{{limit: {}, mode: shadow}}")


def a_policy(draw: random.Random, audit: Path, protocol: str) -> str:
    """Tight limits of every kind, some in shadow."""

    def limit(*values: object) -> str:
        return draw.choice(MODES).format(draw.choice(values))

    quota = limit("90000/hour", "90000/hour", "300/hour", "20/hour")
    waiting = "{limit: 50/second, burst: 3, on_limit: wait, per: caller}"
    return f"""
version: 1
global: {{concurrency: {limit(2, 6)}}}
callers: {{"*": {{concurrency: {limit(3, 8)}, quota: {quota}}}}}
agents:
  web:
    protocol: {protocol}
    timeout: {draw.choice(["100ms", "1s"])}
    max_timeout: 2s
    concurrency: {limit(1, 4, 8)}
    queue: {draw.choice([0, 2, 20])}
    rate: {draw.choice(["unlimited", waiting, "100/second"])}
    cancel_grace: {draw.choice(["20ms", "1s"])}
    on_ignored_cancel: {draw.choice(["release", "restart"])}
    max_output_bytes: {limit(60, 1000)}
    max_input_bytes: {limit(30, 1000)}
    max_frame_bytes: 2000
    requests: {{timeout: 500ms}}
    tools: {{slow: {{concurrency: 1}}, "no*": deny}}
audit: {{path: {audit}, rotate: 64KiB}}
"""


class Disk:
    """Stands before write(2): it may be full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = self.was_full = False
        monkeypatch.setattr(writer_module, "os_write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "no")
        return os.write(fd, data)


class Storm:
    """A client and a process that do whatever they like."""

    def __init__(self, gate: Rig, draw: random.Random, audit: Path, disk: Disk) -> None:
        self.gate = gate
        self.draw = draw
        self.audit = audit
        self.disk = disk
        self.asked: Counter[int] = Counter()
        self.answered: Counter[int] = Counter()
        self.cancelled: set[int] = set()
        self.unanswered: list[Any] = []
        """What the process was asked and has not answered."""
        self.is_dead = False
        self._last = 0

    protocol = "mcp"

    # The client.

    def ask(self) -> None:
        self.gate.client(self.a_request())

    def burst(self) -> None:
        """Much in one read, most of it calls of one tool."""
        tool = self.draw.choice(["echo", "slow"])
        messages = [self.a_request() for _ in range(self.draw.randrange(2, 5))]
        for _ in range(self.draw.randrange(2, 16)):
            own_id = self._last = self._last + 1
            self.asked[own_id] += 1
            messages.append(call(own_id, tool))
        self.draw.shuffle(messages)
        self.gate.client(*messages)

    def a_request(self) -> Message:
        draw = self.draw
        own_id = draw.choice(list(self.asked)) if self.asked and draw.random() < 0.05 else 0
        if not own_id:
            own_id = self._last = self._last + 1
        meta: Message = {}
        if draw.random() < 0.3:
            meta["progressToken"] = own_id
        if draw.random() < 0.3:
            meta["callgate/timeout_ms"] = draw.choice([1, 50, 5_000])
        kind = draw.random()
        if kind < 0.85:
            tool = draw.choice(["echo"] * 5 + ["slow"] * 3 + ["nothing", "unheard-of"])
            arguments = {"x": "y" * draw.choice([1] * 20 + [40, 3_000])}
            message = call(own_id, tool, arguments, **meta)
        else:
            message = request(own_id, draw.choice(["ping", "resources/list", "tools/list", "x/y"]))
        self.asked[own_id] += 1
        return message

    def cancel(self) -> None:
        if self.asked:
            own_id = self.draw.choice(list(self.asked)[-8:])
            self.cancelled.add(own_id)
            self.gate.client(cancel(own_id))

    def rubbish(self) -> None:
        self.gate.client(self.draw.choice([b"{\n", b"\xff\n", b"[]\n", b'{"jsonrpc":"2.0"}\n']))

    def listen(self) -> None:
        """The client reads."""
        for message in self.gate.to_client():
            if "method" not in message and message.get("id") is not None:
                self.answered[message["id"]] += 1

    # The process.

    def hear(self) -> None:
        for message in self.gate.to_agent():
            if "id" in message and "method" in message:
                self.unanswered.append(message)

    def reply(self) -> None:
        self.hear()
        if not self.unanswered or self.is_dead:
            return
        draw = self.draw
        message = self.unanswered.pop(draw.randrange(len(self.unanswered)))
        own_id = message["id"]
        if message["method"] == "tools/list":
            self.gate.agent(answer(own_id, tool_list("echo", "slow")))
            return
        kind = draw.random()
        if kind < 0.2:
            self.gate.agent(progress(own_id), answer(own_id))
        elif kind < 0.3:
            self.gate.agent(failure(own_id))
        elif kind < 0.4:
            self.gate.agent(answer(own_id, {"content": "z" * draw.choice([90, 4_000])}))
        elif kind < 0.5:
            self.gate.agent(answer(own_id), answer(own_id))
        elif kind < 0.6:
            self.gate.agent(b'{"jsonrpc":"2.0","id":%d,"result":}\n' % own_id)
        else:
            self.gate.agent(answer(own_id))

    def reply_to_many(self) -> None:
        """Good answers to calls, all in one write."""
        self.hear()
        calls = [one for one in self.unanswered if one["method"] == "tools/call"]
        if calls and not self.is_dead:
            self.unanswered = [one for one in self.unanswered if one not in calls]
            self.gate.agent(*[answer(one["id"]) for one in calls])

    def noise(self) -> None:
        if not self.is_dead:
            changed = note("notifications/tools/list_changed")
            said: list[Message | bytes] = [b"hello\n", answer(10**6), changed]
            self.gate.agent(self.draw.choice(said))

    def die(self) -> None:
        if not self.is_dead:
            self.unanswered.clear()
            self.gate.dies(again=self.draw.random() < 0.7)
            self.is_dead = True

    def start(self) -> None:
        if self.is_dead:
            self.gate.starts()
            self.gate.peer.is_up = True
            self.is_dead = False

    # The rest of the world.

    def stall(self) -> None:
        self.gate.agent_pipe.shut = True

    def flow(self) -> None:
        if self.gate.agent_pipe.shut:
            self.gate.agent_pipe.open()

    def wait(self) -> None:
        self.gate.pass_ms(self.draw.choice([1, 5, 50, 300]))

    def fill(self) -> None:
        self.disk.full = self.disk.was_full = True

    def clear(self) -> None:
        self.disk.full = False

    async def reload(self) -> None:
        policy = Policy.parse(a_policy(self.draw, self.audit, self.protocol))
        await self.gate.router.reload(policy)
        spec = policy.gate("web")
        self.gate.peer.use(spec)
        self.gate.caller.use(spec)
        self.gate.hub.flush()

    async def rage(self, steps: int) -> None:
        acts = (
            [self.ask] * 10
            + [self.burst, self.reply_to_many]
            + [self.reply] * 8
            + [self.wait] * 3
            + [self.cancel] * 2
        )
        acts += [self.rubbish, self.noise, self.stall, self.flow, self.flow, self.start]
        rare = [self.die, self.fill]
        for _ in range(steps):
            self.draw.choice(acts)()
            chance = self.draw.random()
            if chance < 0.01:
                self.draw.choice(rare)()
            elif chance < 0.08:
                self.clear()
            elif chance < 0.09:
                await self.reload()
            elif chance < 0.2:
                await settle(self.gate)

    async def calm_down(self) -> None:
        """The client waits for its answers, and everybody does what is right."""
        self.clear()
        self.flow()
        self.start()
        for _ in range(400):
            self.hear()
            while self.unanswered:
                self.reply()
                self.hear()
            await settle(self.gate)
            self.gate.pass_ms(300)
        self.gate.dies(again=False)
        self.gate.pass_ms(60_000)
        self.listen()


class RuntimeStorm(Storm):
    """The same with an agent of the runtime protocol."""

    protocol = "runtime"

    def __init__(
        self, gate: Rig, draw: random.Random, audit: Path, disk: Disk, agent: Agent
    ) -> None:
        super().__init__(gate, draw, audit, disk)
        self.agent = agent

    def hear(self) -> None:
        for message in self.agent.heard():
            if message["type"] == "core.tool.call":
                self.unanswered.append(message["payload"]["call_id"])

    def reply(self) -> None:
        self.hear()
        if not self.unanswered or self.is_dead:
            return
        draw = self.draw
        call_id = self.unanswered.pop(draw.randrange(len(self.unanswered)))
        kind = draw.random()
        if kind < 0.2:
            self.agent.stream(call_id, 1)
            self.agent.result(call_id, output={})
        elif kind < 0.3:
            self.agent.result(call_id, status="failed", error={"code": "x", "message": "y"})
        elif kind < 0.4:
            self.agent.result(call_id, output={"z": "z" * draw.choice([90, 4_000])})
        elif kind < 0.5:
            self.agent.result(call_id, output={})
            self.agent.result(call_id, output={})
        elif kind < 0.6:
            self.agent.result(call_id, status="canceled")
        else:
            self.agent.result(call_id, output={})

    def reply_to_many(self) -> None:
        self.reply()

    def noise(self) -> None:
        if not self.is_dead:
            acts: list[Callable[[], str]] = [
                lambda: self.agent.beat(self.draw.choice(["ok", "unhealthy", "degraded"])),
                lambda: self.agent.beat(session="another"),
                lambda: self.agent.register("echo", "slow"),
                lambda: self.agent.result("77777", output={}),
            ]
            self.draw.choice(acts)()

    def start(self) -> None:
        if self.is_dead:
            self.is_dead = False
            self.agent.restarts()
            self.gate.peer.is_up = True
            self.agent.shake_hands("echo", "slow")
        self.agent.beat()


def assert_all_was_well(storm: Storm) -> None:
    """One answer each, none to what was cancelled more than once, and an honest log."""
    for own_id, times in storm.asked.items():
        if own_id in storm.cancelled:
            assert storm.answered[own_id] <= times
        else:
            assert storm.answered[own_id] == times, own_id
    if storm.disk.was_full:
        return
    admitted: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for line in audit_lines(storm.audit):
        name = line["event"].removeprefix("tool.call.")
        if name == "admitted":
            admitted[line["request_id"]] += 1
        elif line["event"].startswith("tool.call.") and name in TERMINAL:
            ended[line["request_id"]] += 1
    assert admitted == ended


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.full = False


@pytest.mark.parametrize("seed", range(STORMS))
async def test_a_storm_over_mcp_leaves_nothing_behind(
    tmp_path: Path, clock: Clock, disk: Disk, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311  # not for secrets
    audit = tmp_path / "audit"
    async with rig(tmp_path, clock, a_policy(draw, audit, "mcp"), audited=False) as gate:
        storm = Storm(gate, draw, audit, disk)
        gate.shake_hands("echo", "slow")

        await storm.rage(300)
        await storm.calm_down()

        gate.assert_idle()
        assert_all_was_well(storm)
    if not disk.was_full:
        assert verify(audit).ok


@pytest.mark.parametrize("seed", range(STORMS))
async def test_a_storm_over_the_runtime_protocol_leaves_nothing_behind(
    tmp_path: Path, clock: Clock, disk: Disk, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311  # not for secrets
    audit = tmp_path / "audit"
    async with runtime_rig(tmp_path, clock, a_policy(draw, audit, "runtime"), audited=False) as (
        gate,
        agent,
    ):
        storm = RuntimeStorm(gate, draw, audit, disk, agent)
        agent.shake_hands("echo", "slow")

        await storm.rage(300)
        await storm.calm_down()

        gate.assert_idle()
        assert_all_was_well(storm)
    if not disk.was_full:
        assert verify(audit).ok
