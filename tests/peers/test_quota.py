"""Quotas on the wire: blocks come from a store in a thread, while other frames go on."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest

from callgate.peers.inflight import MAX_REQUESTS
from callgate.stores.sqlite import QuotaStore
from tests.peers.helpers import FOREVER_S, answer, call, cancel, code_of, events, rig, settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.peers.helpers import Clock

POLICY = """
version: 1
defaults: {timeout: 10s, concurrency: unlimited, rate: unlimited}
callers: {"*": {quota: 3/hour}}
agents: {web: {}}
"""


class Store:
    """Stands before the store: it can be slow, or broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.go.set()
        self.broken = False
        real = QuotaStore.reserve

        def reserve(store: QuotaStore, *args: object) -> int:
            assert self.go.wait(FOREVER_S)
            if self.broken:
                raise sqlite3.OperationalError
            return real(store, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(QuotaStore, "reserve", reserve)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store(monkeypatch)
    yield made
    made.go.set()


async def test_a_call_waits_for_its_budget_and_then_goes(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(call("a"))
        assert gate.to_agent() == []

        await settle(gate)

        gate.agent(answer(gate.one_to_agent()["id"]))
        assert gate.to_client() == [answer("a")]
        gate.assert_idle()


async def test_a_spent_quota_refuses(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, POLICY) as gate:
        for number in range(4):
            gate.client(call(number))
            await settle(gate)

        assert len(gate.to_agent()) == 3
        assert code_of(gate.one_to_client()) == "limit.quota"


async def test_the_same_quota_is_spent_by_the_next_gate(tmp_path: Path, clock: Clock) -> None:
    passed = 0
    for _ in range(4):
        async with rig(tmp_path, clock, POLICY) as gate:
            gate.client(call("a"))
            await settle(gate)
            passed += len(gate.to_agent())

    assert passed <= 3


async def test_time_in_which_a_call_waits_for_its_budget_is_its_own(
    tmp_path: Path, clock: Clock, store: Store
) -> None:
    store.go.clear()
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(call("a"))

        gate.pass_ms(10_000)

        assert code_of(gate.one_to_client()) == "state.unavailable"
        store.go.set()
        await settle(gate)
        assert gate.to_agent() == []
        assert gate.to_client() == []
        gate.assert_idle()


async def test_what_waited_for_its_budget_has_the_rest_of_its_time(
    tmp_path: Path, clock: Clock, store: Store
) -> None:
    store.go.clear()
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(call("a"))
        gate.pass_ms(6_000)
        store.go.set()
        await settle(gate)
        assert len(gate.to_agent()) == 1

        gate.pass_ms(4_000)

        assert code_of(gate.one_to_client()) == "limit.timeout"


async def test_a_call_is_cancelled_while_it_waits_for_its_budget(
    tmp_path: Path, clock: Clock, store: Store
) -> None:
    store.go.clear()
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(call("a"))

        gate.client(cancel("a"))
        gate.client(call("a"))
        store.go.set()
        await settle(gate)

        assert len(gate.to_agent()) == 1
        assert gate.to_client() == []
    assert events(tmp_path, "tool.call.")[0] == "denied"


async def test_an_agent_that_died_meanwhile_is_not_called(
    tmp_path: Path, clock: Clock, store: Store
) -> None:
    store.go.clear()
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(call("a"))

        gate.dies(again=False)
        store.go.set()
        await settle(gate)

        assert code_of(gate.one_to_client()) == "agent.unavailable"
        gate.assert_idle()


async def test_who_waits_for_a_budget_when_there_will_be_no_agent_is_told(
    tmp_path: Path, clock: Clock, store: Store
) -> None:
    store.go.clear()
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(call("a"))
        gate.dies(again=False)

        gate.caller.agent_gone()
        gate.hub.flush()

        assert code_of(gate.one_to_client()) == "agent.unavailable"
        store.go.set()
        await settle(gate)
        assert gate.to_client() == []
        gate.assert_idle()


async def test_a_store_that_fails_refuses(tmp_path: Path, clock: Clock, store: Store) -> None:
    store.broken = True
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(call("a"))

        await settle(gate)

        assert code_of(gate.one_to_client()) == "state.unavailable"
        gate.assert_idle()


async def test_only_so_many_wait_for_a_budget(tmp_path: Path, clock: Clock, store: Store) -> None:
    store.go.clear()
    async with rig(tmp_path, clock, POLICY) as gate:
        gate.client(*(call(number) for number in range(MAX_REQUESTS + 1)))

        assert code_of(gate.one_to_client()) == "state.unavailable"
        store.go.set()
        await settle(gate)
        assert len(gate.to_agent()) == 3
        assert [code_of(message) for message in gate.to_client()] == ["limit.quota"] * 253


SHADOWED = POLICY.replace("quota: 3/hour", "quota: {limit: 3/hour, mode: shadow}")


async def test_a_quota_in_shadow_lets_calls_pass_though_its_store_fails(
    tmp_path: Path, clock: Clock, store: Store
) -> None:
    store.broken = True
    async with rig(tmp_path, clock, SHADOWED) as gate:
        gate.client(call("a"))

        await settle(gate)

        gate.agent(answer(gate.one_to_agent()["id"]))
        assert gate.to_client() == [answer("a")]
        gate.assert_idle()


async def test_a_quota_in_shadow_holds_a_call_up_only_shortly(
    tmp_path: Path, clock: Clock, store: Store
) -> None:
    store.go.clear()
    async with rig(tmp_path, clock, SHADOWED) as gate:
        gate.client(call("a"))
        assert gate.to_agent() == []

        gate.pass_ms(300)

        gate.agent(answer(gate.one_to_agent()["id"]))
        assert gate.to_client() == [answer("a")]
        store.go.set()
        await settle(gate)
        gate.assert_idle()
