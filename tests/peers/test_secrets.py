"""Whatever peers say, wherever they say it, the audit and our counters have none of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import Canary, canaries, leaks
from tests.conftest import FULL
from tests.peers.helpers import (
    answer,
    call,
    cancel,
    failure,
    initialize,
    note,
    progress,
    request,
    rig,
    text,
    tool_list,
)
from tests.peers.runtime_rig import runtime_rig

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock, Rig

CANARIES = canaries(64 if FULL else 8)

POLICY = """
version: 1
defaults: {timeout: 10s, concurrency: 8, queue: 2, rate: 50/minute, max_frame_bytes: 4KiB}
agents: {web: {max_input_bytes: 2000, max_output_bytes: 2000, tools: {no: deny}}}
"""


def audit(tmp_path: Path) -> bytes:
    files = (tmp_path / "audit").rglob("*.jsonl")
    return b"".join(file.read_bytes() for file in files)


def counters(gate: Rig) -> str:
    hub = gate.hub
    return json.dumps([gate.router.snapshot(), hub.requests, hub.rejected, hub.stray], default=str)


def ways(secret: str) -> list[tuple[str, list[Any]]]:
    """Who says what: a secret in every place that a peer can write to."""
    everywhere = {secret: secret, "deep": [{secret: secret}]}
    listing = tool_list(secret, "fine", cursor=secret, **{secret: secret})
    return [
        ("client", [call(secret, secret, everywhere, **{secret: secret, "traceparent": secret})]),
        ("client", [call("p", "echo", everywhere, progressToken=secret)]),
        ("client", [call("n", "no", everywhere), call("n", "no"), call("big", secret, [secret])]),
        ("client", [call("x", "echo", {"x": secret * 100}), call("y", "e", {"x": secret * 300})]),
        ("client", [initialize(0, secret), note("notifications/initialized", everywhere)]),
        ("client", [request("m", secret, everywhere), request(secret + "l", "tools/list")]),
        ("client", [note(secret, everywhere), progress(secret), cancel(secret + "?")]),
        ("client", [secret.encode() + b"\n", json.dumps([secret]).encode() + b"\n"]),
        ("agent", [secret.encode() + b"\n", json.dumps({secret: secret}).encode() + b"\n"]),
        ("agent", [answer(1, text(secret)), failure(2, -1, secret), answer(secret, secret)]),
        ("agent", [answer(3, text(secret * 300)), answer(4, listing), answer(5, listing)]),
        ("agent", [request(secret, secret, everywhere), note(secret, everywhere)]),
        ("agent", [progress(secret), cancel(secret), note("notifications/tools/list_changed")]),
        ("agent", [answer(6, listing), answer(7, listing), answer(8, {"tools": secret})]),
        ("client", [call(9, "fine", everywhere), cancel(9), call(10, secret), answer(1, secret)]),
    ]


@pytest.mark.parametrize("canary", CANARIES, ids=range(len(CANARIES)))
async def test_no_secret_of_an_mcp_peer_is_written(
    canary: Canary, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, POLICY) as gate:
        for side, messages in ways(canary.secret):
            (gate.client if side == "client" else gate.agent)(*messages)
        gate.pass_ms(60_000)
        gate.dies()
        gate.starts()
        gate.client(call("last", canary.secret))
        shown = counters(gate)

    assert len(audit(tmp_path).splitlines()) >= 20  # a secret that is no tool's name is not sent
    assert leaks([canary], audit(tmp_path)) == {}
    assert leaks([canary], shown) == {}


@pytest.mark.parametrize("canary", CANARIES, ids=range(len(CANARIES)))
async def test_no_secret_of_a_runtime_agent_is_written(
    canary: Canary, tmp_path: Path, clock: Clock
) -> None:
    secret = canary.secret
    policy = POLICY.replace("{web: {", "{web: {protocol: runtime, ")
    async with runtime_rig(tmp_path, clock, policy) as (gate, agent):
        agent.shake_hands(secret, "echo")
        gate.client(*(call(number, "echo", progressToken=secret) for number in range(6)))
        agent.stream("1", 1, text=secret)
        agent.result("1", output={secret: secret}, metrics={secret: secret})
        agent.result("2", status="failed", error={"code": secret, "message": secret})
        agent.result("3", output={"x": secret * 200})
        agent.result(secret, output=secret)
        agent.say(secret, {secret: secret}, correlation_id=secret, error={"code": secret})
        agent.say("agent.error", {}, in_reply_to=secret, error={"code": "x", "message": secret})
        agent.say("agent.tool.cancel_ack", {"call_id": "4", "accepted": True, "note": secret})
        agent.beat("unhealthy", session=secret)
        agent.register("a", **{secret: secret})
        agent.say("agent.tools.unregister", {"tool_ids": [secret]})
        agent.raw(len(secret.encode()).to_bytes(4, "big") + secret.encode())
        agent.hello(secret, secret)
        shown = counters(gate)

    assert len(audit(tmp_path).splitlines()) > 15
    assert leaks([canary], audit(tmp_path)) == {}
    assert leaks([canary], shown) == {}


@pytest.mark.parametrize("canary", CANARIES, ids=range(len(CANARIES)))
async def test_our_own_words_to_one_side_have_nothing_of_the_other(
    canary: Canary, tmp_path: Path, clock: Clock
) -> None:
    secret = canary.secret
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(call("a", "echo", {"x": secret}), call("b", "echo", {"x": secret * 300}))
        gate.client(call("c", "no", {"x": secret}), request("l", "tools/list"))
        gate.agent(answer(1, text(secret * 200)), answer(2, {"tools": secret}))
        gate.client(call("d", "echo"))
        gate.agent(json.dumps({"jsonrpc": "2.0", "id": 3, "result": secret}).encode()[:-1] + b"\n")
        gate.pass_ms(60_000)

        said = gate.client_pipe.take()

    assert said.count(b"\n") == 5
    assert leaks([canary], said) == {}
