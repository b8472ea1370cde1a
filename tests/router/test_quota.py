"""Quotas: so many calls in a window of the wall clock, over restarts and beside others."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest

from callgate import Policy, QuotaExceeded, Router, ToolCall
from callgate.errors import LimitInfo
from callgate.limits.quota import Quota
from callgate.router import engine as engine_module
from callgate.router import quotas as quotas_module
from callgate.router import router as router_module
from callgate.stores import sqlite
from callgate.stores.sqlite import QuotaStore
from tests.limits.helpers import HOUR_NS
from tests.router.helpers import (
    FOREVER_S,
    Gate,
    assert_nothing_is_left,
    audit_lines,
    call,
    call_events,
    echo,
    policy,
    refused,
    running,
    turns,
    until,
    within,
)

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.router.lanes import Lane

FIVE = """
version: 1
defaults: {rate: unlimited, concurrency: unlimited}
callers:
  alice: {quota: 5/hour}
  bob: {quota: 500/hour}
  "*": {quota: 3/hour}
"""
HOUR = 490_000
"""Some hour since 1970."""


class Wall:
    """The wall clock of quotas."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = HOUR * HOUR_NS + 1_000_000_000
        for module in (router_module, engine_module, quotas_module):
            monkeypatch.setattr(module, "time_ns", self.read)

    def read(self) -> int:
        return self.now_ns


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


async def admitted(router: Router, caller: str, tries: int) -> int:
    count = 0
    for _ in range(tries):
        try:
            await within(router.call(call(caller=caller)))
        except QuotaExceeded:
            continue
        count += 1
    return count


async def test_a_caller_may_spend_its_quota_and_no_more(tmp_path: Path, wall: Wall) -> None:
    async with running(policy(FIVE), tmp_path) as router:
        assert await admitted(router, "alice", 9) == 5

        error = await refused(router.call(call()))

        assert (error.code, error.retryable) == ("limit.quota", True)
        assert error.limit == LimitInfo("quota", "caller:alice", "5/hour", 5)
        assert error.retry_after_ms == 3_599_000
        wall.now_ns += error.retry_after_ms * 1_000_000
        assert await admitted(router, "alice", 9) == 5


@pytest.mark.usefixtures("wall")
async def test_each_caller_has_its_own(tmp_path: Path) -> None:
    async with running(policy(FIVE), tmp_path) as router:
        assert await admitted(router, "alice", 9) == 5
        assert await admitted(router, "stranger", 9) == 3
        assert await admitted(router, "another", 9) == 3


@pytest.mark.usefixtures("wall")
async def test_a_restart_gives_nothing_back(tmp_path: Path) -> None:
    async with running(policy(FIVE), tmp_path) as router:
        assert await admitted(router, "alice", 3) == 3
        assert await admitted(router, "stranger", 2) == 2

    async with running(policy(FIVE), tmp_path) as router:
        assert await admitted(router, "alice", 9) == 2
        assert await admitted(router, "stranger", 9) == 1


@pytest.mark.usefixtures("wall")
async def test_a_restart_loses_at_most_the_block_in_hand(tmp_path: Path) -> None:
    async with running(policy(FIVE), tmp_path) as router:
        assert await admitted(router, "bob", 7) == 7

    async with running(policy(FIVE), tmp_path) as router:
        left = await admitted(router, "bob", 600)

    assert 500 - 7 - 2 * 5 <= left <= 500 - 7


@pytest.mark.usefixtures("wall")
async def test_the_store_is_in_the_state_directory_and_nobody_elses(tmp_path: Path) -> None:
    async with running(policy(FIVE), tmp_path) as router:
        await router.call(call())

    database = tmp_path / "state" / "quota.db"
    assert database.stat().st_mode & 0o777 == 0o600


async def test_by_default_it_is_kept_where_state_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    router = Router(policy(FIVE))
    router.add_tool("web", "echo", echo)
    async with router:
        await router.call(call())

    assert sorted(os.listdir(tmp_path / "callgate")) == ["key", "quota.db"]  # noqa: PTH208


@pytest.mark.usefixtures("wall")
async def test_two_policy_files_do_not_share_a_budget(tmp_path: Path) -> None:
    for name in ("one.yaml", "two.yaml"):
        file = tmp_path / name
        file.write_text(FIVE)
        async with running(Policy.load(file), tmp_path) as router:
            assert await admitted(router, "alice", 9) == 5


