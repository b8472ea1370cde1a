"""Everything in MCP that is not a tool call: it passes, within bounds, under ids of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from callgate.peers import offer
from callgate.peers.inflight import MAX_REQUESTS
from callgate.peers.mcp_tools import LIST_TIMEOUT_NS, MAX_PAGES
from callgate.policy import Policy
from tests.peers.helpers import (
    MS,
    STATELESS,
    answer,
    call,
    cancel,
    code_of,
    events,
    failure,
    initialize,
    initialized,
    note,
    progress,
    request,
    rig,
    tool_list,
)
from tests.router.helpers import audit_lines

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock, Message, Rig

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


async def test_a_request_passes_under_an_id_and_a_token_of_ours(
    tmp_path: Path, clock: Clock
) -> None:
    params = {"uri": "file:///x", "_meta": {"progressToken": "p", "other": 1}}
    async with rig(tmp_path, clock) as gate:
        gate.client(request("r", "resources/read", params))
        sent = gate.one_to_agent()

        gate.agent(progress(sent["id"]), answer(sent["id"], {"contents": []}))

        assert sent["id"] == 1
        assert sent["params"] == {"uri": "file:///x", "_meta": {"progressToken": 1, "other": 1}}
        assert gate.to_client() == [progress("p"), answer("r", {"contents": []})]
        gate.assert_idle()
    assert events(tmp_path, "tool.call.") == []


async def test_requests_are_counted_by_known_method_or_as_other(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(request(1, "ping"), request(2, "secret/method"), request(3, "another"))

        assert gate.hub.requests == {"ping": 1, "other": 2}


@pytest.mark.parametrize(("policy", "seconds"), [("", 300), ("requests: {timeout: 20s}", 20)])
async def test_a_request_times_out_and_is_cancelled(
    policy: str, seconds: int, tmp_path: Path, clock: Clock
) -> None:
    text = f"version: 1\nagents: {{web: {{{policy}}}}}\n"
    async with rig(tmp_path, clock, text) as gate:
        gate.client(request("r", "prompts/get", {"name": "x"}))
        gate.to_agent()
        gate.pass_ms(seconds * 1_000 - 300)
        assert gate.to_client() == []

        gate.pass_ms(300)

        assert code_of(gate.one_to_client()) == "limit.timeout"
        assert gate.to_agent() == [cancel(1)]
        gate.agent(answer(1))
        assert gate.to_client() == []
        gate.assert_idle()


async def test_an_answered_request_does_not_time_out(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(request("r", "ping"))
        gate.agent(answer(1, {}))
        gate.to_client()
        gate.to_agent()

        gate.pass_ms(400_000)

        assert gate.to_client() == []
        assert gate.to_agent() == []


async def test_only_so_many_requests_are_in_flight(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(*(request(number, "ping") for number in range(MAX_REQUESTS + 1)))
        assert len(gate.to_agent()) == MAX_REQUESTS
        assert code_of(gate.one_to_client()) == "limit.concurrency"

        gate.agent(answer(1, {}))
        gate.client(request("r", "ping"), call("c"))

        assert len(gate.to_agent()) == 2


async def test_a_cancelled_request_is_cancelled_there_and_not_answered_here(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(request("r", "completion/complete", {}))
        gate.to_agent()

        gate.client(cancel("r"))
        gate.agent(answer(1))

        assert gate.to_agent() == [cancel(1)]
        assert gate.to_client() == []
        gate.pass_ms(400_000)
        assert gate.to_client() == []
        gate.assert_idle()


async def test_notifications_pass_both_ways(tmp_path: Path, clock: Clock) -> None:
    changed = note("notifications/roots/list_changed")
    log = note("notifications/message", {"level": "info", "data": {"a": [1]}})
    async with rig(tmp_path, clock) as gate:
        gate.client(changed)
        gate.agent(log)

        assert gate.to_agent() == [changed]
        assert gate.to_client() == [log]


# What the agent asks its client.


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list"])
@pytest.mark.parametrize("own_id", [5, "five"])
async def test_an_agent_asks_its_client_under_an_id_of_ours(
    method: str, own_id: Any, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request(own_id, method, {"x": 1}))
        asked = gate.one_to_client()

        gate.client(answer(asked["id"], {"ok": True}))

        assert asked == request(1, method, {"x": 1})
        assert gate.to_agent() == [answer(own_id, {"ok": True})]
        assert gate.hub.requests == {method: 1}


async def test_a_clients_error_reaches_the_agent(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "roots/list"))

        gate.client(failure(1, -1, "rejected"))

        assert gate.to_agent() == [failure("q", -1, "rejected")]


async def test_a_clients_progress_reaches_the_agent_under_its_token(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "sampling/createMessage", {"_meta": {"progressToken": "t"}}))
        token = gate.one_to_client()["params"]["_meta"]["progressToken"]

        gate.client(progress(token, 2))

        assert token == 1
        assert gate.to_agent() == [progress("t", 2)]


async def test_what_an_agent_asks_has_no_timeout(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "elicitation/create", {}))
        gate.to_client()

        gate.pass_ms(24 * 3_600_000)
        gate.client(answer(1, {}))

        assert gate.to_agent() == [answer("q", {})]


async def test_an_agent_cancels_what_it_asked(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "elicitation/create", {}))
        gate.to_client()

        gate.agent(cancel("q"), cancel("unknown"))
        gate.client(answer(1, {}))

        assert gate.to_client() == [cancel(1)]
        assert gate.to_agent() == []
        assert gate.hub.stray == 2


async def test_an_agent_may_not_ask_twice_under_one_id(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "roots/list"), request("q", "roots/list"))

        assert len(gate.to_client()) == 1
        assert code_of(gate.one_to_agent()) == "protocol.invalid"


async def test_an_agent_has_only_so_many_questions_open(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(*(request(number, "roots/list") for number in range(MAX_REQUESTS + 1)))

        assert len(gate.to_client()) == MAX_REQUESTS
        refused = gate.one_to_agent()
        assert (refused["id"], code_of(refused)) == (MAX_REQUESTS, "limit.concurrency")


async def test_an_agent_cannot_call_tools_of_its_client(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(call("q"))

        assert gate.to_client() == []
        assert code_of(gate.one_to_agent()) == "protocol.invalid"


async def test_a_client_that_will_answer_nothing_any_more_is_not_waited_for(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "elicitation/create", {}))

        gate.caller.client_finished()
        gate.agent(request("r", "elicitation/create", {}))

        assert [(one["id"], code_of(one)) for one in gate.to_agent()] == [
            ("q", "tool.canceled"),
            ("r", "tool.canceled"),
        ]


# The agent's tools.


def listings(gate: Rig) -> list[dict[str, Any]]:
    return [message for message in gate.to_agent() if message.get("method") == "tools/list"]


async def test_the_gate_lists_the_tools_itself_page_by_page(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(note("notifications/initialized"))
        (first,) = listings(gate)
        gate.agent(answer(first["id"], tool_list("a", cursor="next")))
        (second,) = listings(gate)

        gate.agent(answer(second["id"], tool_list("b")))

        assert second["params"] == {"cursor": "next"}
        assert gate.router._lanes.agents["web"].listed == {"a", "b"}
        assert gate.to_client() == []
        assert listings(gate) == []


async def test_a_list_without_an_end_is_read_to_a_bound(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(note("notifications/initialized"))
        pages = 0
        while asked := listings(gate):
            gate.agent(answer(asked[0]["id"], tool_list(f"t{pages}", cursor="more")))
            pages += 1

        assert pages == MAX_PAGES


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"code": -32601, "message": "no"}},
        {"result": {"tools": "none"}},
        {"result": {"tools": [{"no": "name"}]}},
    ],
)
async def test_an_agent_that_cannot_list_its_tools_can_be_called(
    reply: Any, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(note("notifications/initialized"))
        (asked,) = listings(gate)
        gate.agent({"jsonrpc": "2.0", "id": asked["id"], **reply})

        gate.client(call(1))

        assert gate.one_to_agent()["method"] == "tools/call"


async def test_an_unanswered_listing_is_given_up(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(note("notifications/initialized"))
        (asked,) = listings(gate)

        gate.pass_ms(LIST_TIMEOUT_NS / MS)

        assert gate.to_agent() == [cancel(asked["id"])]
        gate.assert_idle()


async def test_a_change_is_listed_anew_one_listing_at_a_time(tmp_path: Path, clock: Clock) -> None:
    changed = note("notifications/tools/list_changed")
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands()
        gate.agent(*[changed] * 1_000)
        asked = listings(gate)
        assert len(asked) == 1
        assert gate.to_client() == [changed] * 1_000

        gate.agent(answer(asked[0]["id"], tool_list("a")))

        (again,) = listings(gate)
        gate.agent(answer(again["id"], tool_list("b")))
        assert listings(gate) == []


async def test_a_listed_tool_is_named_in_the_audit_and_another_is_not(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands("known")

        gate.client(call(1, "known"), call(2, "unheard of"), call(3, "unlisted"))

    admitted = [line for line in audit_lines(tmp_path / "audit") if "admitted" in line["event"]]
    assert [line.get("tool") for line in admitted] == ["known", None, None]


async def test_a_client_is_shown_only_what_it_may_call(tmp_path: Path, clock: Clock) -> None:
    policy = 'version: 1\nagents: {web: {tools: {"delete_*": deny, delete_mine: allow}}}\n'
    listed = tool_list("read", "delete_all", "delete_mine", cursor="c", extra={"kept": 1})
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(request("l", "tools/list"))

        gate.agent(answer(1, listed))

        shown = tool_list("read", "delete_mine", cursor="c", extra={"kept": 1})
        assert gate.one_to_client() == answer("l", shown)


async def test_an_allow_list_shows_and_lets_in_nothing_else(tmp_path: Path, clock: Clock) -> None:
    policy = 'version: 1\nagents: {web: {tools: {"*": deny, read: allow}}}\n'
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(request("l", "tools/list"), call(1, "read"), call(2, "write"))
        gate.agent(answer(1, tool_list("read", "write")))

        refused, shown = gate.to_client()
        assert code_of(refused) == "policy.denied"
        assert shown == answer("l", tool_list("read"))


async def test_a_list_that_cannot_be_read_shows_nothing(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {tools: {no: deny}}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(request("l", "tools/list"))

        gate.agent(answer(1, {"tools": [{"nome": "no"}]}))

        assert gate.one_to_client() == answer("l", {"tools": []})
        assert gate.hub.rejected["result"] == 1


async def test_the_stateless_era_is_listed_with_what_its_requests_carry(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1, **STATELESS))

        gate.agent(answer(gate.one_to_agent()["id"], {"content": []}))

        listing = gate.one_to_agent()
        assert listing["method"] == "tools/list"
        assert listing["params"]["_meta"] == STATELESS
        gate.agent(answer(listing["id"], tool_list("a", cursor="c")))
        assert gate.one_to_agent()["params"] == {"cursor": "c", "_meta": STATELESS}
        gate.client(call(2, **STATELESS))
        assert gate.one_to_agent()["method"] == "tools/call"


async def test_an_agent_is_not_listed_by_a_client_that_only_tries_which_era_it_is(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(request("try", "server/discover", {"_meta": STATELESS}))
        asked = gate.one_to_agent()
        assert asked["method"] == "server/discover"

        gate.agent(failure(asked["id"], -32601, "Method not found"))

        assert gate.to_agent() == []
        gate.client(initialize())
        gate.agent(answer(gate.one_to_agent()["id"], initialized()))
        assert gate.to_agent() == []
        gate.client(note("notifications/initialized"))
        _, listing = gate.to_agent()
        assert listing["method"] == "tools/list"
        assert "_meta" not in listing["params"]


async def test_an_agent_that_speaks_of_its_tools_too_early_is_not_asked_for_them(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(initialize())
        asked = gate.one_to_agent()

        gate.agent(note("notifications/tools/list_changed"))

        assert gate.to_agent() == []
        gate.agent(answer(asked["id"], initialized()))


# Streams.


def listening(gate: Rig, own_id: Any) -> int:
    """The gate's id of a stream that the client listens to."""
    gate.client(request(own_id, "subscriptions/listen", {"notifications": {}, "_meta": STATELESS}))
    sent = [one for one in gate.to_agent() if one["method"] == "subscriptions/listen"]
    own: int = sent[0]["id"]
    return own


