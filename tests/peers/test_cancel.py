"""A cancel: who hears of it, what it overtakes, and how long the slot stays taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from callgate.peers.agent import MAX_OVERDUE
from tests.peers.helpers import (
    OPEN,
    answer,
    call,
    cancel,
    events,
    initialize,
    note,
    progress,
    request,
    rig,
)
from tests.router.helpers import used_slots

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock

GRACE = """
version: 1
defaults: {{timeout: 10s, concurrency: 2, queue: 5, rate: unlimited, cancel_grace: 5s}}
agents: {{web: {{on_ignored_cancel: {then}}}}}
"""
RELEASE = GRACE.format(then="release")


async def test_a_cancel_reaches_the_agent_under_its_own_id(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call("b"))
        gate.to_agent()

        gate.client(cancel("b"))

        assert gate.to_agent() == [cancel(2)]
    assert events(tmp_path, "tool.call.") == ["admitted", "admitted", "cancelled", "cancelled"]


async def test_what_was_cancelled_is_not_answered(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))

        gate.agent(answer(1))

        assert gate.to_client() == []
        gate.assert_idle()
    assert events(tmp_path, "tool.call.") == ["admitted", "cancelled", "late"]


async def test_cancelling_one_hurts_no_other(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call("b"))

        gate.client(cancel("a"))
        gate.agent(answer(2))

        assert gate.to_client() == [answer("b")]


@pytest.mark.parametrize("own_id", ["b", 1, "1"])
async def test_a_cancel_of_nothing_goes_nowhere(
    own_id: int | str, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))
        gate.to_agent()

        gate.client(cancel(own_id))

        assert gate.to_agent() == []
        assert gate.hub.stray == 1


async def test_a_cancel_overtakes_frames_that_wait(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))
        gate.agent_pipe.shut = True
        gate.client(call("b"), call("c"))
        gate.to_agent()

        gate.client(cancel("a"))

        gate.agent_pipe.open()
        sent = gate.to_agent()
        assert sent[0] == cancel(1)
        assert [message["id"] for message in sent[1:]] == [2, 3]


async def test_a_call_that_waits_unsent_is_taken_back_and_nobody_hears_of_it(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent_pipe.shut = True
        gate.client(call("a"), call("b"))

        gate.client(cancel("a"))

        gate.agent_pipe.open()
        assert [message["id"] for message in gate.to_agent()] == [2]
        gate.agent(answer(2))
        gate.assert_idle()


async def test_a_call_cancelled_in_its_own_read_is_never_sent(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), cancel("a"))

        assert gate.to_agent() == []
        assert gate.to_client() == []
        gate.assert_idle()
    assert events(tmp_path, "tool.call.") == ["admitted", "cancelled"]


async def test_a_call_that_waits_for_its_turn_is_denied_with_the_cancel(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, RELEASE) as gate:
        gate.client(call("a"), call("b"), call("c"))
        gate.to_agent()

        gate.client(cancel("c"))

        assert gate.to_agent() == []
        assert gate.to_client() == []
        gate.agent(answer(1), answer(2))
        gate.assert_idle()
    assert events(tmp_path, "tool.call.")[2] == "denied"


async def test_the_slot_stays_taken_until_the_agent_answers(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, RELEASE) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))
        assert used_slots(gate.router) == {"agent:web": 1}

        gate.agent(answer(1))

        assert used_slots(gate.router) == {}


async def test_the_slot_stays_taken_for_the_grace_and_no_longer(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, RELEASE) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))

        gate.pass_ms(4_900)
        held = used_slots(gate.router)
        gate.pass_ms(100)

        assert held == {"agent:web": 1}
        gate.assert_idle()
        assert gate.troubles == []


async def test_the_grace_lets_in_whoever_waits(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, RELEASE) as gate:
        gate.client(call("a"), call("b"), call("c"))
        gate.client(cancel("a"))
        gate.to_agent()

        gate.pass_ms(5_000)

        assert gate.one_to_agent()["id"] == 3


async def test_an_answer_after_the_grace_is_late_too(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, RELEASE) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))
        gate.pass_ms(5_000)

        gate.agent(answer(1), answer(1))

        assert gate.to_client() == []
        assert gate.hub.stray == 1
    assert events(tmp_path, "tool.call.") == ["admitted", "cancelled", "late"]


async def test_what_ignored_its_cancel_is_remembered_within_bounds(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, audited=False) as gate:
        for number in range(MAX_OVERDUE + 1):
            gate.client(call(number))
            gate.client(cancel(number))

        gate.pass_ms(5_000)

        assert len(gate.peer._ignored_cancels) == MAX_OVERDUE
        gate.assert_idle()
        assert [recorder.pins for recorder in gate.router.engine.recorders] == [MAX_OVERDUE]


@pytest.mark.parametrize(("then", "again"), [("restart", True), ("kill", False)])
async def test_a_deaf_agent_is_ended_after_a_ping(
    then: str, *, again: bool, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, GRACE.format(then=then)) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))
        gate.to_agent()
        gate.pass_ms(5_000)
        assert gate.one_to_agent()["method"] == "ping"
        assert gate.troubles == []

        gate.pass_ms(5_000)

        assert gate.troubles == [("ignored_cancel", again)]


@pytest.mark.parametrize("reply", ["result", "error"])
async def test_an_agent_that_answers_the_ping_is_spared(
    reply: str, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, GRACE.format(then="kill")) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))
        gate.to_agent()
        gate.pass_ms(5_000)
        ping = gate.one_to_agent()

        gate.agent({"jsonrpc": "2.0", "id": ping["id"], reply: {}})
        gate.pass_ms(60_000)

        assert gate.troubles == []
        assert gate.to_client() == []
        gate.assert_idle()


async def test_one_ping_asks_for_all_who_were_ignored(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, GRACE.format(then="kill")) as gate:
        gate.client(call("a"), call("b"))
        gate.client(cancel("a"), cancel("b"))
        gate.to_agent()

        gate.pass_ms(5_000)

        assert [message["method"] for message in gate.to_agent()] == ["ping"]


async def test_a_ping_that_dies_with_its_agent_accuses_nobody(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, GRACE.format(then="kill")) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))
        gate.pass_ms(5_000)

        gate.dies()
        gate.pass_ms(60_000)

        assert gate.troubles == []


async def test_a_timeout_is_followed_by_the_grace_too(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, GRACE.format(then="kill")) as gate:
        gate.client(call("a"))
        gate.pass_ms(10_000)
        gate.to_agent()

        gate.pass_ms(5_000)

        assert gate.one_to_agent()["method"] == "ping"


async def test_a_client_that_goes_away_cancels_everything(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, RELEASE) as gate:
        gate.client(call("a"), call("b"), call("waits"), request("r", "resources/read", {}))
        gate.to_agent()

        gate.caller.closed()
        gate.hub.flush()

        assert sorted(message["params"]["requestId"] for message in gate.to_agent()) == [1, 2, 3]
        assert gate.to_client() == []
        assert gate.caller.in_flight == {}
        gate.agent(answer(1), answer(2))
        gate.assert_idle()
    ends = [event for event in events(tmp_path, "tool.call.") if event in {"cancelled", "denied"}]
    assert ends == ["cancelled", "cancelled", "denied"]


async def test_initialize_is_not_cancelled_whatever_happens(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(initialize(0))
        gate.to_agent()

        gate.client(cancel(0))
        assert gate.to_agent() == []
        gate.agent(answer(1, {}))
        assert gate.to_client() == [answer(0, {})]
        gate.client(initialize("again"))
        gate.to_agent()
        gate.caller.closed()
        gate.hub.flush()

        assert gate.to_agent() == []


async def test_cancels_of_one_pass_go_in_one_write(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(*(call(number) for number in range(10)))

        gate.client(*(cancel(number) for number in range(10)), call("next"))

        assert len(gate.agent_pipe.writes) == 2
        sent = gate.to_agent()[10:]
        assert [message.get("method") for message in sent] == [
            *["notifications/cancelled"] * 10,
            "tools/call",
        ]
        assert [message["params"]["requestId"] for message in sent[:10]] == list(range(1, 11))


async def test_a_cancelled_call_shows_no_progress(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, OPEN) as gate:
        gate.client(call("a", progressToken="t"))
        gate.client(cancel("a"))

        gate.agent(progress(1))

        assert gate.to_client() == []


async def test_a_timed_out_call_shows_no_progress(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, OPEN) as gate:
        gate.client(call("a", progressToken="t"))
        gate.pass_ms(10_000)
        gate.to_client()

        gate.agent(progress(1))

        assert gate.to_client() == []


@pytest.mark.parametrize(
    "params", [{}, {"requestId": None}, {"requestId": [1]}, {"requestId": 1.5}]
)
async def test_a_cancel_that_cannot_be_read_cancels_nothing(
    params: dict[str, object], tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1))
        gate.to_agent()

        gate.client(note("notifications/cancelled", params))

        assert gate.to_agent() == []
        assert len(gate.caller.in_flight) == 1


async def test_a_request_that_waits_unsent_is_taken_back_and_nobody_hears_of_it(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent_pipe.shut = True
        gate.client(request("r", "prompts/list"))

        gate.client(cancel("r"))

        gate.agent_pipe.open()
        assert gate.to_agent() == []
