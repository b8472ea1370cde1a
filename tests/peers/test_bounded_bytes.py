"""What one side of a gate can make it keep, and what one frame can cost the others."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from callgate.audit.verify import verify
from callgate.peers import inflight, mcp_caller, runtime_facade, runtime_tools
from callgate.peers.turns import TURN_FRAMES
from callgate.protocol import jsonrpc, mcp, mcp_encode, results
from callgate.protocol.framing import with_length
from tests.peers.helpers import answer, call, code_of, events, lines, note, request, rig, text
from tests.peers.runtime_rig import runtime_rig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.peers.helpers import Clock

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def grown_bytes(before: int) -> int:
    return tracemalloc.get_traced_memory()[0] - before


@pytest.mark.usefixtures("traced")
class TestWhatIsKept:
    async def test_requests_that_were_sent_are_not_kept(self, tmp_path: Path, clock: Clock) -> None:
        async with rig(tmp_path, clock, audited=False) as gate:
            gate.shake_hands("echo")
            before = tracemalloc.get_traced_memory()[0]
            for number in range(40):
                large = request(f"r{number}", "prompts/get", {"name": "x" * MIB})
                gate.client(large)
                gate.client(call(f"c{number}", arguments={"text": "x" * MIB}))
                gate.agent_pipe.writes.clear()
                gate.agent_pipe.take()

            assert grown_bytes(before) < 2 * MIB
            assert len(gate.caller.in_flight) == 80
            gate.dies()

    async def test_calls_that_wait_are_bounded_in_bytes(
        self, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mcp_caller, "MAX_WAITING_BYTES", 4 * MIB)
        policy = """
