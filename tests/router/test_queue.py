"""Who waits, who enters next, who is refused at once, and what waiting ends with."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from callgate import ConcurrencyLimited, Router, ToolCall
from callgate.errors import LimitInfo
from tests.conftest import FULL
from tests.router.helpers import (
    MS,
    Clock,
    Gate,
    assert_nothing_is_left,
    audit_lines,
    call,
    call_events,
    echo,
    flights,
    policy,
    rates_left,
    refused,
    running,
    turns,
    until,
    used_slots,
    within,
)

if TYPE_CHECKING:
    from pathlib import Path

ONE = """
version: 1
defaults: {rate: unlimited, timeout: 10s}
agents: {web: {concurrency: 1, queue: 100}}
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def start(router: Router, made: ToolCall) -> asyncio.Task[Any]:
    task = asyncio.create_task(router.call(made))
    await turns()
    return task


# Order.


async def test_a_caller_with_one_call_does_not_wait_behind_anothers_hundred(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with running(policy(ONE), tmp_path, {"web/gate": gate}) as router:
        tasks = [
            await start(router, call("web/gate", "greedy", name=f"greedy {number}"))
            for number in range(20)
        ]
        tasks.append(await start(router, call("web/gate", "modest", name="modest")))

        for entered in range(1, 22):
            await gate.entered(entered)
            gate.open()
        await within(asyncio.gather(*tasks))

        assert gate.names.index("modest") <= 2
        assert_nothing_is_left(router)


@pytest.mark.parametrize("seed", range(40 if FULL else 10))
async def test_each_backlogged_caller_gets_its_share_less_one_call(
    tmp_path: Path, seed: int
) -> None:
    pick = random.Random(seed)  # noqa: S311  # not a secret
    gate = Gate()
    slots = pick.randint(1, 4)
    made = policy(ONE.replace("concurrency: 1", f"concurrency: {slots}"))
    backlog = {f"caller {number}": pick.randint(5, 30) for number in range(pick.randint(2, 5))}
    arrivals = [name for name, count in backlog.items() for _ in range(count)]
    if pick.random() < 0.5:
        pick.shuffle(arrivals)
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        arrivals = arrivals[: 100 + slots]
        backlog = dict(Counter(arrivals))
        tasks = [await start(router, call("web/gate", name, name=name)) for name in arrivals]
        inside = Counter(gate.names)
        waiting = {name: count - inside[name] for name, count in backlog.items()}
        entries: list[str] = []

        for _ in range(len(arrivals) - slots):
            gate.open()
            await gate.entered(slots + len(entries) + 1)
            entries.append(gate.names[-1])
            backlogged = [name for name in waiting if entries.count(name) < waiting[name]]
            if len(backlogged) == len([name for name in waiting if waiting[name]]):
                for name in backlogged:
                    assert entries.count(name) >= len(entries) // len(backlogged) - 1
        gate.open(slots)
        await within(asyncio.gather(*tasks))
        assert_nothing_is_left(router)


async def test_one_callers_calls_for_a_tool_enter_in_the_order_they_came(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(ONE), tmp_path, {"web/gate": gate}) as router:
        names = [str(number) for number in range(12)]
        tasks = [await start(router, call("web/gate", name=name)) for name in names]

        for entered in range(1, 13):
            await gate.entered(entered)
            gate.open()
        await within(asyncio.gather(*tasks))

        assert gate.names == names


async def test_a_cancelled_call_leaves_the_order_of_the_others(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(ONE), tmp_path, {"web/gate": gate}) as router:
        tasks = [await start(router, call("web/gate", name=str(number))) for number in range(5)]

        tasks[2].cancel()
        await turns()

        for entered in range(1, 5):
            await gate.entered(entered)
            gate.open()
        await asyncio.wait(tasks)
        assert gate.names == ["0", "1", "3", "4"]
        assert_nothing_is_left(router)


async def test_a_call_whose_tool_is_full_holds_up_no_other_tool(tmp_path: Path) -> None:
    made = policy("""
version: 1
defaults: {rate: unlimited}
agents: {web: {concurrency: 5, queue: 5, tools: {clone: {concurrency: 1}}}}
""")
    gate = Gate()
    async with running(made, tmp_path, {"web/clone": gate, "web/echo": echo}) as router:
        tasks = [await start(router, call("web/clone")) for _ in range(2)]

        assert await within(router.call(call(value=1))) == 1

        gate.open()
        await gate.entered(2)
        gate.open()
        await within(asyncio.gather(*tasks))


async def test_a_full_queue_refuses_only_those_who_would_have_to_wait(tmp_path: Path) -> None:
    made = policy("""
version: 1
defaults: {rate: unlimited}
agents: {web: {concurrency: 5, queue: 2, tools: {clone: {concurrency: 1}}}}
""")
    gate = Gate()
    async with running(made, tmp_path, {"web/clone": gate, "web/echo": echo}) as router:
        tasks = [await start(router, call("web/clone", "mallory")) for _ in range(3)]

        assert (await refused(router.call(call("web/clone")))).code == "limit.concurrency"
        assert await within(router.call(call(value=1))) == 1

        for entered in (1, 2, 3):
            await gate.entered(entered)
            gate.open()
        await within(asyncio.gather(*tasks))
        assert_nothing_is_left(router)


async def test_a_slot_that_all_agents_share_serves_whoever_waits_anywhere(tmp_path: Path) -> None:
    made = policy("""
version: 1
global: {concurrency: 1}
defaults: {rate: unlimited, queue: 5}
""")
    gate = Gate()
    async with running(made, tmp_path, {"one/gate": gate, "two/gate": gate}) as router:
        first = await start(router, call("one/gate", name="one"))
        second = await start(router, call("two/gate", name="two"))
        assert not second.done()

        gate.open()

        assert await within(first) == "one"
        await gate.entered(2)
        gate.open()
        assert await within(second) == "two"


# Bounds.


@pytest.mark.parametrize("queue", [0, 1, 7])
async def test_no_more_wait_than_the_queue_has_places(tmp_path: Path, queue: int) -> None:
    gate = Gate()
    made = policy(ONE.replace("queue: 100", f"queue: {queue}"))
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        tasks = [await start(router, call("web/gate")) for _ in range(1 + queue)]
        assert router.snapshot()["queued"] == queue

        error = await refused(router.call(call("web/gate")))

        assert (error.code, error.retryable, error.retry_after_ms) == (
            "limit.concurrency",
            True,
            None,
        )
        full = LimitInfo("queue", "agent:web", queue, queue)
        assert error.limit == (full if queue else LimitInfo("concurrency", "agent:web", 1, 1))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert_nothing_is_left(router)


async def test_a_waiting_call_holds_nothing(tmp_path: Path) -> None:
    made = policy("""
version: 1
global: {concurrency: 10}
callers: {"*": {concurrency: 5, rate: 100/hour}}
defaults: {rate: 50/hour}
agents: {web: {concurrency: 1, queue: 5}}
""")
    gate = Gate()
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        first = await start(router, call("web/gate"))
        before = used_slots(router), rates_left(router)

        tasks = [await start(router, call("web/gate", "bob")) for _ in range(3)]

        assert (used_slots(router), rates_left(router)) == before
        for task in (first, *tasks):
            task.cancel()
        await asyncio.wait([first, *tasks])


# Refused at once.


async def test_a_paced_call_that_cannot_make_its_deadline_is_refused_at_once(
    tmp_path: Path, clock: Clock
) -> None:
    made = policy("""
version: 1
agents: {web: {queue: 5, rate: {limit: 1/minute, on_limit: wait}}}
""")
    async with running(made, tmp_path) as router:
        await router.call(call())

        error = await refused(router.call(ToolCall("web", "echo", timeout_ms=59_999)))
        assert (error.code, error.retry_after_ms) == ("limit.rate", 60_000)

        waiting = await start(router, ToolCall("web", "echo", {"value": 1}, timeout_ms=60_000))
        assert not waiting.done()
        clock.advance(router, 60_000)
        assert await within(waiting) == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_nested_call_that_only_its_ancestors_block_is_refused_at_once(
    tmp_path: Path, depth: int
) -> None:
    made = policy(f"""
version: 1
defaults: {{rate: unlimited}}
agents: {{web: {{concurrency: {depth}, queue: 5}}}}
""")
    async with running(made, tmp_path) as router:

        async def nest(depth: int) -> str:
            try:
                return str(await router.call(call("web/nest", depth=depth - 1)))
            except ConcurrencyLimited as error:
                assert depth == 1
                return error.code

        router.add_tool("web", "nest", nest)

        assert await within(router.call(call("web/nest", depth=depth))) == "limit.concurrency"
        assert_nothing_is_left(router)


async def test_a_nested_call_that_others_block_too_waits_for_them(tmp_path: Path) -> None:
    made = policy("""
version: 1
defaults: {rate: unlimited}
agents: {web: {concurrency: 2, queue: 5}}
""")
    gate = Gate()
    async with running(made, tmp_path, {"web/gate": gate, "web/echo": echo}) as router:

        async def nest() -> Any:
            return await router.call(call(value="in the end"))

        router.add_tool("web", "nest", nest)
        other = await start(router, call("web/gate", "bob"))
        task = await start(router, call("web/nest"))
        assert router.snapshot()["queued"] == 1

        gate.open()

        assert await within(task) == "in the end"
        await within(other)


# Expiry.


async def test_a_call_that_waited_for_a_slot_in_vain_is_refused_as_concurrency(
    tmp_path: Path, clock: Clock
) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(ONE, audit=audit), tmp_path, {"web/gate": gate}) as router:
        first = await start(router, ToolCall("web", "gate", timeout_ms=15_000))
        second = await start(router, ToolCall("web", "gate", timeout_ms=500))

        clock.expire(router, 500)

        error = await refused(second)
        assert (error.code, error.retryable) == ("limit.concurrency", True)
        assert gate.names == [""]
        gate.open()
        await within(first)
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "denied", "completed"]


