"""What comes in one read ends as what comes frame by frame."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callgate.policy import Policy
from tests.conftest import FULL
from tests.peers.helpers import (
    OPEN,
    answer,
    call,
    cancel,
    code_of,
    events,
    failure,
    note,
    refusal_of,
    request,
    rig,
    text,
)
from tests.peers.test_fail_closed import Disk
from tests.router.helpers import (
    assert_each_admitted_call_ends_once,
    audit_lines,
    rates_left,
    used_slots,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock, Message

SCRIPTS = 300 if FULL else 25

TIGHT = """
version: 1
defaults: {timeout: 10s, concurrency: 3, queue: 0, rate: unlimited}
agents: {web: {}}
"""


class Fault(Exception):
    """A fault of ours."""


async def test_calls_of_one_read_are_sent_and_answered_in_their_order(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call(2), call("c"))
        sent = gate.to_agent()
        gate.agent(*[answer(one["id"], text(str(one["id"]))) for one in reversed(sent)])

        assert [one["id"] for one in sent] == [1, 2, 3]
        assert [(one["id"], one["result"]) for one in gate.to_client()] == [
            ("c", text("3")),
            (2, text("2")),
            ("a", text("1")),
        ]
        assert events(tmp_path, "tool.call.") == ["admitted"] * 3 + ["completed"] * 3
        gate.assert_idle()
        (stats,) = [one for one in gate.router.snapshot()["tools"] if one["outcomes"]["ok"]]
        assert stats["outcomes"] == {"ok": 3}


async def test_without_an_audit_too(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, audited=False) as gate:
        gate.client(call(1), call(2))
        gate.agent(*[answer(one["id"]) for one in gate.to_agent()])

        assert [one["id"] for one in gate.to_client()] == [1, 2]
        gate.assert_idle()


async def test_the_first_calls_of_a_read_are_admitted_and_the_others_refused(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, TIGHT) as gate:
        gate.client(*[call(number) for number in range(1, 6)])

        assert len(gate.to_agent()) == 3
        assert [(one["id"], code_of(one)) for one in gate.to_client()] == [
            (4, "limit.concurrency"),
            (5, "limit.concurrency"),
        ]
        assert set(used_slots(gate.router).values()) == {3}
        gate.agent(*[answer(number) for number in (1, 2, 3)])
        gate.assert_idle()


async def test_a_call_runs_out_of_time_by_itself(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))
        first, _ = gate.to_agent()
        gate.pass_ms(9_000)
        gate.agent(answer(first["id"]))
        assert gate.one_to_client()["id"] == 1

        gate.pass_ms(1_000)

        assert code_of(gate.one_to_client()) == "limit.timeout"


async def test_answers_may_come_one_by_one_and_in_any_order(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(*[call(f"c{number}") for number in range(1, 7)])
        assert gate.router.snapshot()["in_flight"] == 6

        gate.agent(answer(4))
        gate.agent(answer(6), answer(1), answer(2))
        gate.agent(answer(5))
        assert gate.router.snapshot()["in_flight"] == 1
        gate.agent(answer(3))

        assert [one["id"] for one in gate.to_client()] == ["c4", "c6", "c1", "c2", "c5", "c3"]
        gate.assert_idle()
    assert_each_admitted_call_ends_once(tmp_path / "audit")


async def test_a_cancel_ends_one_call_of_a_read(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2), call(3))
        gate.to_agent()

        gate.client(cancel(2))

        assert gate.to_agent() == [cancel(2)]
        gate.agent(answer(1), answer(2), answer(3))
        assert [one["id"] for one in gate.to_client()] == [1, 3]
        gate.assert_idle()
    assert_each_admitted_call_ends_once(tmp_path / "audit")


async def test_what_an_agent_has_not_read_is_taken_back(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent_pipe.shut = True
        gate.client(call(1), call(2), call(3))

        gate.client(cancel(2))
        gate.agent_pipe.open()

        assert [one["id"] for one in gate.to_agent()] == [1, 3]


@pytest.mark.parametrize("written", [True, False])
async def test_a_cancel_in_the_same_read_reaches_a_call_that_has_not_left(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, written: object
) -> None:
    disk = Disk(monkeypatch)
    async with rig(tmp_path, clock) as gate:
        disk.full = not written

        gate.client(call(1), call(2), call(3), cancel(2))

        if written:
            assert [one["id"] for one in gate.to_agent()] == [1, 3]
            gate.agent(answer(1), answer(3))
            assert [one["id"] for one in gate.to_client()] == [1, 3]
        else:
            assert gate.to_agent() == []
            codes = [(one["id"], code_of(one)) for one in gate.to_client()]
            assert codes == [(1, "audit.unavailable"), (3, "audit.unavailable")]
        gate.assert_idle()
        disk.full = False
    assert_each_admitted_call_ends_once(tmp_path / "audit")


async def test_calls_end_in_the_log_that_they_were_admitted_in(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))
        await gate.router.reload(Policy.parse(OPEN + f"audit: {{path: {tmp_path / 'other'}}}\n"))
        gate.client(call(3), call(4))

        gate.agent(*[answer(number) for number in (1, 2, 3, 4)])

        assert [one["id"] for one in gate.to_client()] == [1, 2, 3, 4]
        gate.assert_idle()
    for place in ("audit", "other"):
        assert assert_each_admitted_call_ends_once(tmp_path / place) == 2


async def test_one_that_was_answered_already_is_not_settled_again(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, TIGHT) as gate:
        gate.client(call(1), call(2), call(3))

        gate.agent(answer(2))
        gate.agent(answer(1), answer(2), answer(3))

        assert [one["id"] for one in gate.to_client()] == [2, 1, 3]
        assert gate.hub.stray == 1
        gate.assert_idle()


async def test_an_id_that_is_in_flight_is_refused(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))

        gate.client(call(2), call(3))

        assert code_of(gate.one_to_client()) == "protocol.invalid"
        gate.agent(answer(1), answer(2), answer(3))
        assert [one["id"] for one in gate.to_client()] == [1, 2, 3]
        gate.assert_idle()


async def test_after_one_was_cancelled_the_others_still_run_out_of_time(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))
        gate.client(cancel(1))

        gate.pass_ms(10_000)

        late = gate.one_to_client()
        assert (late["id"], code_of(late)) == (2, "limit.timeout")


async def test_a_read_does_not_overtake_calls_that_wait(tmp_path: Path, clock: Clock) -> None:
    policy = OPEN.replace(
        "{web: {}}", "{web: {queue: 9, rate: {limit: 1/second, burst: 2, on_limit: wait}}}"
    )
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(call("a"), call("b"), call("c", arguments={"waits": True}))
        gate.to_agent()
        clock.now_ns += 1_100_000_000

        gate.client(call("d"), call("e"))

        assert gate.one_to_agent()["params"]["arguments"] == {"waits": True}


async def test_whoever_waits_for_the_last_is_told_and_not_before(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        told: list[str] = []
        gate.client(call(1))
        gate.client(call(2), call(3))
        gate.router.engine.on_drained = lambda: told.append("router")
        gate.caller.on_idle = lambda: told.append("client")

        gate.agent(answer(1))
        assert told == []
        gate.agent(answer(2), answer(3))

        assert told == ["router", "client"]
        gate.router.engine.on_drained = None


async def test_answers_that_come_together_can_be_the_first_words(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        told: list[str] = []
        gate.peer.on_handshake = lambda: told.append("speaks")
        gate.client(call(1), call(2))

        gate.agent(answer(1), answer(2))

        assert told == ["speaks"]


async def test_a_call_that_has_ended_is_no_work_for_the_garbage_collector(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))
        flights = [one.flight for one in gate.peer.pending.values()]

        gate.agent(answer(1), answer(2))

        assert [one and one.handle for one in flights] == [None, None]


async def test_with_tracing_each_call_has_a_span_of_its_own(tmp_path: Path, clock: Clock) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with rig(tmp_path, clock, tracer_provider=provider) as gate:
        gate.client(call(1), call(2))
        gate.agent(answer(1), answer(2))

    assert len(exporter.get_finished_spans()) == 2


async def test_one_that_fails_fails_alone(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2), call(3))

        gate.agent(answer(1), answer(2, text("bad", isError=True)), answer(3))

        first, second, third = gate.to_client()
        assert second["result"]["isError"] is True
        assert first["result"] == third["result"] == text("hi")
    assert events(tmp_path, "tool.call.")[3:] == ["completed", "failed", "completed"]


async def test_an_answer_that_comes_twice_is_passed_on_once(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))

        gate.agent(answer(1), answer(1), answer(2))
        gate.agent(answer(2), answer(2))

        assert [one["id"] for one in gate.to_client()] == [1, 2]
        assert gate.hub.stray == 3
        gate.assert_idle()


@pytest.mark.parametrize("again", [True, False])
async def test_when_the_agent_dies_each_call_is_answered(
    tmp_path: Path, clock: Clock, again: object
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))
        gate.agent(answer(1))
        gate.to_client()
        gate.agent_pipe.shut = True
        gate.client(call(3), call(4))

        gate.dies(again=bool(again))

        codes = {one["id"]: code_of(one) for one in gate.to_client()}
        if not again:
            assert codes == dict.fromkeys((2, 3, 4), "agent.crashed")
            return
        assert codes == {2: "agent.crashed"}
        gate.starts()
        assert [one["id"] for one in gate.to_agent()] == [3, 4]
        gate.agent(answer(3), answer(4))
        gate.assert_idle()


async def test_a_call_can_be_ended_by_its_request_id(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))
        _, second = audit_lines(tmp_path / "audit")[-2:]

        assert gate.router.cancel(second["request_id"])
        gate.hub.flush()

        assert code_of(gate.one_to_client()) == "tool.canceled"
        assert not gate.router.cancel(second["request_id"])
        gate.agent(answer(1))
        assert gate.one_to_client()["id"] == 1


async def test_the_end_of_the_router_ends_them(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2))

    assert events(tmp_path, "tool.call.") == ["admitted"] * 2 + ["cancelled"] * 2


async def test_while_an_agent_starts_calls_are_held_one_by_one(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.dies()
        gate.client(call(1), call(2))
        assert gate.to_agent() == []

        gate.starts()

        assert [one["id"] for one in gate.to_agent()] == [1, 2]
        gate.agent(answer(1), answer(2))
        gate.assert_idle()


async def test_the_end_of_the_client_cancels_them(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call(2), call(3))
        gate.agent(answer(2))
        gate.to_agent()

        gate.caller.closed()
        gate.hub.flush()

        assert gate.to_agent() == [cancel(1), cancel(3)]


async def test_records_that_cannot_be_written_hold_the_calls_of_a_read_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with rig(tmp_path, clock) as gate:
        disk.full = True
        gate.client(call(1), call(2))
        assert gate.to_agent() == []
        assert [code_of(one) for one in gate.to_client()] == ["audit.unavailable"] * 2
        gate.assert_idle()


async def test_answers_whose_records_cannot_be_written_are_withheld_together(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with rig(tmp_path, clock) as gate:
        gate.client(call(3), call(4), call(5))
        disk.full = True
        gate.agent(answer(1, text("secret")), answer(2, text("secret")))

        withheld = gate.to_client()
        assert [(one["id"], code_of(one)) for one in withheld] == [
            (3, "audit.unavailable"),
            (4, "audit.unavailable"),
        ]
        ids = [refusal_of(one)["request_id"] for one in withheld]
        assert len(set(ids)) == 2
        assert "secret" not in str(withheld)
        disk.full = False
        gate.agent(answer(3))
        assert gate.one_to_client() == answer(5)
        gate.assert_idle()


async def test_one_frame_that_meets_a_fault_does_not_stop_the_others(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, clock) as gate:
        real = gate.caller._call

        def fail(message: Any, now_ns: int) -> None:
            if message.name == "bad":
                raise Fault
            real(message, now_ns)

        monkeypatch.setattr(gate.caller, "_call", fail)
        gate.client(call(1, "bad"), call(2), call(3), request(4, "ping"))

        assert [one.get("params", {}).get("name") for one in gate.to_agent()] == [
            "echo",
            "echo",
            None,
        ]
        assert [type(one) for one in gate.faults] == [Fault]
        gate.faults.clear()
        gate.agent(answer(1), answer(2), answer(3, {}))
        gate.assert_idle()


def a_policy(draw: random.Random) -> str:
    """Limits of every kind, tight and loose, enforced and not."""

    def limit(*values: object) -> str:
        return draw.choice(["{}", "{}", "{{limit: {}, mode: shadow}}"]).format(draw.choice(values))

    return f"""
