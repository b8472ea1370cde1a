"""Frames that cannot be read, from either side: each has an answer, and others go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from callgate.audit.merge import PER_SECOND
from callgate.peers.hub import FRAME_TIMEOUT_NS
from callgate.router.recorder import MERGE_WINDOW_NS
from tests.peers.helpers import (
    MS,
    answer,
    call,
    code_of,
    events,
    initialized,
    lines,
    note,
    refusal_of,
    request,
    rig,
    text,
)
from tests.router.helpers import audit_lines

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock

SMALL = "version: 1\nagents: {web: {max_frame_bytes: 2KiB, concurrency: unlimited}}\n"

NOISE = [
    b"warning: something was printed\n",
    b"\n\r\n   \n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b'"text"\n',
    b"\xff\xfe\x00\x01\n",
    b'{"jsonrpc":"2.0","id":\xff1,"result":{}}\n',
    b'{"jsonrpc":"2.0","id":NaN,"result":{}}\n',
    b'{"jsonrpc":"1.0","id":1.5}\n',
    b'[{"jsonrpc":"2.0","id":99,"result":{}}]\n',
    b"[" * 5_000 + b"\n",
    b'{"jsonrpc":"2.0","id":99,"result":{}',
]


@pytest.mark.parametrize("noise", NOISE, ids=range(len(NOISE)))
async def test_noise_of_an_agent_hurts_nobody(noise: bytes, tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call("b"))

        gate.agent(answer(1), noise.removesuffix(b"\n") + b"\n", answer(2))

        assert gate.to_client() == [answer("a"), answer("b")]
        assert len(gate.to_agent()) == 2


@pytest.mark.parametrize("noise", NOISE, ids=range(len(NOISE)))
async def test_noise_of_a_client_hurts_nobody(noise: bytes, tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), noise.removesuffix(b"\n") + b"\n", call("b"))

        assert [message["id"] for message in gate.to_agent()] == [1, 2]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b'{"jsonrpc":"2.0","id":7,"id":7,"method":"ping"}\n', "duplicate_key"),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","Method":"x"}\n', "lookalike_key"),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"Name":"x"}}\n', ""),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x\xff"}}\n', "utf8"),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}\n', "tool_name"),
        (b'{"jsonrpc":"2.0","id":7,"method":"Tools/Call","params":{"name":"x"}}\n', "method"),
        (b'{"jsonrpc":"2.0","id":7,"method":5}\n', "method"),
    ],
)
async def test_a_clients_bad_request_is_answered_under_its_id(
    frame: bytes, reason: str, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(frame)

        refusal = gate.one_to_client()
        assert refusal["id"] == 7
        assert code_of(refusal) == "protocol.invalid"
        assert refusal["error"]["message"].endswith(reason)
        assert gate.to_agent() == []
    assert "protocol.frame_rejected" in events(tmp_path)


async def test_a_batch_is_refused_as_a_whole(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(json.dumps([call(1), call(2)]).encode() + b"\n")

        assert gate.to_agent() == []
        assert gate.one_to_client()["error"]["code"] == -32600
        assert gate.hub.rejected == {"batch": 1}


async def test_a_call_without_an_id_is_not_run(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(note("tools/call", {"name": "echo", "arguments": {}}))

        assert gate.to_agent() == []


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\xff\xfe"}]}}\n',
        b'{"jsonrpc":"2.0","id":1,"result":{"x":NaN}}\n',
        b'{"jsonrpc":"2.0","id":1,"result":{},"result":{}}\n',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}\n',
    ],
)
async def test_an_answer_that_cannot_be_read_ends_its_call_at_once(
    frame: bytes, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call("b"))

        gate.agent(frame)

        refusal = gate.one_to_client()
        assert (refusal["id"], code_of(refusal)) == ("a", "protocol.invalid")
        assert refusal_of(refusal)["retryable"] is False
        gate.agent(answer(2))
        gate.assert_idle()
    failed = [line for line in audit_lines(tmp_path / "audit") if line["event"].endswith("failed")]
    assert [line["code"] for line in failed] == ["protocol.invalid"]


async def test_an_unreadable_answer_to_a_request_ends_it_too(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(request("r", "prompts/list"))

        gate.agent(b'{"jsonrpc":"2.0","id":1,"result":{"x":NaN}}\n')

        assert code_of(gate.one_to_client()) == "protocol.invalid"
        gate.assert_idle()


async def test_an_unreadable_question_of_an_agent_is_answered(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(b'{"jsonrpc":"2.0","id":"q","method":"roots/list","Method":"x"}\n')

        assert gate.to_client() == []
        refusal = gate.one_to_agent()
        assert (refusal["id"], code_of(refusal)) == ("q", "protocol.invalid")


async def test_an_unreadable_answer_of_a_client_is_told_to_the_agent(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(request("q", "roots/list"))
        gate.to_client()

        gate.client(b'{"jsonrpc":"2.0","id":1,"result":{"x":NaN}}\n')

        refusal = gate.one_to_agent()
        assert (refusal["id"], code_of(refusal)) == ("q", "protocol.invalid")
        assert gate.to_client() == []
        assert len(gate.caller.requests_to_client) == 0


async def test_an_oversized_call_is_refused_under_its_id_and_others_pass(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(call("big", arguments={"x": "y" * 3_000}), call("small"))

        refusal = gate.one_to_client()
        assert (refusal["id"], code_of(refusal)) == ("big", "limit.frame_bytes")
        assert refusal_of(refusal)["limit"]["limit"] == 2_048
        assert gate.hub.rejected == {"frame_bytes": 1}
        assert [message["params"]["arguments"] for message in gate.to_agent()] == [{}]


@pytest.mark.parametrize("where", ["first", "last"])
async def test_an_oversized_answer_ends_its_call_and_others_pass(
    where: str, tmp_path: Path, clock: Clock
) -> None:
    big: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "result": text("y" * 3_000)}
    if where == "last":
        big = {"jsonrpc": "2.0", "result": big["result"], "id": 1}
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(call("a"), call("b"))

        gate.agent(big, answer(2))

        refused, passed = gate.to_client()
        assert (refused["id"], code_of(refused)) == ("a", "limit.frame_bytes")
        assert passed == answer("b")
        gate.assert_idle()
    records = audit_lines(tmp_path / "audit")
    (failed,) = [line for line in records if line["event"] == "tool.call.failed"]
    assert (failed["code"], failed["bytes_out"]) == ("limit.frame_bytes", len(lines(big)) - 1)


async def test_an_oversized_answer_in_pieces_is_drained(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(call("a"), call("b"))

        gate.agent(b'{"jsonrpc":"2.0","id":1,"result":{"x":"')
        for _ in range(100):
            gate.agent(b"y" * 1_000)
            assert len(gate.peer.lines._buffer) <= 2_049  # type: ignore[attr-defined]
        gate.agent(b'"}}\n', answer(2))

        refused, passed = gate.to_client()
        assert code_of(refused) == "limit.frame_bytes"
        assert passed == answer("b")


async def test_an_oversized_question_of_an_agent_is_answered(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.agent(request("q", "sampling/createMessage", {"x": "y" * 3_000}))

        refusal = gate.one_to_agent()
        assert (refusal["id"], code_of(refusal)) == ("q", "limit.frame_bytes")


async def test_an_oversized_answer_of_a_client_is_told_to_the_agent(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.agent(request("q", "sampling/createMessage"))
        gate.to_client()

        gate.client(answer(1, text("y" * 3_000)))

        assert code_of(gate.one_to_agent()) == "limit.frame_bytes"
        assert gate.to_client() == []


async def test_an_oversized_answer_after_the_deadline_is_late(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(call("a"))
        gate.pass_ms(15_000)
        gate.to_client()

        gate.agent(answer(1, text("y" * 3_000)))

        assert gate.to_client() == []
        gate.assert_idle()


async def test_an_oversized_answer_to_our_own_listing_is_no_answer(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.client(note("notifications/initialized"))
        gate.to_agent()
        gate.agent(answer(1, {"tools": [], "x": "y" * 3_000}))

        gate.agent(note("notifications/tools/list_changed"))

        assert gate.one_to_agent()["method"] == "tools/list"


async def test_the_limit_of_a_frame_follows_a_reload(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        spec = gate.router.policy.gate("web")
        assert spec.max_frame_bytes == 4 * 1024 * 1024
        from msgspec.structs import replace  # noqa: PLC0415

        small = replace(spec, max_frame_bytes=1_000)
        gate.peer.use(small)
        gate.caller.use(small)

        gate.client(call("a"), call("b", arguments={"x": "y" * 2_000}))
        gate.agent(answer(1, text("y" * 2_000)))

        assert [code_of(message) for message in gate.to_client()] == ["limit.frame_bytes"] * 2


@pytest.mark.parametrize("side", ["client", "agent"])
async def test_a_frame_that_does_not_end_in_time_is_an_error_and_hurts_nobody(
    side: str, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        (gate.client if side == "client" else gate.agent)(b'{"jsonrpc":"2.0","id":1,')

        gate.pass_ms(FRAME_TIMEOUT_NS / MS)

        assert gate.hub.rejected == {"frame_timeout": 1}
        assert gate.to_client() == []
        (gate.client if side == "client" else gate.agent)(b'"still":"not')
        gate.pass_ms(FRAME_TIMEOUT_NS / MS)
        assert gate.hub.rejected == {"frame_timeout": 2}
    assert "protocol.frame_rejected" in events(tmp_path)


async def test_a_frame_that_ends_in_time_is_none(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(b'{"jsonrpc":"2.0","id":1,')
        gate.pass_ms(20_000)
        gate.client(b'"method":"ping"}\n{"jsonrpc":')

        gate.pass_ms(20_000)

        assert gate.hub.rejected == {}
        assert gate.one_to_agent()["method"] == "ping"


async def test_a_frame_that_its_process_did_not_live_to_end_is_none(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(b'{"jsonrpc":"2.0","id":1,')
        gate.dies()
        gate.starts()
        gate.client(call("a"))

        gate.agent(answer(1))

        assert gate.to_client() == [answer("a")]
        gate.pass_ms(60_000)
        assert gate.hub.rejected == {}


async def test_a_flood_of_rejected_frames_becomes_few_records_with_a_count(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent(*[b"noise\n"] * 5_000)

        gate.pass_ms(MERGE_WINDOW_NS / MS)

        assert gate.hub.rejected == {"json": 5_000}
    lines = audit_lines(tmp_path / "audit")
    rejected = [line for line in lines if line["event"] == "protocol.frame_rejected"]
    assert len(rejected) == PER_SECOND + 1
    assert rejected[-1]["count"] == 5_000 - PER_SECOND


async def test_who_floods_and_reads_nothing_is_not_answered_without_end(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.agent_pipe.flooded = True

        gate.agent(b'{"jsonrpc":"2.0","id":"q","method":"x","Method":"x"}\n', call("q"))

        assert gate.to_agent() == []
        assert gate.hub.stray == 2


async def test_a_fault_of_ours_stops_no_other_frame(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, clock) as gate:
        real = gate.caller._request

        def broken(message: Any) -> None:
            if message.id == 1:
                raise ZeroDivisionError
            real(message)

        monkeypatch.setattr(gate.caller, "_request", broken)

        gate.client(request(1, "ping"), request(2, "ping"))

        assert len(gate.to_agent()) == 1
        assert [type(fault) for fault in gate.faults] == [ZeroDivisionError]
        assert gate.hub.rejected == {"internal": 1}
        gate.faults.clear()


async def test_an_initialize_result_that_cannot_be_read_still_reaches_the_client(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(request(0, "initialize", {"protocolVersion": "2025-11-25"}))
        result = {**initialized(), "ProtocolVersion": "x"}

        gate.agent(answer(1, result))

        assert gate.one_to_client() == answer(0, result)
        gate.pass_ms(60_000)
        assert gate.troubles == []


async def test_an_oversized_answer_to_nothing_is_counted_and_no_more(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.agent(answer(99, text("y" * 3_000)))

        assert gate.to_client() == []
        assert gate.hub.stray == 1


async def test_a_refusal_of_an_answer_says_which_call_it_is(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.shake_hands("echo")
        gate.client(call("a", "echo"))
        sent = gate.one_to_agent()

        gate.agent(answer(sent["id"], text("y" * 3_000)))

        refusal = refusal_of(gate.one_to_client())
        assert (refusal["agent"], refusal["tool"]) == ("web", "echo")
        assert refusal["request_id"]


async def test_a_spoiled_listing_does_not_end_the_next_one_early(
    tmp_path: Path, clock: Clock
) -> None:
    changed = note("notifications/tools/list_changed")
    async with rig(tmp_path, clock, SMALL) as gate:
        gate.agent(changed)
        gate.agent(answer(1, {"tools": [], "x": "y" * 3_000}))
        gate.pass_ms(20_000)
        gate.agent(changed)
        gate.to_agent()

        gate.pass_ms(11_000)
        gate.agent(changed)

        assert gate.to_agent() == []
