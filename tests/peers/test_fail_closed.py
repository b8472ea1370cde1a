"""The audit cannot be written: nothing is forwarded or answered that is not written down."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from callgate.audit import writer as writer_module
from callgate.audit.verify import verify
from callgate.policy import Policy
from tests.peers.helpers import (
    answer,
    call,
    cancel,
    code_of,
    events,
    refusal_of,
    request,
    rig,
    text,
)
from tests.router.helpers import audit_lines, rates_left, used_slots

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock

RATED = """
version: 1
defaults: {timeout: 10s, concurrency: 2, queue: 3, rate: 100/minute}
agents: {web: {}}
"""

real_write = os.write


class Disk:
    """Stands before the audit's write(2)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.passes = 0
        """So many writes go through although it is full."""
        self.misses = 0
        """So many writes fail although it is not."""
        self.written: list[bytes] = []
        monkeypatch.setattr(writer_module, "os_write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if self.misses or (self.full and not self.passes):
            self.misses = max(0, self.misses - 1)
            raise OSError(errno.ENOSPC, "no")
        if self.full:
            self.passes -= 1
        self.written.append(data)
        return real_write(fd, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_a_call_whose_admission_is_not_written_is_not_sent(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        disk.full = True

        gate.client(call("a"), call("b"))

        assert gate.to_agent() == []
        refusals = gate.to_client()
        assert [(one["id"], code_of(one)) for one in refusals] == [
            ("a", "audit.unavailable"),
            ("b", "audit.unavailable"),
        ]
        assert all(refusal_of(one)["retryable"] for one in refusals)
        assert rates_left(gate.router) == {"agent:web": 100}
        gate.assert_idle()


async def test_an_answer_whose_record_is_not_written_is_withheld(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        gate.client(call("a"), request("r", "ping"))
        disk.full = True

        gate.agent(answer(1, text("secret")), answer(2, {}))

        withheld, passed = gate.to_client()
        assert (withheld["id"], code_of(withheld)) == ("a", "audit.unavailable")
        refusal = refusal_of(withheld)
        assert (refusal["retryable"], refusal["agent"]) == (False, "web")
        assert refusal["request_id"]
        assert "secret" not in str(withheld)
        assert passed == answer("r", {})
        assert used_slots(gate.router) == {}


async def test_a_withheld_answer_has_the_form_that_the_policy_wants(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    policy = "version: 1\nagents: {web: {denials: error}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(call("a"))
        disk.full = True

        gate.agent(answer(1))

        assert gate.one_to_client()["error"]["code"] == -32014


async def test_a_timeout_whose_record_is_not_written_is_withheld_too(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        gate.client(call("a"))
        gate.to_agent()
        disk.full = True

        gate.pass_ms(10_000)

        assert code_of(gate.one_to_client()) == "audit.unavailable"
        assert gate.to_agent() == [cancel(1)]


async def test_it_recovers_unaided(tmp_path: Path, clock: Clock, disk: Disk) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        disk.full = True
        gate.client(call("a"))
        gate.to_client()

        disk.full = False
        gate.client(call("b"))
        gate.agent(answer(gate.one_to_agent()["id"]))

        assert gate.to_client() == [answer("b")]
        gate.assert_idle()
    assert verify(tmp_path / "audit").ok
    lines = audit_lines(tmp_path / "audit")
    (gap,) = [line for line in lines if line["event"] == "audit.recovered"]
    assert gap["code"] == "audit.unavailable"


async def test_who_waits_for_a_place_that_was_given_back_is_not_forgotten(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        disk.full = True

        gate.client(*(call(number) for number in range(5)))

        assert [code_of(message) for message in gate.to_client()] == ["audit.unavailable"] * 5
        assert gate.to_agent() == []
        gate.assert_idle()


async def test_who_waits_enters_if_the_disk_has_room_by_then(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        gate.client(call("a"), call("b"), call("c"))
        gate.to_agent()
        disk.full = True
        gate.agent(answer(1))
        answers = gate.to_client()
        assert {code_of(message) for message in answers} == {"audit.unavailable"}

        disk.full = False
        gate.agent(answer(2))

        assert [message["id"] for message in gate.to_client()] == ["b"]


async def test_a_disk_with_room_for_little_ends_the_pass(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        disk.full = True
        gate.client(call("a"))
        gate.to_client()
        disk.passes = 1  # for the record of the gap, which comes first

        gate.client(call("b"))

        assert disk.passes == 0
        assert code_of(gate.one_to_client()) == "audit.unavailable"
        assert gate.to_agent() == []
        gate.assert_idle()


async def test_a_call_admitted_and_cancelled_in_one_pass_gives_its_place_back_once(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        gate.client(call("other"))
        gate.to_agent()
        disk.full = True

        gate.client(call("a"), cancel("a"))

        assert gate.to_agent() == []
        assert gate.to_client() == []
        assert used_slots(gate.router) == {"agent:web": 1}


async def test_a_held_call_is_refused_too(tmp_path: Path, clock: Clock, disk: Disk) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        gate.dies()
        disk.full = True

        gate.client(call("a"))
        gate.starts()

        assert code_of(gate.one_to_client()) == "audit.unavailable"
        assert gate.to_agent() == []
        gate.assert_idle()


async def test_a_log_that_may_drop_lets_calls_pass(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    policy = RATED + f"audit: {{path: {tmp_path / 'audit'}, on_failure: drop}}\n"
    async with rig(tmp_path, clock, policy, audited=False) as gate:
        disk.full = True

        gate.client(call("a"))
        gate.agent(answer(1))

        assert gate.to_client() == [answer("a")]
        assert gate.router.engine.recorders[0].dropped == 2


async def test_one_policys_broken_log_does_not_hurt_calls_of_another(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        gate.client(call("old"))
        gate.to_agent()
        other = RATED + f"audit: {{path: {tmp_path / 'other'}}}\n"
        await gate.router.reload(Policy.parse(other))
        _, former = gate.router.engine.recorders
        assert former.log is not None
        broken = former.log._writer._fd

        def write(fd: int, data: bytes) -> int:
            if fd == broken:
                raise OSError(errno.ENOSPC, "no")
            return real_write(fd, data)

        monkeypatch.setattr(writer_module, "os_write", write)

        gate.client(call("new"))
        sent = gate.one_to_agent()
        gate.agent(answer(1), answer(sent["id"]))

        old, new = gate.to_client()
        assert code_of(old) == "audit.unavailable"
        assert new == answer("new")
    assert events(tmp_path, "tool.call.") == ["admitted"]


async def test_a_thousand_answers_are_withheld_within_the_pass(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(*(call(number) for number in range(1_000)))
        disk.full = True

        gate.agent(*(answer(number + 1) for number in range(1_000)))

        answers = gate.to_client()
        assert [message["id"] for message in answers] == list(range(1_000))
        assert {code_of(message) for message in answers} == {"audit.unavailable"}


async def test_an_answer_in_a_later_pass_is_withheld_too(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        gate.client(call("a"), call("b"))
        disk.full = True

        gate.agent(answer(1))
        gate.agent(answer(2))

        first, second = gate.to_client()
        assert code_of(first) == code_of(second) == "audit.unavailable"
        assert refusal_of(second)["retryable"] is False
        gate.assert_idle()


async def test_a_refusal_for_want_of_a_record_is_written_as_soon_as_can_be(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        disk.misses = 1

        gate.client(call("a"))

        assert code_of(gate.one_to_client()) == "audit.unavailable"
        assert events(tmp_path, "tool.call.") == ["denied"]


async def test_who_waits_enters_within_the_pass_if_the_disk_has_room_again(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    async with rig(tmp_path, clock, RATED) as gate:
        disk.misses = 1

        gate.client(*(call(number) for number in range(4)))

        assert [message["id"] for message in gate.to_client()] == [0, 1]
        assert len(gate.to_agent()) == 2
        assert events(tmp_path, "tool.call.").count("admitted") == 2