async def test_a_streams_notifications_name_it_by_the_clients_id(
    tmp_path: Path, clock: Clock
) -> None:
    updated = {"uri": "file:///x", "_meta": {SUBSCRIPTION: 0, "kept": True}}
    async with rig(tmp_path, clock) as gate:
        own_id = listening(gate, "mine")
        updated["_meta"] = {SUBSCRIPTION: own_id, "kept": True}

        gate.agent(note("notifications/resources/updated", updated))

        assert gate.one_to_client() == note(
            "notifications/resources/updated",
            {"uri": "file:///x", "_meta": {SUBSCRIPTION: "mine", "kept": True}},
        )


async def test_a_stream_has_no_timeout(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        listening(gate, "mine")

        gate.pass_ms(24 * 3_600_000)

        assert gate.to_client() == []


async def test_a_streams_last_word_names_it_by_the_clients_id(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        own_id = listening(gate, "mine")

        gate.agent(answer(own_id, {"resultType": "complete", "_meta": {SUBSCRIPTION: own_id}}))

        assert gate.one_to_client() == answer(
            "mine", {"resultType": "complete", "_meta": {SUBSCRIPTION: "mine"}}
        )


async def test_an_agent_ends_a_stream_with_a_cancel(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        own_id = listening(gate, "mine")

        gate.agent(cancel(own_id))

        assert gate.to_client() == [cancel("mine")]
        assert gate.caller.in_flight == {}


async def test_an_agent_cannot_end_anything_else_with_a_cancel(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))

        gate.agent(cancel(1))

        assert gate.to_client() == []
        assert "a" in gate.caller.in_flight


@pytest.mark.parametrize("own_id", [99, "mine", 1])
async def test_news_of_a_stream_that_is_not_open_go_nowhere(
    own_id: Any, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))

        gate.agent(note("notifications/message", {"_meta": {SUBSCRIPTION: own_id}}))

        assert gate.to_client() == []
        assert gate.hub.stray == 1


async def test_a_stream_ends_when_the_client_will_send_no_more(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        own_id = listening(gate, "mine")
        gate.client(call("a"))

        gate.caller.client_finished()
        gate.hub.flush()

        assert cancel(own_id) in gate.to_agent()
        assert list(gate.caller.in_flight) == ["a"]


async def test_an_agent_is_told_that_its_client_has_gone(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "elicitation/create", {}))

        gate.caller.closed()
        gate.hub.flush()

        assert code_of(gate.one_to_agent()) == "tool.canceled"


async def test_a_request_may_have_no_timeout(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {requests: {timeout: unlimited}}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(request("r", "prompts/list"))

        gate.pass_ms(24 * 3_600_000)
        gate.agent(answer(1, {}))

        assert gate.to_client() == [answer("r", {})]


DENYING = """
version: 1
agents: {web: {tools: {b: deny}}}
"""


@pytest.mark.parametrize(("told", "heard"), [({"listChanged": True}, 1), ({}, 0)])
async def test_a_reload_that_changes_the_offer_is_told_to_who_may_be_told(
    tmp_path: Path, clock: Clock, told: Message, heard: int
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(initialize())
        asked = gate.one_to_agent()
        gate.agent(answer(asked["id"], initialized() | {"capabilities": {"tools": told}}))
        gate.client(note("notifications/initialized"))
        gate.agent(answer(listings(gate)[0]["id"], tool_list("a", "b")))
        gate.to_client()
        assert offer.withheld(gate.peer) == frozenset()

        await gate.router.reload(Policy.parse(DENYING))
        gate.peer.offer_changed()
        gate.hub.flush()

        assert offer.withheld(gate.peer) == {"b"}
        assert gate.to_client() == [note("notifications/tools/list_changed")] * heard