async def test_a_call_that_was_paced_in_vain_is_refused_as_rate(
    tmp_path: Path, clock: Clock
) -> None:
    made = policy("""
version: 1
agents: {web: {queue: 5, rate: {limit: 1/second, burst: 1, on_limit: wait}}}
""")
    async with running(made, tmp_path) as router:
        await router.call(call())
        # Two can make it by themselves; together they cannot.
        tasks = [await start(router, ToolCall("web", "echo", timeout_ms=1_500)) for _ in range(2)]

        clock.advance(router, 1_000)
        await turns()
        clock.expire(router, 500)

        assert await within(tasks[0]) is None
        error = await refused(tasks[1])
        assert error.code == "limit.rate"
        assert error.limit is not None
        assert (error.limit.scope, error.limit.limit) == ("agent:web", "1/second")
        assert 0 < (error.retry_after_ms or 0) <= 1_000
        assert_nothing_is_left(router)


async def test_paced_calls_enter_one_by_one_as_the_rate_refills(
    tmp_path: Path, clock: Clock
) -> None:
    made = policy("""
version: 1
agents: {web: {queue: 50, concurrency: 9, rate: {limit: 10/second, burst: 2, on_limit: wait}}}
""")
    gate = Gate()
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        tasks = [asyncio.create_task(router.call(call("web/gate"))) for _ in range(6)]
        await turns()
        entered = [len(gate.names)]
        for _ in range(4):
            clock.advance(router, 99)
            await turns()
            entered.append(len(gate.names))
            clock.advance(router, 1)
            await turns()
            entered.append(len(gate.names))

        assert entered == [2, 2, 3, 3, 4, 4, 5, 5, 6]
        gate.open(6)
        await within(asyncio.gather(*tasks))


