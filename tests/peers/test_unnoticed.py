"""Where a gate on the way was noticed by real clients and servers, and is no more.

Each test states what a peer sees without a gate, or why it sees something else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.peers.helpers import (
    STATELESS,
    answer,
    call,
    code_of,
    events,
    failure,
    initialize,
    initialized,
    lines,
    note,
    refusal_of,
    request,
    rig,
    text,
    tool_list,
)
from tests.router.helpers import audit_lines

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock

SMALL = "version: 1\nagents: {web: {max_frame_bytes: 2KiB}}\n"
BATCHES: Final = "2025-03-26"
"""The one version of the protocol that has them."""
RAW_TOKENS: Final = (b"1.5", b"9007199254740993", b"123456789012345678901")
RAW_IDS: Final = (*RAW_TOKENS, b"1e3", b"true", b"null")
HALF = "\ud83d"
"""What JavaScript's `slice` leaves of an emoji."""


def raw_call(own_id: bytes, token: bytes = b"") -> bytes:
    """A call whose id and token are these bytes."""
    meta = b',"_meta":{"progressToken":' + token + b"}" if token else b""
    params = b'{"name":"echo","arguments":{}' + meta + b"}"
    return (
        b'{"jsonrpc":"2.0","id":' + own_id + b',"method":"tools/call","params":' + params + b"}\n"
    )


async def test_half_of_an_emoji_reaches_the_agent(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1, "echo", {"text": HALF}))

        assert gate.one_to_agent()["params"]["arguments"] == {"text": HALF}


async def test_half_of_an_emoji_reaches_the_client(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1))
        asked = gate.one_to_agent()

        gate.agent(answer(asked["id"], text(HALF)))

        assert gate.one_to_client() == answer(1, text(HALF))


async def test_a_failure_with_half_of_an_emoji_is_recorded_as_one(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1))

        gate.agent(answer(gate.one_to_agent()["id"], text(HALF, isError=True)))

        assert gate.one_to_client()["result"]["isError"] is True
    assert events(tmp_path, "tool.call.") == ["admitted", "failed"]


async def test_a_denied_tool_stays_hidden_behind_half_of_an_emoji(
    tmp_path: Path, clock: Clock
) -> None:
    denies = "version: 1\nagents: {web: {tools: {gone: deny}}}\n"
    async with rig(tmp_path, clock, denies) as gate:
        gate.client(request(1, "tools/list"))
        listed = tool_list("gone", "here")
        listed["tools"][1]["description"] = HALF
        listed["tools"][0]["description"] = HALF

        gate.agent(answer(gate.one_to_agent()["id"], listed))

        assert gate.one_to_client()["result"]["tools"] == listed["tools"][1:]


async def test_a_tool_whose_name_has_half_of_an_emoji_is_not_called(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1, HALF))

        assert gate.to_agent() == []
        assert gate.one_to_client()["error"]["code"] == -32600