@pytest.mark.usefixtures("wall")
async def test_a_pseudonym_is_the_same_after_a_restart_also_with_an_audit_log(
    tmp_path: Path,
) -> None:
    for expected in (3, 0):
        made = policy(FIVE, audit=tmp_path / "audit")
        async with running(made, tmp_path) as router:
            assert await admitted(router, "stranger", 9) == expected


# Side by side.


@pytest.mark.usefixtures("wall")
async def test_calls_at_once_share_what_is_fetched(tmp_path: Path) -> None:
    async with running(policy(FIVE), tmp_path) as router:
        outcomes = await within(
            asyncio.gather(
                *(router.call(call(value=number)) for number in range(40)), return_exceptions=True
            )
        )

        assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 5
        assert {type(one) for one in outcomes if isinstance(one, BaseException)} == {QuotaExceeded}
        assert_nothing_is_left(router)


@pytest.mark.usefixtures("wall")
async def test_two_routers_on_one_store_never_admit_more_than_one_would(tmp_path: Path) -> None:
    async with (
        running(policy(FIVE), tmp_path) as one,
        running(policy(FIVE), tmp_path) as two,
    ):
        counts = await within(
            asyncio.gather(*(admitted(router, "bob", 300) for router in (one, two, one, two)))
        )
        alice = [await admitted(router, "alice", 4) for router in (one, two)]

    # A router that ends with a block in hand wastes it; never the other way round.
    assert 500 - 2 * 5 <= sum(counts) <= 500
    assert sum(alice) <= 5