version: 1
global: {{concurrency: {limit(4, 9, 40)}, rate: {draw.choice(["50/second", "1000/second"])}}}
callers: {{"*": {{concurrency: {limit(5, 50)}}}}}
agents:
  web:
    timeout: 10s
    concurrency: {limit(3, 8, 60)}
    queue: {draw.choice([0, 0, 5])}
    rate: {draw.choice(["unlimited", "20/second", "{limit: 20/second, on_limit: wait}"])}
    max_output_bytes: {draw.choice(["unlimited", "60"])}
    tools: {{slow: {{concurrency: {limit(1, 4)}}}, "no*": deny}}
"""


def a_read(draw: random.Random, first_id: int) -> list[Message | bytes]:
    """What a client writes at once: mostly calls of one tool."""
    read: list[Message | bytes] = []
    tool = draw.choice(["echo", "echo", "slow", "nothing"])
    for number in range(first_id, first_id + draw.randrange(1, 20)):
        chance = draw.random()
        own_id: int | str = number if draw.random() < 0.8 else f"n{number}"
        if chance < 0.1:
            tool = draw.choice(["echo", "slow", "nothing", "unheard-of"])
        if chance < 0.8:
            read.append(call(own_id, tool, {"x": "y" * draw.randrange(9)}))
        elif chance < 0.85:
            read.append(call(own_id, tool, progressToken=number))
        elif chance < 0.88:
            read.append(call(draw.randrange(first_id, number + 1), tool))
        elif chance < 0.92:
            read.append(cancel(draw.randrange(first_id)))  # what was sent; else it is taken back
        elif chance < 0.96:
            read.append(request(own_id, "ping"))
        else:
            read.append(b"rubbish\n")
    return read


def replies(draw: random.Random, asked: list[Message]) -> list[Message | bytes]:
    """What an agent writes at once: mostly good answers, in any order."""
    said: list[Message | bytes] = []
    draw.shuffle(asked)
    for _ in range(draw.randrange(len(asked) + 1)):
        own_id = asked.pop()["id"]
        chance = draw.random()
        if chance < 0.75:
            said.append(answer(own_id))
        elif chance < 0.8:
            said.append(answer(own_id, text("x" * 90)))
        elif chance < 0.85:
            said.append(answer(own_id, text("bad", isError=True)))
        elif chance < 0.9:
            said.append(failure(own_id))
        elif chance < 0.95:
            said += [answer(own_id), answer(own_id)]
        else:
            said += [note("notifications/message", {"level": "info", "data": 1}), answer(own_id)]
    return said


async def play(
    folder: Path, clock: Clock, script: int, *, together: bool
) -> tuple[list[Any], list[Any], Any, Any]:
    """Everything that comes of a script; what is said at once in one read, or frame by frame."""
    draw = random.Random(script)  # noqa: S311
    began_ns = clock.now_ns
    to_client: list[Any] = []
    to_agent: list[Any] = []
    policy = a_policy(draw)
    times = [10, 60, 6_000] if "queue: 0" in policy else [10, 60]  # else it matters who is first
    async with rig(folder, clock, policy) as gate:
        gate.blanks = draw.random() < 0.3

        def say(hear: Any, messages: list[Message | bytes]) -> None:
            if together:
                hear(*messages)
            else:
                for message in messages:
                    hear(message)

        asked: list[Message] = []
        next_id = 1
        for _ in range(12):
            read = a_read(draw, next_id)
            next_id += len(read)
            say(gate.client, read)
            sent = gate.to_agent()
            to_agent += sent
            asked += [one for one in sent if "id" in one and one["method"] != "tools/list"]
            say(gate.agent, replies(draw, asked))
            sent = gate.to_agent()
            to_agent += sent
            asked += [one for one in sent if "id" in one]
            to_client += gate.to_client()
            if draw.random() < 0.3:
                gate.pass_ms(draw.choice(times))
                to_client += sorted(gate.to_client(), key=str)  # out of time at one moment
                to_agent += gate.to_agent()
        left = used_slots(gate.router), rates_left(gate.router)
        stats = gate.router.snapshot()["tools"]
        gate.dies(again=False)
        gate.pass_ms(60_000)
        gate.assert_idle()
    clock.now_ns = began_ns
    return to_client, to_agent, told(folder), (left, stats)


TIMES = ("asked_us", "first_us", "last_us")
"""Of the wall's clock, whose distance from the other one is measured anew by each log."""