version: 1
defaults: {concurrency: 1, queue: 1000, rate: unlimited, timeout: 50s, max_timeout: 60s}
agents: {web: {}}
"""
        async with rig(tmp_path, clock, policy) as gate:
            gate.client(call(0))
            (first,) = gate.to_agent()
            before = tracemalloc.get_traced_memory()[0]
            gate.client(*(call(number, arguments={"x": "y" * MIB}) for number in range(1, 40)))
            refused = gate.to_client()

            assert {code_of(one) for one in refused} == {"limit.concurrency"}
            assert len(refused) == 39 - 3
            assert refused[0]["result"]["_meta"]["callgate/error"]["limit"]["type"] == (
                "waiting_bytes"
            )
            assert grown_bytes(before) < 8 * MIB
            gate.agent(answer(first["id"]))
            for _ in range(3):  # what was let go of makes room, call by call
                (sent,) = gate.to_agent()
                gate.agent(answer(sent["id"]))
            assert gate.caller._waiting_bytes == 0
            gate.client(call(50, arguments={"x": "y" * MIB}))
            assert len(gate.to_agent()) == 1
            gate.dies()
            gate.assert_idle()

    async def test_a_small_call_that_waits_keeps_no_large_frame(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        policy = "version: 1\nagents: {web: {concurrency: 1, queue: 1000, rate: unlimited}}\n"
        async with rig(tmp_path, clock, policy, audited=False) as gate:
            gate.client(call(0))
            before = tracemalloc.get_traced_memory()[0]
            for number in range(1, 30):
                gate.client(lines(call(number)).replace(b'"method"', b" " * MIB + b'"method"'))

            assert grown_bytes(before) < MIB
            gate.dies(again=False)

    async def test_a_small_tool_keeps_no_large_frame(self, tmp_path: Path, clock: Clock) -> None:
        async with runtime_rig(tmp_path, clock, audited=False) as (gate, agent):
            agent.shake_hands()
            before = tracemalloc.get_traced_memory()[0]
            for number in range(40):
                agent.register(f"tool{number}", ignored="x" * MIB)
                agent.heard()
                gate.agent_pipe.writes.clear()
                gate.agent_pipe._seen = 0

            assert len(agent.peer.tools) == 41
            assert grown_bytes(before) < MIB

    async def test_descriptions_are_bounded_together(
        self, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runtime_tools, "MAX_TOOL_BYTES", MIB)
        async with runtime_rig(tmp_path, clock, audited=False) as (gate, agent):
            agent.shake_hands()
            for number in range(100):
                named = {"tool_id": f"web/t{number}", "name": f"t{number}"}
                schema = {"type": "object", "text": "x" * 60_000}
                tool = {**named, "description": "d", "input_schema": schema}
                agent.say("agent.tools.register", {"tools": [tool]})
            answers = [one["payload"] for one in agent.heard()]

            assert [bool(one["registered"]) for one in answers] == [True] * 17 + [False] * 83
            agent.say("agent.tools.unregister", {"tool_ids": ["web/t3"]})
            agent.say("agent.tools.register", {"tools": [tool]})  # there is room for one again
            assert agent.heard()[-1]["payload"]["registered"] == ["web/t99"]
            assert gate.faults == []


class TestWhatNobodyReads:
    async def test_answers_to_registrations_are_dropped_in_a_flood(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with runtime_rig(tmp_path, clock) as (gate, agent):
            agent.shake_hands()
            gate.agent_pipe.flooded = True
            stray = gate.hub.stray

            agent.register("more")
            agent.say("agent.tools.unregister", {"tool_ids": ["web/more"]})

            assert agent.heard() == []
            assert gate.hub.stray == stray + 2

    async def test_lists_that_a_client_does_not_read_are_bounded(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with runtime_rig(tmp_path, clock) as (gate, agent):
            agent.shake_hands(*(f"{number}{'n' * 200}" for number in range(100)))
            gate.client_pipe.shut = True
            sent = 0

            for number in range(200):
                gate.caller.receive(lines(request(number, "tools/list")))
                waiting = sum(map(len, gate.client_pipe.waiting))
                gate.client_pipe.flooded = waiting > MIB
                sent = max(sent, waiting)

            assert sent < MIB + 200 * KIB
            gate.hub.flush()
            gate.client_pipe.flooded = False

    async def test_lists_that_wait_for_a_registration_are_counted_one_by_one(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with runtime_rig(tmp_path, clock) as (gate, agent):
            gate.client(*(request(number, "tools/list") for number in range(200)))
            gate.client_pipe.shut = True
            pipe = gate.client_pipe
            write = pipe.write

            def counted(frames: list[bytes], first: Sequence[bytes] = ()) -> None:
                write(frames, first)
                pipe.flooded = sum(map(len, pipe.waiting)) > MIB

            pipe.write = counted  # type: ignore[method-assign]
            agent.shake_hands(*(f"{number}{'n' * 200}" for number in range(100)))
            pipe.flooded = False

            assert sum(map(len, gate.client_pipe.waiting)) < MIB + 200 * KIB
            assert gate.caller.in_flight == {}


class TestAFloodOfFrames:
    async def test_a_turn_ends_and_the_rest_waits_for_the_next(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            flood = lines(*(call(number) for number in range(TURN_FRAMES + 10)))

            gate.caller.receive(flood)
            gate.hub.flush()
            assert len(gate.to_agent()) == TURN_FRAMES
            gate.caller.turns.go_on(clock.now_ns)
            gate.hub.flush()

            assert len(gate.to_agent()) == 10
            assert not gate.caller.turns.waiting
            gate.dies()

    async def test_a_read_in_the_middle_of_a_turn_keeps_the_order(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            gate.caller.receive(lines(*(call(number) for number in range(TURN_FRAMES + 2))))
            gate.client(call("last"))

            sent = [one["id"] for one in gate.to_agent()]
            assert sent == sorted(sent)
            assert len(sent) == TURN_FRAMES + 3
            gate.dies()

    async def test_a_process_that_ended_is_not_heard_any_more(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            notes = [note("notifications/message", {"n": n}) for n in range(TURN_FRAMES + 5)]
            gate.peer.receive(lines(*notes))
            gate.dies()

            assert not gate.peer.turns.waiting

    async def test_a_client_that_reads_nothing_is_not_answered_on_and_on(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.client_pipe.flooded = True
            gate.caller.receive(b"{}\n" * 10 * TURN_FRAMES)
            assert gate.hub.unreadable < TURN_FRAMES
            gate.client_pipe.flooded = False
            assert gate.caller.turns.waiting
            gate.client()

            assert gate.hub.unreadable == 10 * TURN_FRAMES

    async def test_it_is_known_how_much_was_of_no_use(self, tmp_path: Path, clock: Clock) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            turns = gate.peer.turns
            gate.agent(b"\n \n")
            assert turns.wasted == 1.0
            gate.agent(b"noise\n", answer(999))
            assert turns.wasted == 1.0
            gate.agent(b"noise\n", note("notifications/message", {}))
            assert turns.wasted == 0.5
            gate.agent(note("notifications/message", {}))
            assert turns.wasted == 0.0


class TestAFaultOfOurs:
    """Whatever is raised while one frame is handled ends that frame alone, answered."""

    async def test_in_an_answer_ends_its_call(self, tmp_path: Path, clock: Clock) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            gate.client(call(1), call(2))
            one, two = gate.to_agent()
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(results, "may_be_failure", _raise)
                gate.agent(answer(one["id"]))
            gate.agent(answer(two["id"]))

            broken, good = gate.to_client()
            assert (broken["id"], code_of(broken)) == (1, "internal")
            assert good["result"] == text("hi")
            assert [type(fault) for fault in gate.faults] == [RecursionError]
            gate.faults.clear()
            gate.assert_idle()
        assert events(tmp_path, "tool.call.").count("failed") == 1
        assert verify(tmp_path / "audit").problems == []

    async def test_in_an_answer_to_another_request_ends_it(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            gate.client(request(1, "prompts/list"))
            asked = gate.one_to_agent()
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(jsonrpc, "encode_response", _raise)
                gate.agent(answer(asked["id"], {}))

            assert code_of(gate.one_to_client()) == "internal"
            gate.faults.clear()
            gate.assert_idle()

    @pytest.mark.parametrize("where", ["before", "after"])
    async def test_in_a_call_answers_it(self, tmp_path: Path, clock: Clock, where: str) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            with pytest.MonkeyPatch.context() as patched:
                name = "begin" if where == "before" else "send_call"
                owner: Any = type(gate.router.engine) if where == "before" else type(gate.peer)
                patched.setattr(owner, name, _raise)
                gate.client(call(1))
            gate.client(call(2))
            gate.agent(answer(gate.one_to_agent()["id"]))

            broken, good = gate.to_client()
            assert (broken["id"], code_of(broken)) == (1, "internal")
            assert good["id"] == 2
            gate.faults.clear()
            gate.assert_idle()

    async def test_in_another_request_answers_it(self, tmp_path: Path, clock: Clock) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(mcp_encode, "encode_request", _raise)
                gate.client(request(1, "prompts/list"))

            assert code_of(gate.one_to_client()) == "internal"
            gate.faults.clear()
            gate.assert_idle()

    async def test_in_decoding_is_answered_and_the_others_go_on(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            real = mcp.decode

            def decode(data: bytes) -> Any:
                if b"poison" in data:
                    raise RecursionError
                return real(data)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(mcp, "decode", decode)
                gate.client(call(1), call("poison"), call(3))
                one, three = gate.to_agent()
                gate.agent(answer("poison"), answer(one["id"]), answer(three["id"]))

            assert {message["id"] for message in gate.to_client()} == {1, "poison", 3}
            assert gate.hub.rejected["internal"] == 2
            gate.faults.clear()
            gate.assert_idle()

    async def test_in_decoding_what_an_agent_sends_ends_its_request_or_answers_it(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with rig(tmp_path, clock) as gate:
            gate.shake_hands("echo")
            gate.client(call(1), request(2, "prompts/list"))
            asked = [one["id"] for one in gate.to_agent()]
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(mcp, "decode", _raise)
                gate.agent(*(answer(number) for number in asked), request("own", "roots/list"))

            assert [code_of(one) for one in gate.to_client()] == ["internal", "internal"]
            told = gate.one_to_agent()
            assert (told["id"], code_of(told)) == ("own", "internal")
            gate.faults.clear()
            gate.assert_idle()

    async def test_in_an_answer_of_the_runtime_protocol_ends_its_call(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        async with runtime_rig(tmp_path, clock) as (gate, agent):
            agent.shake_hands()
            gate.client(call(1))
            sent = agent.one_heard()
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(runtime_facade, "call_result", _raise)
                agent.result(sent["payload"]["call_id"], output="x")

            assert code_of(gate.one_to_client()) == "internal"
            gate.faults.clear()


async def test_an_answer_nested_as_deep_as_can_be_ends_its_request(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands("echo")
        for levels in (200, 255, 300, 800, 900, 950, 990, 1000, 5000):
            gate.client(call(levels), request(f"r{levels}", "prompts/list"))
            for asked in gate.to_agent():
                deep = b"[" * levels + b"]" * levels
                gate.agent(b'{"jsonrpc":"2.0","id":%d,"result":{"a":%b}}\n' % (asked["id"], deep))

            assert len(gate.client_pipe.take().splitlines()) == 2
        gate.assert_idle()


async def test_frames_that_are_too_deep_are_answered_and_counted_and_the_others_go_on(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands("echo")
        deep = json.dumps(call(1)).replace("{}", '{"a":' * 5000 + "1" + "}" * 5000)
        gate.client(deep.encode() + b"\n", call(2))

        assert code_of(gate.one_to_client()) == "protocol.invalid"
        assert gate.hub.rejected["depth"] == 1
        assert len(gate.to_agent()) == 1
        gate.dies()


def _raise(*_: Any, **__: Any) -> Any:
    raise RecursionError


def test_the_bound_is_the_designs() -> None:
    assert inflight.MAX_WAITING_BYTES == 64 * MIB
    assert with_length(b"") == b"\0\0\0\0"