async def test_a_refused_task_is_an_error_that_says_what_would_let_it_pass(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        asked = call(1)
        asked["params"]["task"] = {"ttl": 1000}

        gate.client(asked)

        error = gate.one_to_client()["error"]
        assert "tasks: pass" in error["message"]


async def test_a_client_is_not_told_of_tasks_that_are_refused(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(initialize())
        about = initialized()
        about["capabilities"] = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}

        gate.agent(answer(gate.one_to_agent()["id"], about))

        assert gate.one_to_client()["result"] == {**about, "capabilities": {"tools": {}}}


async def test_a_client_of_the_era_without_sessions_is_not_told_of_them_either(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(request(1, "server/discover", {"_meta": STATELESS}))

        about = {"capabilities": {"tools": {}, "tasks": {}}, "instructions": "x" * 8192}
        gate.agent(answer(gate.one_to_agent()["id"], about))

        assert gate.one_to_client()["result"] == {**about, "capabilities": {"tools": {}}}


async def test_tasks_that_pass_are_told_of(tmp_path: Path, clock: Clock) -> None:
    passes = "version: 1\nagents: {web: {tasks: pass}}\n"
    async with rig(tmp_path, clock, passes) as gate:
        gate.client(initialize())
        about = {**initialized(), "capabilities": {"tasks": {}}}

        gate.agent(answer(gate.one_to_agent()["id"], about))

        assert gate.one_to_client()["result"] == about


@pytest.mark.parametrize("own_id", RAW_IDS)
async def test_an_id_comes_back_as_it_was_written(
    own_id: bytes, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(raw_call(own_id))

        gate.agent(answer(gate.one_to_agent()["id"]))

        assert b'"id":' + own_id in gate.client_pipe.take()


@pytest.mark.parametrize("token", RAW_TOKENS)
async def test_a_progress_token_comes_back_as_it_was_written(
    token: bytes, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(raw_call(b"1", token))
        theirs = gate.one_to_agent()["params"]["_meta"]["progressToken"]

        gate.agent(note("notifications/progress", {"progressToken": theirs, "progress": 1}))

        assert b'"progressToken":' + token in gate.client_pipe.take()


@pytest.mark.parametrize("own_id", RAW_IDS)
async def test_a_call_under_an_odd_id_can_be_cancelled(
    own_id: bytes, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(raw_call(own_id))
        asked = gate.one_to_agent()
        params = b'{"requestId":' + own_id + b"}"

        gate.client(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":' + params + b"}\n"
        )

        assert gate.one_to_agent()["params"]["requestId"] == asked["id"]


async def test_a_progress_token_of_null_is_as_good_as_none(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(raw_call(b"1", b"null"))
        asked = gate.one_to_agent()

        gate.agent(note("notifications/progress", {"progressToken": asked["id"], "progress": 1}))

        assert gate.to_client() == []


async def test_an_id_used_twice_at_once_is_named(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("twice"), call("twice"))

        said = json.dumps(refusal_of(gate.one_to_client()))
        assert "id" in said
        assert "in use" in said


async def test_a_batch_is_taken_apart_where_the_protocol_has_them(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands("echo", version=BATCHES)

        gate.client(json.dumps([call(1), call(2)]).encode() + b"\n")

        one, other = gate.to_agent()
        gate.agent(answer(one["id"]), answer(other["id"]))
        said = b"".join(lines(frame) for frame in flat(gate.to_client()))
        assert sorted(json.loads(line)["id"] for line in said.splitlines()) == [1, 2]


def flat(frames: list[Any]) -> list[Any]:
    """Return the messages of frames, batches or not."""
    return [each for frame in frames for each in (frame if isinstance(frame, list) else [frame])]


async def test_a_batch_of_an_agent_answers_its_calls(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands("echo", version=BATCHES)
        gate.client(call(1), call(2))
        one, other = gate.to_agent()

        gate.agent(json.dumps([answer(one["id"]), answer(other["id"])]).encode() + b"\n")

        assert sorted(message["id"] for message in flat(gate.to_client())) == [1, 2]


async def test_a_line_that_swallowed_an_answer_ends_the_call(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1))
        asked = gate.one_to_agent()

        gate.agent(b"a line without its end" + lines(answer(asked["id"])))
        assert gate.to_client() == []
        gate.pass_ms(1000)

        assert code_of(gate.one_to_client()) == "protocol.invalid"
        gate.assert_idle()


async def test_a_server_that_logs_its_answers_loses_none(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1))
        asked = gate.one_to_agent()
        logged = b"answers " + lines(answer(asked["id"]))

        gate.agent(*[logged] * 100, answer(asked["id"]))
        gate.client(call(2))
        gate.pass_ms(1000)

        assert gate.one_to_client() == answer(1)


async def test_a_line_that_names_a_request_ends_none(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1))
        asked = gate.one_to_agent()

        gate.agent(b"got " + lines(asked), b'{"id":1} result\n')
        gate.pass_ms(5000)

        assert gate.to_client() == []


async def test_a_batch_that_was_not_agreed_is_one_error_and_ends_its_calls(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands("echo")
        gate.client(json.dumps([call(1), call(2)]).encode() + b"\n")
        assert gate.one_to_client()["error"]["data"]["code"] == "protocol.invalid"
        gate.client(call(1), call(2))
        both = [answer(asked["id"]) for asked in gate.to_agent()]

        gate.agent(json.dumps(both).encode() + b"\n")
        gate.pass_ms(1000)

        assert [code_of(message) for message in gate.to_client()] == ["protocol.invalid"] * 2


@pytest.mark.parametrize(
    ("batch", "answers"),
    [
        (b"[]", ["protocol.invalid"]),
        (b"[1,[]]", ["protocol.invalid"] * 2),
        (b"[{},", ["protocol.invalid"]),
        (b"[" + b",".join([b"{}"] * 1025) + b"]", ["protocol.invalid"]),
    ],
)
async def test_a_bad_batch_is_answered_and_the_session_goes_on(
    batch: bytes, answers: list[str], tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.shake_hands("echo", version=BATCHES)

        gate.client(batch + b"\n")
        assert [code_of(message) for message in gate.to_client()] == answers

        gate.client(call(1))
        assert gate.one_to_agent()["method"] == "tools/call"


async def test_arguments_that_are_too_large_are_refused_with_a_tool_result(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(call(1, "echo", {"text": "x" * 4096}))

        assert gate.one_to_client()["result"]["isError"] is True


async def test_a_member_that_the_gate_does_not_know_passes(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client({**call(1), "trace": "abc"})

        assert gate.one_to_agent()["trace"] == "abc"


@pytest.mark.parametrize("keys", ["id method params", "params id method", "method params id"])
async def test_the_order_of_a_large_calls_members_does_not_matter(
    keys: str, tmp_path: Path, clock: Clock
) -> None:
    asked = call(1, "echo", {"text": "x" * 4096})
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client({"jsonrpc": "2.0", **{key: asked[key] for key in keys.split()}})

        assert code_of(gate.one_to_client()) == "limit.frame_bytes"


@pytest.mark.parametrize("method", ["prompts/get", "tools/list"])
async def test_any_other_large_request_is_answered_with_an_error(
    method: str, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(request(1, method, {"text": "x" * 4096}))

        assert gate.one_to_client()["error"]["data"]["code"] == "limit.frame_bytes"


async def test_a_large_call_for_a_task_is_answered_with_an_error(
    tmp_path: Path, clock: Clock
) -> None:
    asked = call(1, "echo", {"text": "x" * 4096})
    asked["params"]["task"] = {"ttl": 1000}
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(asked)

        assert gate.one_to_client()["error"]["data"]["code"] == "limit.frame_bytes"


@pytest.mark.parametrize("kept", [False, True], ids=["at once", "after a wait"])
async def test_members_that_the_gate_does_not_know_pass_in_every_frame(
    *, kept: bool, tmp_path: Path, clock: Clock
) -> None:
    beside = {"trace": {"a": [HALF]}, "x": None}
    one = "version: 1\ndefaults: {concurrency: 1, queue: 5, timeout: 10s}\nagents: {web: {}}\n"
    async with rig(tmp_path, clock, one) as gate:
        if kept:
            gate.client(call(0))
            first = gate.one_to_agent()
        gate.client({**call(1), **beside})
        if kept:
            gate.agent(answer(first["id"]))
            gate.to_client()
        asked = gate.one_to_agent()
        assert {key: asked[key] for key in beside} == beside

        gate.agent({**answer(asked["id"]), **beside})
        assert gate.one_to_client() == {**answer(1), **beside}
        gate.client({**request(2, "prompts/list"), **beside})
        asked = gate.one_to_agent()
        assert {key: asked[key] for key in beside} == beside
        gate.agent({**note("notifications/x"), **beside})
        assert gate.one_to_client() == {**note("notifications/x"), **beside}
        gate.agent({**failure(asked["id"]), **beside})
        assert gate.one_to_client() == {**failure(2), **beside}


@pytest.mark.parametrize(
    "frame",
    [
        lines(call(1, "echo", {"text": "x" * 4096})),
        lines(request(1, "prompts/get", {"text": "x" * 4096})),
        b"no JSON\n",
        lines(call(1, 5)),
    ],
    ids=["large call", "large request", "noise", "no name"],
)
async def test_a_refused_frame_has_the_id_of_its_record(
    frame: bytes, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(frame)

        said = refusal_of(gate.one_to_client())
    (record,) = [
        line
        for line in audit_lines(tmp_path / "audit")
        if line["event"] == "protocol.frame_rejected"
    ]
    assert said["request_id"] == record["request_id"]
    assert said["agent"] == "web"