async def test_a_window_that_turns_between_two_looks_is_no_refusal_for_an_hour(
    tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(policy(FIVE), tmp_path) as router:
        await router.call(call())
        # `in_hand` looks at the old window, admission at the new one.
        monkeypatch.setattr(engine_module, "time_ns", lambda: wall.now_ns + HOUR_NS)

        error = await refused(router.call(call()))

        assert (error.code, error.retryable) == ("state.unavailable", True)
        wall.now_ns += HOUR_NS
        monkeypatch.setattr(engine_module, "time_ns", wall.read)
        assert await admitted(router, "alice", 9) == 5


# What is not charged.


@pytest.mark.usefixtures("wall")
async def test_a_call_that_is_refused_or_turned_away_spends_nothing(tmp_path: Path) -> None:
    gate = Gate()
    made = policy(FIVE + "agents: {web: {concurrency: 1, queue: 1, tools: {no: deny}}}\n")
    async with running(made, tmp_path, {"web/gate": gate, "web/no": echo}) as router:
        for _ in range(9):
            assert (await refused(router.call(call("web/no")))).code == "policy.denied"
        # On a busy disk the loop may take longer than a call usually may.
        first = asyncio.create_task(router.call(ToolCall("web", "gate", {}, "alice", 60_000)))
        await gate.entered()
        for _ in range(6):
            waiting = asyncio.create_task(router.call(call("web/gate")))
            await turns()
            assert (await refused(router.call(call("web/gate")))).code == "limit.concurrency"
            waiting.cancel()
            await asyncio.wait([waiting], timeout=FOREVER_S)
        gate.open()
        await within(first)

        assert await count_guarded(router, 9) == 4


async def count_guarded(router: Router, tries: int) -> int:
    count = 0
    for _ in range(tries):
        try:
            await within(router.guard(call(), echo))
        except QuotaExceeded:
            continue
        count += 1
    return count


@pytest.mark.usefixtures("wall")
async def test_a_tool_that_fails_has_been_paid_for(tmp_path: Path) -> None:
    async def fail() -> None:
        raise ValueError("no")

    async with running(policy(FIVE), tmp_path, {"web/fail": fail, "web/echo": echo}) as router:
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                await router.call(call("web/fail"))

        assert await admitted(router, "alice", 9) == 2


# A store that does not answer.


async def test_a_store_that_cannot_be_opened_refuses_and_recovers_unaided(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("in the way")
    audit = tmp_path / "audit"
    async with running(policy(FIVE, audit=audit), tmp_path) as router:
        for _ in range(2):
            error = await refused(router.call(call()))
            assert (error.code, error.retryable) == ("state.unavailable", True)
            assert (error.agent, error.tool) == ("web", "echo")
        state.unlink()

        assert await router.call(call(value=1)) == 1
        assert_nothing_is_left(router)
    assert call_events(audit) == ["denied", "denied", "admitted", "completed"]


async def test_who_has_no_quota_needs_no_store(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    made = policy(FIVE.replace('  "*": {quota: 3/hour}\n', ""))
    async with running(made, tmp_path) as router:
        assert await router.call(call(caller="carol", value=1)) == 1


async def test_a_store_that_another_process_holds_refuses_when_its_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    async with running(policy(FIVE), tmp_path) as router:
        await router.call(call(caller="bob"))
        with sqlite3.connect(tmp_path / "state" / "quota.db", isolation_level=None) as other:
            other.execute("BEGIN EXCLUSIVE")

            error = await refused(router.call(call()))
            other.execute("ROLLBACK")
        other.close()

        assert error.code == "state.unavailable"
        assert await router.call(call(value=1)) == 1


class Hanging:
    """A store on a disk that does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        real = QuotaStore.reserve

        def reserve(store: QuotaStore, *args: Any) -> int:
            self.entered.set()
            self.go_on.wait(FOREVER_S)
            return real(store, *args)

        monkeypatch.setattr(QuotaStore, "reserve", reserve)


@pytest.mark.parametrize("way", ["call", "guard", "submit"])
async def test_a_store_that_hangs_holds_nobody_up_beyond_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    made = ToolCall("web", "echo", {}, "alice", timeout_ms=20)
    async with running(policy(FIVE), tmp_path) as router:
        await router.call(call(caller="carol"))  # opens the store, which may take as long
        hanging = Hanging(monkeypatch)
        if way == "call":
            error = await refused(router.call(made))
        elif way == "guard":
            error = await refused(router.guard(made, echo))
        else:
            error = await refused(router.submit(made))

        assert (error.code, error.retryable) == ("state.unavailable", True)
        await until(hanging.entered.is_set)
        hanging.go_on.set()
        assert await within(router.call(call(value=1))) == 1


async def test_a_caller_may_be_cancelled_while_the_store_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(monkeypatch)
    async with running(policy(FIVE), tmp_path) as router:
        task = asyncio.create_task(router.call(call()))
        await until(hanging.entered.is_set)

        task.cancel()

        await asyncio.wait([task], timeout=FOREVER_S)
        assert task.cancelled()
        hanging.go_on.set()
        assert await within(router.call(call(value=1))) == 1
        assert_nothing_is_left(router)


async def test_a_reload_while_the_store_is_asked_puts_the_call_under_the_new_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(monkeypatch)
    first, second = tmp_path / "first", tmp_path / "second"
    async with running(policy(FIVE, audit=first), tmp_path) as router:
        task = asyncio.create_task(router.call(call(value=1)))
        await until(hanging.entered.is_set)

        await router.reload(policy(FIVE, audit=second))
        hanging.go_on.set()

        assert await within(task) == 1
    assert call_events(first) == []
    assert call_events(second) == ["admitted", "completed"]


async def test_a_call_that_waits_for_the_store_as_the_router_ends_is_not_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(monkeypatch)
    ran: list[int] = []

    async def tool() -> None:
        ran.append(1)

    async with running(policy(FIVE), tmp_path, {"web/tool": tool}) as router:
        task = asyncio.create_task(router.call(call("web/tool")))
        job = router.submit(call("web/tool"))
        await until(hanging.entered.is_set)
        asyncio.get_running_loop().call_later(0.01, hanging.go_on.set)

    with pytest.raises(RuntimeError, match="async with"):
        await within(task)
    assert (await refused(job)).code == "tool.canceled"
    assert ran == []
    assert_nothing_is_left(router)


# Shadow and jobs.


@pytest.mark.usefixtures("wall")
async def test_a_shadowed_quota_lets_pass_and_says_so(tmp_path: Path) -> None:
    made = policy(FIVE.replace("5/hour", "{limit: 5/hour, mode: shadow}"))
    async with running(made, tmp_path) as router:
        assert await admitted(router, "alice", 9) == 9

        (tool,) = router.snapshot()["tools"]
        assert tool["would_deny"] == {"limit.quota caller": 4}


async def test_a_shadowed_quota_lets_pass_without_a_store_too(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    made = policy(FIVE + "mode: shadow\n")
    async with running(made, tmp_path) as router:
        assert await admitted(router, "alice", 9) == 9


@pytest.mark.usefixtures("wall")
async def test_jobs_are_paid_for_as_calls_are(tmp_path: Path) -> None:
    async with running(policy(FIVE), tmp_path) as router:
        jobs = [router.submit(call(value=number)) for number in range(9)]
        assert len({job.request_id for job in jobs}) == 9

        done = await within(asyncio.gather(*jobs, return_exceptions=True))
        spent = [error for error in done if isinstance(error, QuotaExceeded)]

        assert len({value for value in done if isinstance(value, int)}) == 5
        assert len(spent) == 4
        assert {error.request_id for error in spent} <= {job.request_id for job in jobs}
        assert_nothing_is_left(router)


@pytest.mark.parametrize("when", ["at once", "as the store is asked"])
async def test_a_job_that_waits_for_its_budget_is_cancelled_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    hanging = Hanging(monkeypatch)
    ran: list[int] = []

    async def tool() -> None:
        ran.append(1)

    audit = tmp_path / "audit"
    async with running(policy(FIVE, audit=audit), tmp_path, {"web/tool": tool}) as router:
        job = router.submit(call("web/tool"))
        if when != "at once":
            await until(hanging.entered.is_set)

        assert job.cancel()
        assert not job.cancel()

        error = await refused(job)
        assert (error.code, error.request_id) == ("tool.canceled", job.request_id)
        hanging.go_on.set()
        await turns()
        assert ran == []
        assert_nothing_is_left(router)
    assert call_events(audit) == ["denied"]


async def test_a_job_whose_store_fails_and_whom_nobody_awaits_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("in the way")
    caplog.set_level(logging.DEBUG)
    async with running(policy(FIVE), tmp_path) as router:
        caplog.clear()
        job = router.submit(call())
        await until(job.done)
        del job
        await turns()

    assert caplog.records == []


async def test_who_comes_as_a_block_has_just_been_spent_waits_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that has ended is known for one more turn of the loop."""
    router = Router(policy(FIVE), state_dir=tmp_path)
    router.add_tool("web", "echo", echo)
    come_late: list[asyncio.Task[Any]] = []
    give, in_hand = Quota.give, quotas_module.Quotas.in_hand
    asked = 0

    def give_and_let_others_come(quota: Quota, *block: int) -> None:
        give(quota, *block)
        if not come_late:  # they run before whoever waits for this block does
            come_late.extend(
                asyncio.create_task(router.call(call(caller="alice"))) for _ in range(2)
            )

    def count(quotas: quotas_module.Quotas, lane: Lane) -> bool:
        nonlocal asked
        asked += 1
        assert asked < 10_000, "it does not wait, it spins"
        return in_hand(quotas, lane)

    monkeypatch.setattr(Quota, "give", give_and_let_others_come)
    monkeypatch.setattr(quotas_module.Quotas, "in_hand", count)
    async with router:
        await within(router.call(call(caller="alice")))

        await within(asyncio.gather(*come_late))

        assert len(come_late) == 2


async def test_a_refusal_for_want_of_the_store_has_the_ids_of_its_job(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    audit = tmp_path / "audit"
    mine = "01a1eede-16bf-71a4-8f92-00000000109f"
    async with running(policy(FIVE, audit=audit), tmp_path) as router:
        job = router.submit(ToolCall("web", "echo", correlation_id=mine))

        error = await refused(job)

        assert (error.code, error.request_id) == ("state.unavailable", job.request_id)
    (denied,) = [line for line in audit_lines(audit) if line["event"] == "tool.call.denied"]
    assert (denied["request_id"], denied["correlation_id"]) == (job.request_id, mine)


async def test_the_end_does_not_wait_for_a_store_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas_module, "CLOSE_S", 0.05)
    async with running(policy(FIVE), tmp_path) as router:
        await router.call(call(caller="carol"))
        hanging = Hanging(monkeypatch)
        job = router.submit(call(caller="alice"))
        await until(hanging.entered.is_set)

        await within(router.__aexit__(None, None, None))

        hanging.go_on.set()
        assert (await refused(job)).code == "tool.canceled"
