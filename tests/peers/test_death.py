"""An agent's process dies, and another takes its place: who is told, what goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from callgate.errors import LimitInfo
from callgate.peers.mcp_session import MAX_KEPT_BYTES
from tests.peers.helpers import (
    OPEN,
    answer,
    call,
    cancel,
    code_of,
    events,
    failure,
    initialize,
    initialized,
    note,
    refusal_of,
    request,
    rig,
    text,
    tool_list,
)
from tests.router.helpers import assert_each_admitted_call_ends_once, used_slots

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock, Rig

ONE = """
version: 1
defaults: {timeout: 10s, concurrency: 1, queue: 5, rate: unlimited}
agents: {web: {}}
"""


async def test_a_death_answers_what_was_sent_with_the_reason(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call("b"), request("r", "prompts/list"))

        gate.dies("signal")

        answers = gate.to_client()
        assert [(one["id"], code_of(one)) for one in answers] == [
            ("a", "agent.crashed"),
            ("b", "agent.crashed"),
            ("r", "agent.crashed"),
        ]
        assert answers[0]["result"]["content"][0]["text"].endswith(": signal")
        assert refusal_of(answers[0])["retryable"] is False
        gate.assert_idle()
    assert events(tmp_path, "tool.call.").count("crashed") == 2
    assert assert_each_admitted_call_ends_once(tmp_path / "audit") == 2


async def test_an_end_by_a_limit_says_which_and_how_far(tmp_path: Path, clock: Clock) -> None:
    limit = LimitInfo("memory", "agent:web", 1_000, 2_000)
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))

        gate.peer.process_ended("oom", limit, again=True)
        gate.hub.flush()

        refusal = refusal_of(gate.one_to_client())
        assert refusal["code"] == "resource_limit_exceeded"
        assert refusal["limit"] == {
            "type": "memory",
            "scope": "agent:web",
            "limit": 1_000,
            "usage": 2_000,
        }


async def test_a_call_that_comes_between_two_processes_goes_to_the_second(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.dies()
        gate.client(call("a"))
        assert gate.to_client() == []

        gate.starts()

        sent = gate.one_to_agent()
        gate.agent(answer(sent["id"]))
        assert gate.to_client() == [answer("a")]


async def test_a_held_call_keeps_its_deadline(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.dies()
        gate.client(call("a"))

        gate.pass_ms(10_000)
        gate.starts()

        assert code_of(gate.one_to_client()) == "limit.timeout"
        assert gate.to_agent() == []
        gate.assert_idle()
        assert gate.peer.held_bytes == 0


async def test_a_held_call_is_cancelled_unseen(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.dies()
        gate.client(call("a"), call("b"))

        gate.client(cancel("a"))
        gate.starts()

        assert [message["id"] for message in gate.to_agent()] == [2]
        gate.agent(answer(2))
        gate.assert_idle()


async def test_what_no_process_can_have_read_goes_to_the_next(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("read"))
        gate.agent_pipe.shut = True
        gate.client(call("unread"), request("r", "prompts/list"))

        gate.dies()
        gate.starts()

        crashed = gate.one_to_client()
        assert (crashed["id"], code_of(crashed)) == ("read", "agent.crashed")
        sent = gate.to_agent()
        assert [message["method"] for message in sent] == ["tools/call", "prompts/list"]
        gate.agent(answer(sent[0]["id"], text("x")), answer(sent[1]["id"], {"prompts": []}))
        assert gate.to_client() == [answer("unread", text("x")), answer("r", {"prompts": []})]
        gate.assert_idle()


async def test_whoever_waits_enters_and_is_held_for_the_next_process(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(call("a"), call("b"), call("c"))

        gate.dies()
        assert [message["id"] for message in gate.to_client()] == ["a"]
        gate.starts()

        sent = gate.to_agent()[-1]
        gate.agent(answer(sent["id"]))
        assert gate.to_client() == [answer("b")]


async def test_a_death_for_good_answers_everybody(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(call("runs"), call("waits"), call("waits too"))

        gate.dies(again=False)
        gate.client(call("late"), request("r", "ping"))

        assert {one["id"]: code_of(one) for one in gate.to_client()} == {
            "runs": "agent.crashed",
            "waits": "agent.unavailable",
            "waits too": "agent.unavailable",
            "late": "agent.unavailable",
            "r": "agent.unavailable",
        }
        gate.assert_idle()
        gate.pass_ms(400_000)
        assert gate.to_client() == []


async def test_what_was_held_is_answered_if_no_process_comes_after_all(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.dies()
        gate.client(call("a"))

        gate.dies("failed_to_start", again=False)

        assert code_of(gate.one_to_client()) == "agent.crashed"
        gate.assert_idle()
        assert (gate.peer.held_bytes, gate.peer.is_wanted) == (0, False)


async def test_work_that_lingered_ends_with_its_process(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))
        assert used_slots(gate.router) == {"agent:web": 1}

        gate.dies()

        assert used_slots(gate.router) == {}
        assert gate.to_client() == []
        assert [recorder.pins for recorder in gate.router.engine.recorders] == [0]


async def test_an_overdue_call_is_forgotten_with_its_process(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(call("a"))
        gate.client(cancel("a"))
        gate.pass_ms(60_000)
        gate.dies()
        gate.starts()

        gate.agent(answer(1))

        assert gate.hub.stray == 1
        assert [recorder.pins for recorder in gate.router.engine.recorders] == [0]


async def test_questions_of_a_dead_agent_are_withdrawn(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "elicitation/create", {}))
        gate.to_client()

        gate.dies()
        gate.starts()
        gate.client(answer(1, {}))

        assert gate.to_client() == [cancel(1)]
        assert gate.to_agent() == []


# The session.


async def test_the_session_is_replayed_before_anything_else(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands("echo")
        gate.client(
            request(1, "logging/setLevel", {"level": "debug"}),
            request(2, "logging/setLevel", {"level": "error", "_meta": {"progressToken": 9}}),
            request(3, "resources/subscribe", {"uri": "file:///a"}),
            request(4, "resources/subscribe", {"uri": "file:///b"}),
            request(5, "resources/unsubscribe", {"uri": "file:///a"}),
        )
        gate.agent(*(answer(message["id"], {}) for message in gate.to_agent()))
        gate.to_client()

        gate.dies()
        gate.client(call("held"))
        gate.starts()
        first = gate.one_to_agent()
        assert gate.to_client() == []
        gate.agent(answer(first["id"], initialized()))

        assert first["method"] == "initialize"
        assert first["params"] == initialize()["params"]
        sent = gate.to_agent()
        assert [(message["method"], message.get("params", {}).get("uri")) for message in sent] == [
            ("notifications/initialized", None),
            ("logging/setLevel", None),
            ("resources/subscribe", "file:///b"),
            ("tools/list", None),
            ("tools/call", None),
        ]
        assert sent[1]["params"] == {"level": "error"}
        gate.agent(*(answer(one["id"], {"tools": []}) for one in sent[1:4]), answer(sent[4]["id"]))
        assert gate.to_client() == [answer("held")]
        gate.assert_idle()


async def test_what_is_too_long_to_keep_is_not_replayed(tmp_path: Path, clock: Clock) -> None:
    """A thousand subscriptions as long as a frame may be would be gigabytes."""
    long = "file:///" + "a" * MAX_KEPT_BYTES
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands()
        gate.client(
            request(1, "resources/subscribe", {"uri": "file:///b"}),
            request(2, "resources/subscribe", {"uri": long}),
            request(3, "logging/setLevel", {"level": "debug", "x": long}),
        )
        gate.agent(*(answer(message["id"], {}) for message in gate.to_agent()))

        await restarted(gate, "2025-11-25")

        sent = [message for message in gate.to_agent() if message["method"] != "tools/list"]
        assert [message.get("params", {}).get("uri") for message in sent] == [None, "file:///b"]


async def restarted(gate: Rig, version: str) -> None:
    gate.dies()
    gate.starts()
    again = gate.one_to_agent()
    gate.agent(answer(again["id"], initialized(version)))


async def test_the_same_version_goes_on(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands(version="2025-06-18")

        await restarted(gate, "2025-06-18")

        assert gate.troubles == []
        assert gate.peer.is_ready


async def test_another_version_ends_the_gate(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands(version="2025-06-18")

        await restarted(gate, "2025-11-25")

        assert gate.troubles == [("protocol_violation", False)]
        assert not gate.peer.is_ready


async def test_a_new_process_that_refuses_the_session_has_failed_its_handshake(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands()
        gate.dies()
        gate.starts()

        gate.agent(failure(gate.one_to_agent()["id"]))

        assert gate.troubles == [("handshake_failed", False)]
    assert "agent.handshake_failed" in events(tmp_path)


async def test_a_new_process_that_is_silent_has_failed_its_handshake_once(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands()
        gate.dies()
        gate.starts()
        gate.to_agent()

        gate.pass_ms(60_000)
        gate.pass_ms(60_000)

        assert gate.troubles == [("handshake_failed", False)]
        assert gate.to_agent() == []
    assert events(tmp_path).count("agent.handshake_failed") == 1


async def test_a_first_handshake_takes_no_longer_than_the_policy_says(
    tmp_path: Path, clock: Clock
) -> None:
    policy = "version: 1\nagents: {web: {handshake: 3s}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(initialize())
        gate.pass_ms(2_700)
        assert gate.troubles == []

        gate.pass_ms(300)

        assert gate.troubles == [("handshake_failed", False)]


@pytest.mark.parametrize("reply", [answer(1, initialized()), failure(1)])
async def test_an_answered_handshake_is_over(
    reply: dict[str, object], tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(initialize())
        gate.agent(reply)

        gate.pass_ms(400_000)

        assert gate.troubles == []
        assert len(gate.to_client()) == 1


async def test_a_handshake_that_died_does_not_accuse_the_next_process(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(initialize())
        gate.dies()
        assert code_of(gate.one_to_client()) == "agent.crashed"
        gate.starts()

        gate.pass_ms(60_000)

        assert gate.troubles == []


async def test_a_beginning_that_waits_is_timed_with_the_process_that_gets_it(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.dies()
        gate.client(initialize())
        gate.pass_ms(70_000)
        assert gate.troubles == []  # there is nobody yet who could have answered

        gate.starts()
        assert gate.one_to_agent()["method"] == "initialize"
        gate.pass_ms(61_000)

        assert gate.troubles == [("handshake_failed", False)]


async def test_a_client_that_begins_anew_while_it_is_replayed_is_let_begin(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands()
        gate.dies()
        gate.starts()
        replayed = gate.one_to_agent()
        gate.client(initialize("again", version="2025-06-18"))

        gate.agent(answer(replayed["id"], initialized()))

        assert gate.troubles == []
        anew = gate.one_to_agent()
        assert anew["method"] == "initialize"
        gate.agent(answer(anew["id"], initialized("2025-06-18")))
        assert gate.one_to_client() == answer("again", initialized("2025-06-18"))


async def test_a_client_that_was_not_done_with_its_beginning_goes_on_with_it(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(initialize())
        gate.agent(answer(1, initialized()))
        gate.to_agent()
        gate.dies()
        gate.starts()
        again = gate.one_to_agent()
        gate.agent(answer(again["id"], initialized()))
        assert gate.to_agent() == []

        gate.client(note("notifications/initialized"))

        assert [message["method"] for message in gate.to_agent()] == [
            "notifications/initialized",
            "tools/list",
        ]


async def test_a_beginning_that_ends_between_two_processes_is_told_once(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(initialize())
        gate.agent(answer(1, initialized()))
        gate.dies()
        gate.client(note("notifications/initialized"))
        gate.starts()
        gate.agent(answer(gate.one_to_agent()["id"], initialized()))

        sent = [message["method"] for message in gate.to_agent()]

        assert sent == ["notifications/initialized", "tools/list"]


async def test_a_session_of_the_stateless_era_needs_no_replay(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, OPEN) as gate:
        gate.client(request(1, "tools/list"))
        gate.agent(answer(1, tool_list()))
        gate.dies()

        gate.starts()

        assert gate.to_agent() == []
        assert gate.peer.is_ready


async def test_it_is_told_when_somebody_wants_a_process(tmp_path: Path, clock: Clock) -> None:
    wanted: list[bool] = []
    async with rig(tmp_path, clock) as gate:
        gate.peer.on_wanted = lambda: wanted.append(True)
        gate.dies()
        assert (wanted, gate.peer.is_wanted) == ([], False)

        gate.client(call("a"))

        assert (wanted, gate.peer.is_wanted) == ([True], True)


async def test_a_notification_between_two_processes_reaches_the_second(
    tmp_path: Path, clock: Clock
) -> None:
    changed = note("notifications/roots/list_changed")
    async with rig(tmp_path, clock) as gate:
        gate.dies()
        gate.client(changed)

        gate.starts()

        assert gate.to_agent() == [changed]


async def test_what_is_held_is_measured_and_its_end_is_told(tmp_path: Path, clock: Clock) -> None:
    told: list[bool] = []
    async with rig(tmp_path, clock) as gate:
        gate.peer.on_ready = lambda: told.append(True)
        gate.dies()
        gate.client(call("a", arguments={"x": "y" * 1_000}))
        assert 1_000 < gate.peer.held_bytes < 1_200
        assert told == []

        gate.starts()

        assert gate.peer.held_bytes == 0
        assert told == [True]


@pytest.mark.parametrize("era", ["legacy", "stateless"])
async def test_the_first_handshake_is_told_once(era: str, tmp_path: Path, clock: Clock) -> None:
    told: list[bool] = []
    async with rig(tmp_path, clock) as gate:
        gate.peer.on_handshake = lambda: told.append(True)
        gate.agent(b"noise\n", note("notifications/message", {}))
        assert told == []

        if era == "legacy":
            gate.shake_hands()
        else:
            gate.client(call(1))
            gate.agent(answer(1))
            gate.client(call(2))
            gate.agent(answer(2))

        assert told == [True]
