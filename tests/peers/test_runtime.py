"""Agents of the runtime protocol, for clients that speak MCP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from callgate.protocol.framing import with_length
from callgate.protocol.runtime_table import MAX_NAMES
from tests.peers.helpers import (
    META_VERSION,
    STATELESS,
    answer,
    call,
    cancel,
    code_of,
    events,
    initialize,
    note,
    progress,
    request,
    text,
)
from tests.peers.runtime_rig import BEAT_MS, POLICY, TOKEN, runtime_rig
from tests.router.helpers import used_slots

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock

ONE = POLICY.replace("concurrency: unlimited", "concurrency: 1, queue: 5, cancel_grace: 5s")


async def test_a_good_hello_is_welcomed(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        own_id = agent.hello()

        welcome = agent.one_heard()
        assert welcome["type"] == "core.welcome"
        assert welcome["in_reply_to"] == own_id
        assert welcome["payload"]["accepted_version"] == 1
        assert welcome["payload"]["heartbeat_interval_ms"] == BEAT_MS
        assert gate.troubles == []
    assert "agent.connected" in events(tmp_path)


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"token": "wrong"}, "protocol.unauthorized"),
        ({"token": ""}, "protocol.unauthorized"),
        ({"agent_id": "other"}, "protocol.unauthorized"),
        ({"versions": (2, 3)}, "protocol.invalid"),
        ({"versions": ()}, "protocol.invalid"),
    ],
)
async def test_a_bad_hello_is_refused_and_the_process_ended(
    hello: dict[str, Any], code: str, tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.hello(**hello)

        refused = agent.one_heard()
        assert (refused["type"], refused["payload"]) == ("core.welcome", {})
        assert refused["error"]["code"] == code
        assert gate.troubles == [("handshake_failed", False)]
    written = events(tmp_path)
    assert "agent.handshake_failed" in written
    assert ("security.denied" in written) == (code == "protocol.unauthorized")
    assert "agent.connected" not in written


async def test_a_token_is_good_for_one_try(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (_, agent):
        agent.hello("wrong")
        agent.heard()

        agent.hello(TOKEN)

        assert agent.one_heard()["error"]["code"] == "protocol.unauthorized"


async def test_a_former_token_does_not_open_the_next_session(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.dies()
        agent.restarts("another")

        agent.hello(TOKEN)

        assert agent.one_heard()["error"]["code"] == "protocol.unauthorized"


@pytest.mark.parametrize("says_hello", [False, True])
async def test_a_handshake_has_its_time_until_the_tools_are_there(
    *, says_hello: bool, tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        if says_hello:
            agent.hello()

        gate.pass_ms(10_000)

        assert gate.troubles == [("handshake_failed", False)]


async def test_nothing_is_taken_before_the_hello(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        own_id = agent.register("echo")

        refused = agent.one_heard()
        assert (refused["type"], refused["in_reply_to"]) == ("core.error", own_id)
        assert not gate.peer.is_ready


async def test_single_tools_are_rejected_and_the_others_taken(tmp_path: Path, clock: Clock) -> None:
    good = {"tool_id": "web/a", "name": "a", "description": "", "input_schema": {}}
    async with runtime_rig(tmp_path, clock) as (_, agent):
        agent.hello()
        agent.heard()

        agent.say(
            "agent.tools.register",
            {
                "tools": [
                    good,
                    {**good, "tool_id": "other/b", "name": "b"},
                    {**good, "tool_id": "web/c", "name": "c", "input_schema": 5},
                    {"tool_id": "web/d"},
                    {**good},
                ]
            },
        )

        payload = agent.one_heard()["payload"]
        assert payload["registered"] == ["web/a"]
        assert [one["tool_id"] for one in payload["rejected"]] == [
            "other/b",
            "web/c",
            "web/d",
            "web/a",
        ]
        assert list(agent.peer.tools) == ["a"]


async def test_an_agent_has_only_so_many_tools(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (_, agent):
        agent.shake_hands(*(f"t{number}" for number in range(MAX_NAMES)))

        agent.register("one_more", "t0")

        payload = agent.one_heard()["payload"]
        assert payload["registered"] == ["web/t0"]
        assert [one["tool_id"] for one in payload["rejected"]] == ["web/one_more"]


async def test_a_registration_adds_or_replaces(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (_, agent):
        agent.shake_hands("a")

        agent.register("b")
        assert list(agent.peer.tools) == ["a", "b"]
        agent.register("c", replace=True)

        assert list(agent.peer.tools) == ["c"]


async def test_unregistered_tools_are_not_called(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands("a", "b")

        agent.say("agent.tools.unregister", {"tool_ids": ["web/a", "other/b", "web/x"]})
        gate.client(call(1, "a"), call(2, "b"))

        unregistered, sent = agent.heard()
        assert unregistered["payload"] == {"tool_ids": ["web/a"]}
        assert sent["payload"]["tool_id"] == "web/b"
        assert code_of(gate.one_to_client()) == "tool.unknown"


async def test_a_denied_tool_is_denied_whether_it_exists_or_not(
    tmp_path: Path, clock: Clock
) -> None:
    policy = POLICY.replace("handshake: 10s", 'tools: {"no*": deny}')
    async with runtime_rig(tmp_path, clock, policy) as (gate, agent):
        agent.shake_hands("no", "yes")

        gate.client(call(1, "no"), call(2, "nothing"), request(3, "tools/list"))

        first, second, listed = gate.to_client()
        assert code_of(first) == code_of(second) == "policy.denied"
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["yes"]


async def test_a_call_becomes_a_message_and_its_result_an_answer(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a", "echo", {"x": 1}))

        sent = agent.one_heard()
        agent.result(sent["payload"]["call_id"], output={"y": [2]})

        assert sent["type"] == "core.tool.call"
        payload = sent["payload"]
        assert (payload["tool_id"], payload["input"]) == ("web/echo", {"x": 1})
        assert payload["timeout_ms"] == 10_000
        assert payload["caller"] == {"type": "agent", "id": "anonymous"}
        assert "request_id" in sent
        assert gate.one_to_client() == answer(
            "a", {"structuredContent": {"y": [2]}, **text('{"y": [2]}')}
        )
        gate.assert_idle_but_for_beats()
    assert events(tmp_path, "tool.call.") == ["admitted", "completed"]


async def test_a_call_without_a_deadline_is_sent_without_a_timeout(
    tmp_path: Path, clock: Clock
) -> None:
    unlimited = POLICY.replace("timeout: 10s, max_timeout: 60s", "timeout: unlimited").replace(
        "web: {", "web: {max_timeout: unlimited, "
    )
    async with runtime_rig(tmp_path, clock, unlimited) as (gate, agent):
        agent.shake_hands()

        gate.client(call("a"))

        assert "timeout_ms" not in agent.one_heard()["payload"]


@pytest.mark.parametrize(
    ("payload", "result"),
    [
        ({"output": "plain words"}, text("plain words")),
        ({}, text("")),
        ({"output": [1]}, text("[1]")),
        (
            {"status": "failed", "error": {"code": "x", "message": "the reason"}},
            {"isError": True, **text("the reason")},
        ),
        ({"status": "failed"}, {"isError": True, **text("failed")}),
        ({"status": "canceled"}, {"isError": True, **text("canceled")}),
    ],
)
async def test_what_a_result_means_to_a_client(
    payload: dict[str, Any], result: dict[str, Any], tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))

        agent.result("1", **payload)

        assert gate.one_to_client() == answer("a", result)


async def test_an_error_in_reply_to_a_call_is_its_failure(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))
        sent = agent.one_heard()

        error = {"code": "protocol.invalid", "message": "not taken"}
        agent.say("agent.error", {}, in_reply_to=sent["id"], error=error)

        assert gate.one_to_client() == answer("a", {"isError": True, **text("not taken")})
        agent.say("agent.error", {}, in_reply_to="core-1", error=error)
        assert gate.hub.stray == 1


async def test_a_call_before_the_tools_are_there_waits_for_them(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        gate.client(call("a"), request("l", "tools/list"))
        assert agent.heard() == []
        assert gate.to_client() == []

        agent.hello()
        agent.register("echo")

        assert [message["type"] for message in agent.heard()] == [
            "core.welcome",
            "core.tools.registered",
            "core.tool.call",
        ]
        listed = gate.one_to_client()
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["echo"]


async def test_a_list_between_the_hello_and_the_tools_waits_for_them(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.hello()
        gate.client(request("l", "tools/list"))
        assert gate.to_client() == []

        agent.register("echo")

        listed = gate.one_to_client()
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["echo"]


async def test_a_list_that_waits_is_refused_if_the_handshake_fails(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        gate.client(request("l", "tools/list"), request("m", "tools/list"))
        gate.client(cancel("m"))

        agent.hello("wrong")

        assert [(one["id"], code_of(one)) for one in gate.to_client()] == [
            ("l", "agent.unavailable")
        ]
        assert gate.caller.in_flight == {}


async def test_a_client_hears_of_new_tools_only_after_it_has_seen_a_list(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands("a")
        agent.register("b")
        assert gate.to_client() == []
        gate.client(request("l", "tools/list"))
        gate.to_client()

        agent.register("c")

        assert gate.to_client() == [note("notifications/tools/list_changed")]


# Streaming.


async def test_what_is_streamed_becomes_progress_in_order(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a", progressToken="t"))

        agent.stream("1", 1, text="one")
        agent.stream("1", 2, json={"two": 2})
        agent.stream("1", 2, text="again")
        agent.stream("1", 1, text="before")
        agent.stream("1", 5, text="later")
        agent.stream("99", 1, text="nobody's")

        assert [message["params"] for message in gate.to_client()] == [
            {"progressToken": "t", "progress": 1, "message": "one"},
            {"progressToken": "t", "progress": 2, "message": '{"two": 2}'},
            {"progressToken": "t", "progress": 5, "message": "later"},
        ]
        assert gate.hub.stray == 3


async def test_nothing_is_streamed_to_who_did_not_ask(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))

        agent.stream("1", 1, text="one")

        assert gate.to_client() == []


async def test_nothing_is_streamed_after_the_end(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a", progressToken="t"))
        gate.pass_ms(10_000)
        gate.to_client()

        agent.stream("1", 1, text="late")

        assert gate.to_client() == []


# Cancel.


async def test_a_cancel_has_the_agents_id_and_the_grace(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock, ONE) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))
        agent.heard()

        gate.client(cancel("a"))

        told = agent.one_heard()
        assert told["type"] == "core.tool.cancel"
        assert told["payload"] == {"call_id": "1", "deadline_ms": 5_000}
        assert gate.to_client() == []


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_cancel_ack_does_not_free_the_slot_but_the_result_does(
    *, accepted: bool, tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock, ONE) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))
        gate.client(cancel("a"))

        agent.say("agent.tool.cancel_ack", {"call_id": "1", "accepted": accepted})
        held = used_slots(gate.router)
        agent.result("1", status="canceled")

        assert held == {"agent:web": 1}
        assert used_slots(gate.router) == {}
        assert gate.to_client() == []
    assert events(tmp_path, "tool.call.") == ["admitted", "cancelled"]


async def test_a_result_in_spite_of_a_cancel_is_late(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))
        gate.client(cancel("a"))

        agent.result("1", output={})

        assert gate.to_client() == []
    assert events(tmp_path, "tool.call.") == ["admitted", "cancelled", "late"]


@pytest.mark.parametrize(
    ("then", "troubles"),
    [
        ("release", []),
        ("restart", [("ignored_cancel", True)]),
        ("kill", [("ignored_cancel", False)]),
    ],
)
async def test_an_ignored_cancel_is_followed_by_what_the_policy_says(
    then: str, troubles: list[Any], tmp_path: Path, clock: Clock
) -> None:
    policy = ONE.replace("handshake: 10s", f"on_ignored_cancel: {then}")
    async with runtime_rig(tmp_path, clock, policy) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))
        gate.client(cancel("a"))

        gate.pass_ms(5_000)

        assert gate.troubles == troubles
        assert used_slots(gate.router) == {}


# Health.


async def test_an_agent_that_beats_is_healthy(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()

        for _ in range(10):
            gate.pass_ms(BEAT_MS + 200)
            agent.beat()

        assert gate.peer.is_up
    assert "agent.heartbeat_missed" not in events(tmp_path)


async def test_missed_beats_make_it_unhealthy_and_a_beat_well_again(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.pass_ms(BEAT_MS * 3 / 2)
        gate.pass_ms(BEAT_MS)
        assert gate.peer.is_up

        gate.pass_ms(BEAT_MS)
        gate.client(call("a"))
        assert code_of(gate.one_to_client()) == "agent.unavailable"
        assert agent.heard() == []
        agent.beat()
        gate.client(call("b"))

        assert agent.one_heard()["type"] == "core.tool.call"
    assert events(tmp_path, "agent.") == [
        "connected",
        "heartbeat_missed",
        "heartbeat_missed",
        "heartbeat_missed",
        "marked_unhealthy",
        "recovered",
    ]


async def test_who_waits_for_an_agent_that_became_unhealthy_is_turned_away(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock, ONE) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"), call("b"))

        agent.beat("unhealthy")

        assert [(one["id"], code_of(one)) for one in gate.to_client()] == [
            ("b", "agent.unavailable")
        ]
        agent.result("1")
        assert [one["id"] for one in gate.to_client()] == ["a"]


async def test_an_agent_may_say_that_it_is_unhealthy_and_still_be_asked_who_it_is(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        agent.beat("degraded")
        gate.client(call(0))
        assert gate.to_client() == []

        agent.beat("unhealthy")
        agent.beat("unhealthy")
        gate.client(request(1, "ping"), request(2, "tools/list"), call(3))

        ping, listed, refused = gate.to_client()
        assert code_of(refused) == "agent.unavailable"
        assert [ping["id"], listed["id"]] == [1, 2]
    assert events(tmp_path).count("agent.marked_unhealthy") == 1


async def test_a_beat_of_another_session_is_none(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()

        agent.beat("unhealthy", session="another")

        assert gate.peer.is_up
        assert gate.hub.stray == 1


async def test_a_dead_agents_heart_is_not_listened_to(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()

        gate.dies()
        gate.pass_ms(BEAT_MS * 10)

        assert gate.peer.is_up
    assert "agent.heartbeat_missed" not in events(tmp_path)


async def test_an_unhealthy_agent_that_was_started_again_is_called_again(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        agent.beat("unhealthy")
        gate.dies()
        agent.restarts()
        gate.client(call("a"))

        agent.shake_hands()
        gate.client(call("b"))

        assert gate.to_client() == []
        assert agent.one_heard()["payload"]["call_id"] == "2"


async def test_goodbye_is_said_to_whom_we_have_welcomed(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        gate.peer.say_goodbye("stop_requested")
        gate.hub.flush()
        assert agent.heard() == []
        agent.shake_hands()

        gate.peer.say_goodbye("stop_requested")
        gate.hub.flush()

        goodbye = agent.one_heard()
        assert (goodbye["type"], goodbye["payload"]) == (
            "core.goodbye",
            {"reason": "stop_requested"},
        )


# Bad frames.


@pytest.mark.parametrize(
    "frame",
    [
        b"noise",
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"v":2,"type":"agent.pong","id":"x","ts":"","payload":{}}',
        b'{"v":1,"type":"agent.nonsense","id":"x","ts":"","payload":{}}',
        b'{"v":1,"type":"core.welcome","id":"x","ts":"","payload":{}}',
        b'{"v":1,"type":"agent.tool.result","id":"x","ts":"","payload":{"call_id":5}}',
    ],
)
async def test_a_bad_frame_hurts_nobody_and_is_answered_if_it_has_an_id(
    frame: bytes, tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))
        agent.heard()

        agent.raw(with_length(frame))
        replies = agent.heard()
        agent.result("1", output="fine")

        assert [reply["in_reply_to"] for reply in replies] == (["x"] if b'"x"' in frame else [])
        assert gate.one_to_client() == answer("a", text("fine"))
        assert sum(gate.hub.rejected.values()) == 1


async def test_an_oversized_result_ends_its_call_and_others_pass(
    tmp_path: Path, clock: Clock
) -> None:
    policy = POLICY.replace("handshake: 10s", "max_frame_bytes: 2KiB")
    async with runtime_rig(tmp_path, clock, policy) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"), call("b"))

        agent.result("1", output={"x": "y" * 3_000})
        agent.result("2", output="fine")

        refused, passed = gate.to_client()
        assert (refused["id"], code_of(refused)) == ("a", "limit.frame_bytes")
        assert passed == answer("b", text("fine"))


async def test_a_result_over_its_limit_is_withheld(tmp_path: Path, clock: Clock) -> None:
    policy = POLICY.replace("handshake: 10s", "max_output_bytes: 100")
    async with runtime_rig(tmp_path, clock, policy) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))

        agent.result("1", output={"x": "y" * 200})

        assert code_of(gate.one_to_client()) == "limit.output_bytes"


@pytest.mark.parametrize("call_id", ["0", "2", "-1", "1.0", "x", "9" * 30, "\u0661"])
async def test_a_result_of_nothing_is_counted_and_no_more(
    call_id: str, tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))

        agent.result(call_id)

        assert gate.to_client() == []
        assert gate.hub.stray == 1


async def test_a_half_frame_of_a_dead_process_does_not_spoil_the_next(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        agent.raw(b"\x00\x00\x10\x00{")
        gate.dies()
        agent.restarts()

        agent.shake_hands()

        assert gate.peer.is_ready


async def test_a_death_answers_and_the_next_process_is_called(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()
        gate.client(call("a"))
        gate.dies()
        gate.client(call("b"), request("l", "tools/list"))
        assert code_of(gate.one_to_client()) == "agent.crashed"
        agent.restarts()

        agent.shake_hands()

        listed = gate.one_to_client()
        assert listed["id"] == "l"
        agent.result("2", output="x")
        assert gate.one_to_client() == answer("b", text("x"))


async def test_lists_that_wait_are_refused_when_no_process_comes(
    tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, _):
        gate.client(request("l", "tools/list"))

        gate.dies(again=False)
        gate.client(request("m", "tools/list"))

        assert [code_of(message) for message in gate.to_client()] == ["agent.unavailable"] * 2
        assert gate.caller.in_flight == {}


# What a client sees of it.


@pytest.mark.parametrize(
    ("asked", "version"), [("2025-06-18", "2025-06-18"), ("2099-01-01", "2025-11-25")]
)
async def test_the_gate_is_an_mcp_server_for_it(
    asked: str, version: str, tmp_path: Path, clock: Clock
) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, _):
        gate.client(initialize(0, asked), request(1, "ping"), request(2, "prompts/list"))

        started, ping, unknown = gate.to_client()
        assert started["result"]["protocolVersion"] == version
        assert started["result"]["serverInfo"]["name"] == "web"
        assert ping == answer(1, {})
        assert unknown["error"]["code"] == -32601


async def test_the_gate_is_a_server_of_the_stateless_era_too(tmp_path: Path, clock: Clock) -> None:
    meta = {"_meta": STATELESS}
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        gate.client(request(1, "server/discover", meta), request(2, "tools/list", meta))
        agent.shake_hands("echo")
        gate.client(call(3, **STATELESS), request(4, "tools/list", meta))
        agent.result("1", output="x")

        found, waited, listed, called = gate.to_client()
        assert STATELESS[META_VERSION] in found["result"]["supportedVersions"]
        for message in (found, waited, listed):
            assert message["result"]["resultType"] == "complete"
            assert message["result"]["cacheScope"] == "private"
            assert message["result"]["ttlMs"] == 0
        assert called["result"]["resultType"] == "complete"


async def test_a_clients_progress_goes_to_nobody_there(tmp_path: Path, clock: Clock) -> None:
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        agent.shake_hands()

        gate.client(progress(1), note("notifications/initialized"), note("notifications/x"))

        assert agent.heard() == []


async def test_the_token_is_never_written(tmp_path: Path, clock: Clock) -> None:
    token = "aVeryLongSecretTokenIndeed123"  # noqa: S105  # a canary
    async with runtime_rig(tmp_path, clock) as (gate, agent):
        gate.peer.process_launched(token)
        agent.hello(token)
        gate.peer.process_launched(token)
        agent.hello(token + "x")

        sent = json.dumps(agent.heard())

    written = b"".join(file.read_bytes() for file in (tmp_path / "audit").rglob("*.jsonl"))
    assert token not in sent
    assert token.encode() not in written
