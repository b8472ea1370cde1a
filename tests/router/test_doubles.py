"""No name reaches an agent that it could take for one that was denied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from callgate import Policy, Router, ToolCall
from callgate.errors import CallgateError
from callgate.router.doubles import MAX_TOOL_BYTES
from tests.peers.helpers import Clock, call, code_of, rig

if TYPE_CHECKING:
    from pathlib import Path

POLICY = """
version: 1
defaults: {concurrency: unlimited, rate: unlimited}
agents:
  web:
    tools: {danger: deny, "delete_*": deny, deleteAll: deny, "read_*": {timeout: 1s}, Danger_ok: {}}
"""
ODD = [
    "danger\0",
    "\0danger",
    "danger\n",
    "danger ",
    " danger",
    "danger\t",
    "dan\u200bger",
    "danger\u00a0",
    "danger\u2028",
    "\ufeffdanger",
    "dan\u00adger",
    "\u202edanger",
    "danger\x7f",
    "echo\r",
    "x" * (MAX_TOOL_BYTES + 1),
    "\u00e9" * (MAX_TOOL_BYTES // 2 + 1),
]
DOUBLES = [
    "Danger",
    "DANGER",
    "\uff44anger",
    "dan ger",
    "da\u034fnger",
    "danger\ufe0f",
    "Delete_x",
    "DELETE_all",
    "delete\uff3fx",
    "deleteall",
    "DELETEALL",
]
PASS = ["dangerous", "Read_x", "read_delete_x", "danger_ok", "Danger_ok", "\u043danger", "do it"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def outcome(tmp_path: Path, clock: Clock, name: str, policy: str = POLICY) -> str:
    async with rig(tmp_path, clock, policy) as gate:
        gate.shake_hands("echo", "danger", "DANGER2")
        gate.client(call(1, name))
        sent = gate.to_agent()
        if sent:
            assert sent[0]["params"]["name"] == name
            gate.dies()
            return "sent"
        return code_of(gate.one_to_client())


@pytest.mark.parametrize("name", ODD)
async def test_a_name_that_is_none_is_unknown(tmp_path: Path, clock: Clock, name: str) -> None:
    assert await outcome(tmp_path, clock, name) == "tool.unknown"


@pytest.mark.parametrize("name", DOUBLES)
async def test_a_name_that_folds_to_a_denied_one_is_denied(
    tmp_path: Path, clock: Clock, name: str
) -> None:
    assert await outcome(tmp_path, clock, name) == "policy.denied"


@pytest.mark.parametrize("name", PASS)
async def test_other_names_pass(tmp_path: Path, clock: Clock, name: str) -> None:
    assert await outcome(tmp_path, clock, name) == "sent"


async def test_a_name_that_the_agent_has_listed_is_exact(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {tools: {danger2: deny}}}\n"

    assert await outcome(tmp_path, clock, "DANGER2", policy) == "sent"
    assert await outcome(tmp_path, clock, "Danger2", policy) == "policy.denied"


async def test_an_allow_list_stays_one(tmp_path: Path, clock: Clock) -> None:
    policy = 'version: 1\nagents: {web: {tools: {"read_*": {}, "*": deny}}}\n'

    assert await outcome(tmp_path, clock, "read_x", policy) == "sent"
    assert await outcome(tmp_path, clock, "Read_x", policy) == "policy.denied"
    assert await outcome(tmp_path, clock, "echo", policy) == "policy.denied"


async def test_odd_names_share_one_lane_and_are_recorded_without_a_name(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.shake_hands("echo")
        lanes = len(gate.router._known)
        gate.client(*(call(number, f"odd{number}\0") for number in range(50)))

        assert len(gate.router._known) <= lanes + 1
        assert {code_of(one) for one in gate.to_client()} == {"tool.unknown"}


@pytest.mark.parametrize(("name", "code"), [("a\0", "tool.unknown"), ("Danger", "policy.denied")])
async def test_it_is_the_same_in_process(tmp_path: Path, name: str, code: str) -> None:
    ran = []

    async def work() -> None:
        ran.append(1)

    async with Router(Policy.parse(POLICY), state_dir=tmp_path) as router:
        with pytest.raises(CallgateError) as caught:
            await router.guard(ToolCall("web", name), work)

    assert caught.value.code == code
    assert ran == []