async def test_a_newcomer_does_not_overtake_who_waits_though_the_timer_is_late(
    tmp_path: Path, clock: Clock
) -> None:
    made = policy("""
version: 1
agents: {web: {queue: 5, rate: {limit: 1/second, burst: 1, on_limit: wait}}}
""")
    async with running(made, tmp_path) as router:
        await router.call(call())
        waits = await start(router, call(value="first"))
        clock.now_ns += 1_000 * MS  # and nobody has looked

        comes = await start(router, call(value="second"))

        assert await within(waits) == "first"
        assert not comes.done()
        clock.advance(router, 1_000)
        assert await within(comes) == "second"


async def test_the_timer_is_set_for_the_refill(tmp_path: Path) -> None:
    made = policy("""
version: 1
agents: {web: {queue: 50, rate: {limit: 50/second, burst: 1, on_limit: wait}}}
""")
    async with running(made, tmp_path) as router:
        values = await within(
            asyncio.gather(*(router.call(call(value=number)) for number in range(5)))
        )

        assert values == [0, 1, 2, 3, 4]
        assert_nothing_is_left(router)


async def test_the_time_in_the_queue_is_written_down(tmp_path: Path, clock: Clock) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    async with running(policy(ONE, audit=audit), tmp_path, {"web/gate": gate}) as router:
        first = await start(router, call("web/gate"))
        second = await start(router, call("web/gate"))
        clock.advance(router, 250)
        gate.open()
        await gate.entered(2)
        clock.advance(router, 100)
        gate.open()
        await within(asyncio.gather(first, second))

    admitted = [line for line in audit_lines(audit) if line["event"] == "tool.call.admitted"]
    completed = [line for line in audit_lines(audit) if line["event"] == "tool.call.completed"]
    assert [line["queue_ms"] for line in admitted] == [0, 250]
    assert [line["duration_ms"] for line in completed] == [250, 350]


async def test_the_log_never_shows_more_inside_than_the_limit(tmp_path: Path) -> None:
    async def steps() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    audit = tmp_path / "audit"
    made = policy(ONE.replace("concurrency: 1", "concurrency: 2"), audit=audit)
    async with running(made, tmp_path, {"web/steps": steps}) as router:
        await within(asyncio.gather(*(router.call(call("web/steps")) for _ in range(40))))

    inside = most = 0
    for event in call_events(audit):
        inside += 1 if event == "admitted" else -1
        most = max(most, inside)
    assert (inside, most) == (0, 2)


async def test_a_caller_that_waits_is_not_forgotten(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    made = policy(ONE + 'callers: {"*": {rate: 2/second}}\n')
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        monkeypatch.setattr(router._counters, "_max_live", 2)
        holder = await start(router, call("web/gate", "holder"))
        waiting = await start(router, call("web/gate", "waiting"))
        for number in range(20):
            stranger = await start(router, call("web/gate", f"stranger {number}"))
            stranger.cancel()
            await turns()
            clock.advance(router, 400)  # under the deadline of those who stay, in all
        (flight,) = [flight for flight in flights(router) if flight.queued]

        assert router._counters.caller("waiting") is flight.lane.caller

        holder.cancel()
        waiting.cancel()
        await asyncio.wait([holder, waiting])
        await until(lambda: router.snapshot()["queued"] == 0)
