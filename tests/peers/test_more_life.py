"""Whatever happens to a client, an agent and its process: each call is answered once."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.peers.helpers import (
    Clock,
    Rig,
    answer,
    call,
    cancel,
    failure,
    initialized,
    request,
    rig,
    tool_list,
)
from tests.router.helpers import assert_each_admitted_call_ends_once

if TYPE_CHECKING:
    from tests.peers.helpers import Message

POLICY = """
version: 1
defaults: {timeout: 4s, max_timeout: 8s, concurrency: 3, queue: 4, rate: unlimited}
agents: {web: {cancel_grace: 1s, requests: {timeout: 6s}}}
"""

STEPS = (
    *("call", "call", "call", "ask", "cancel", "answer", "answer", "fail", "double", "wait"),
    *("question", "reply", "jam", "jam", "die", "start", "start"),
)


class Life:
    """A client that remembers what it asked, an agent that remembers what it was asked."""

    def __init__(self, gate: Rig) -> None:
        self.gate = gate
        self.up = True
        self.asked = 0
        self.open: list[str] = []
        """Of the client: not answered and not cancelled."""
        self.cancelled: set[str] = set()
        self.answers: Counter[str] = Counter()
        self.known: list[Message] = []
        """Of the process that lives: not answered."""
        self.done: list[Any] = [777]
        self.questions: list[Any] = []

    def step(self, name: str, number: int) -> None:
        getattr(self, name)(number)
        self.look()

    def look(self) -> None:
        """Take note of what either side was sent."""
        for message in self.gate.to_client():
            if "method" in message:
                if "id" in message:
                    self.questions.append(message["id"])
            else:
                self.answers[message["id"]] += 1
                if message["id"] in self.open:
                    self.open.remove(message["id"])
        self.known += [one for one in self.gate.to_agent() if "id" in one and "method" in one]

    def _new(self) -> str:
        self.asked += 1
        self.open.append(f"c{self.asked}")
        return self.open[-1]

    def call(self, number: int) -> None:
        own_id = self._new()
        meta = {"callgate/timeout_ms": number * 100} if number % 2 else {}
        self.gate.client(call(own_id, **meta))

    def ask(self, number: int) -> None:
        method = ("resources/list", "tools/list", "ping")[number % 3]
        self.gate.client(request(self._new(), method))

    def cancel(self, number: int) -> None:
        if self.open:
            chosen = self.open.pop(number % len(self.open))
            self.cancelled.add(chosen)
            self.gate.client(cancel(chosen))

    def answer(self, number: int) -> None:
        if self.known:
            message = self.known.pop(number % len(self.known))
            results = {"initialize": initialized(), "tools/list": tool_list("echo"), "ping": {}}
            self.done.append(message["id"])
            self.gate.agent(answer(message["id"], results.get(message["method"])))

    def fail(self, number: int) -> None:
        others = [one for one in self.known if one["method"] != "initialize"]
        if others:
            message = others[number % len(others)]
            self.known.remove(message)
            self.done.append(message["id"])
            self.gate.agent(failure(message["id"]))

    def double(self, number: int) -> None:
        if self.up:
            self.gate.agent(answer(self.done[number % len(self.done)]))

    def wait(self, number: int) -> None:
        self.gate.pass_ms(number * 100)

    def question(self, number: int) -> None:
        if self.up:
            self.gate.agent(request(f"q{number}", "roots/list"))

    def reply(self, _: int) -> None:
        if self.questions:
            self.gate.client(answer(self.questions.pop(), {"roots": []}))

    def jam(self, _: int) -> None:
        pipe = self.gate.agent_pipe
        if pipe.shut:
            pipe.open()
        else:
            pipe.shut = True

    def die(self, _: int) -> None:
        if self.up:
            self.up = False
            self.gate.dies()
            self.known.clear()

    def start(self, _: int) -> None:
        if not self.up:
            self.up = True
            self.gate.troubles.clear()
            self.gate.starts()

    def recover(self) -> None:
        """A process that works answers everything that is left, without any time to pass."""
        if self.gate.troubles:
            self.die(0)  # it took too long for its handshake: who runs it ends it
        self.start(0)
        self.gate.agent_pipe.open()
        self.look()
        while self.known:
            self.step("answer", 0)

    def end(self) -> None:
        """The process is gone for good."""
        self.gate.dies(again=False)
        self.look()


async def live(steps: list[tuple[str, int]], *, session: bool, heals: bool) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as monkeypatch:
        path = Path(place)
        async with rig(path, Clock(monkeypatch), POLICY) as gate:
            if session:
                gate.shake_hands("echo")
            life = Life(gate)

            for name, number in steps:
                life.step(name, number)
            if heals:
                life.recover()
                assert life.open == []
            life.end()

            expected = {f"c{number + 1}" for number in range(life.asked)} - life.cancelled
            assert life.answers == dict.fromkeys(expected, 1)
            gate.pass_ms(60_000)
            gate.assert_idle()
        assert_each_admitted_call_ends_once(path / "audit")


@example(
    steps=[("die", 0), ("start", 0), ("wait", 40), ("wait", 60), ("call", 0)],
    session=True,
    heals=True,
)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 60)), min_size=20, max_size=60),
    session=st.booleans(),
    heals=st.booleans(),
)
def test_each_call_is_answered_once_whatever_happens(
    *, steps: list[tuple[str, int]], session: bool, heals: bool
) -> None:
    asyncio.run(live(steps, session=session, heals=heals))