def told(folder: Path) -> tuple[list[Any], list[Any]]:
    """The audit's story of each call, and all else.

    Stories are not told in one order: calls that wait are admitted after all of a read has ended.
    """
    stories: dict[str, list[Any]] = {}
    others = []
    for line in audit_lines(folder / "audit"):
        for member in ("seq", "ts", "hash", "prev", "segment", "policy", *TIMES):
            line.pop(member, None)
        if "request_id" in line:
            stories.setdefault(line.pop("request_id"), []).append(line)
        else:
            others.append(line)
    return sorted(stories.values(), key=str), others


def without_ids(messages: list[Any]) -> list[Any]:
    """Refusals say the request's id, which no two runs have in common."""
    for message in messages:
        meta = message.get("result", {}).get("_meta", {}).get("callgate/error")
        data = meta or message.get("error", {}).get("data")
        if isinstance(data, dict):
            data.pop("request_id", None)
    return messages


def split(messages: list[Any]) -> tuple[list[Any], list[Any]]:
    """Cancels go before all else that waits, and those of one moment in any order."""
    cancels = [one for one in messages if one["method"] == "notifications/cancelled"]
    return sorted(cancels, key=str), [one for one in messages if one not in cancels]


@pytest.mark.parametrize("script", range(SCRIPTS))
async def test_it_makes_no_difference_how_frames_are_cut_into_reads(
    tmp_path: Path, clock: Clock, script: int
) -> None:
    together = await play(tmp_path / "one", clock, script, together=True)
    apart = await play(tmp_path / "two", clock, script, together=False)

    assert without_ids(together[0]) == without_ids(apart[0])
    assert split(together[1]) == split(apart[1])
    assert together[2:] == apart[2:]
