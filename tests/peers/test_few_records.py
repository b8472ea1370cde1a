"""Whatever a peer does, the audit grows no faster than a hundred records a second of a sort."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from callgate.audit.merge import MAX_KEYS, PER_SECOND, RecordThrottle
from callgate.gate.stderr import UNREADABLE, UNREADABLE_CLIENT
from callgate.router import recorder as recorder_module
from tests.peers.helpers import answer, call, note, rig, tool_list
from tests.peers.runtime_rig import runtime_rig
from tests.router.helpers import audit_lines

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.peers.helpers import Clock

DENY = 'version: 1\nagents: {web: {tools: {"*": deny}}}\n'


def records(tmp_path: Path) -> list[dict[str, Any]]:
    return list(audit_lines(tmp_path / "audit"))


def stands_for(lines: list[dict[str, Any]], event: str) -> int:
    return sum(line.get("count", 1) for line in lines if line["event"] == event)


async def test_refusals_stay_few_though_the_agents_tools_change_all_the_time(
    tmp_path: Path, clock: Clock
) -> None:
    rounds, calls = 40, 50
    async with rig(tmp_path, clock, DENY) as gate:
        gate.shake_hands("echo")
        for number in range(rounds):
            gate.agent(note("notifications/tools/list_changed"))
            (asked,) = gate.to_agent()
            gate.agent(answer(asked["id"], tool_list(f"tool{number}")))
            gate.client(*(call(n, f"tool{number}") for n in range(calls)))

        denied = [one for one in records(tmp_path) if one["event"] == "tool.call.denied"]
        assert len(denied) == PER_SECOND
        gate.pass_ms(1_100)

    denied = [one for one in records(tmp_path) if one["event"] == "tool.call.denied"]
    assert len(denied) <= PER_SECOND + rounds
    assert stands_for(denied, "tool.call.denied") == rounds * calls


async def test_merged_lanes_are_bounded_too(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_MERGED", 5)
    names = [f"tool{number}" for number in range(100)]
    async with rig(tmp_path, clock, DENY) as gate:
        gate.shake_hands(*names)
        gate.client(*(call(n, name) for n, name in enumerate(names * 4)))
        gate.pass_ms(1_100)

    lines = records(tmp_path)
    assert len([one for one in lines if one["event"] == "tool.call.denied"]) == PER_SECOND + 6
    assert stands_for(lines, "tool.call.denied") == 400


async def test_each_further_hello_is_recorded_a_hundred_times_a_second_at_most(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        for _ in range(500):
            agent.hello("wrong")
        clock.now_ns += 5
        agent.hello("wrong")
        gate.pass_ms(1_100)

    lines = records(tmp_path)
    written = Counter(line["event"] for line in lines)
    assert written["security.denied"] == written["agent.handshake_failed"] == PER_SECOND + 1
    assert stands_for(lines, "security.denied") == 501
    assert stands_for(lines, "agent.handshake_failed") == 501
    merged = [line for line in lines if line.get("count")]
    assert all(line["first_us"] <= line["last_us"] for line in merged)


async def test_an_agent_that_is_ill_and_well_by_turns_is_merged(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        for _ in range(300):
            agent.beat("unhealthy")
            agent.beat("ok")
        gate.pass_ms(1_100)

    written = Counter(line["event"] for line in records(tmp_path))
    assert written["agent.marked_unhealthy"] == written["agent.recovered"] == PER_SECOND + 1


async def test_what_is_only_counted_is_written_at_the_end(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(b"{}\n" * 400)

    assert stands_for(records(tmp_path), "protocol.frame_rejected") == 400


async def test_a_clients_bad_frame_is_the_clients(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        told: list[tuple[str, bool]] = []
        gate.hub.on_first_rejected = lambda reason, by_client: told.append((reason, by_client))
        gate.client(b"{}\n", b"{}\n")
        gate.agent(b"{}\n", b"{}\n")

    lines = [line for line in records(tmp_path) if line["event"] == "protocol.frame_rejected"]
    assert [line.get("caller") for line in lines] == ["anonymous"] * 2 + [None] * 2
    assert told == [("version", True), ("version", False)]
    assert "client" in UNREADABLE_CLIENT
    assert "server" not in UNREADABLE_CLIENT
    assert "client" not in UNREADABLE


async def test_a_fault_is_told_of_no_more_often_than_that(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        for _ in range(3 * PER_SECOND):
            gate.hub.fault(ValueError())

        assert len(gate.faults) == PER_SECOND
        gate.faults.clear()


def test_sorts_without_end_share_their_records() -> None:
    throttle = RecordThrottle()
    written = sum(throttle.allow(number, 0) for number in range(10 * MAX_KEYS))

    assert written == MAX_KEYS + PER_SECOND
    assert len(throttle._mergers) <= MAX_KEYS + 1
    assert throttle.allow("new", 2_000_000_000)
    assert len(throttle._mergers) == 1
