"""Another policy while calls wait and run: counters stay, no call is lost, none is mixed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from callgate import CallgateError, Policy, PolicyError, Router, ToolCall
from callgate.audit.verify import verify
from tests.conftest import FULL
from tests.router.helpers import (
    OPEN,
    Clock,
    Gate,
    assert_each_admitted_call_ends_once,
    assert_nothing_is_left,
    audit_lines,
    call,
    call_events,
    calls_of,
    echo,
    flights,
    only_id,
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
    from collections.abc import Sequence
    from pathlib import Path

RELOADS = 1_000 if FULL else 300


def narrow(concurrency: int = 1, queue: int = 5, rate: str = "10/hour", more: str = "") -> str:
    return f"""
version: 1
agents: {{web: {{concurrency: {concurrency}, queue: {queue}, rate: {rate}{more}}}}}
"""


PACED = """
version: 1
agents:
  web:
    rate: {limit: 1/hour, on_limit: wait}
    queue: 5
    timeout: unlimited
    max_timeout: unlimited
    cancel_grace: 1h
    tools: {apart: {isolate: task}}
"""
"""The second call waits for an hour."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def start(router: Router, made: ToolCall) -> asyncio.Task[Any]:
    task = asyncio.create_task(router.call(made))
    await turns()
    return task


# Counters.


@pytest.mark.usefixtures("clock")
async def test_what_was_spent_stays_spent(tmp_path: Path) -> None:
    async with running(policy(narrow()), tmp_path) as router:
        for _ in range(7):
            await router.call(call())

        await router.reload(policy(narrow(queue=6)))

        for _ in range(3):
            await router.call(call())
        assert (await refused(router.call(call()))).code == "limit.rate"


@pytest.mark.usefixtures("clock")
async def test_a_smaller_bucket_is_cut_to_its_new_burst(tmp_path: Path) -> None:
    async with running(policy(narrow(rate="100/hour")), tmp_path) as router:
        await router.call(call())

        await router.reload(policy(narrow(rate="{limit: 100/hour, burst: 2}")))

        await router.call(call())
        assert rates_left(router) == {"agent:web": 1}


async def test_who_is_inside_counts_under_the_new_policy_too(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(narrow(concurrency=3)), tmp_path, {"web/gate": gate}) as router:
        tasks = [await start(router, call("web/gate")) for _ in range(3)]

        await router.reload(policy(narrow(concurrency=2, queue=0)))

        assert used_slots(router) == {"agent:web": 3}
        for remaining in (3, 2):
            error = await refused(router.call(call("web/gate")))
            assert error.code == "limit.concurrency"
            assert error.limit is not None
            assert (error.limit.limit, error.limit.usage) == (2, remaining)
            gate.open()
            await within(tasks.pop(0))
        tasks.append(await start(router, call("web/gate", name="fits")))
        gate.open(2)
        await within(asyncio.gather(*tasks))
        assert gate.names[-1] == "fits"


async def test_more_room_lets_those_in_who_wait(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(narrow()), tmp_path, {"web/gate": gate}) as router:
        tasks = [await start(router, call("web/gate")) for _ in range(4)]
        assert len(gate.names) == 1

        await router.reload(policy(narrow(concurrency=3)))

        await gate.entered(3)
        await turns()
        assert len(gate.names) == 3
        gate.open(3)
        await gate.entered(4)
        gate.open()
        await within(asyncio.gather(*tasks))
        assert_nothing_is_left(router)


# Calls that wait or run.


async def test_a_running_call_keeps_the_deadline_it_was_let_in_with(
    tmp_path: Path, clock: Clock
) -> None:
    gate = Gate()
    async with running(
        policy(narrow(more=", timeout: 1s")), tmp_path, {"web/gate": gate}
    ) as router:
        task = await start(router, call("web/gate"))

        await router.reload(policy(narrow(more=", timeout: 50s")))
        clock.expire(router, 1_000)

        assert (await refused(task)).code == "limit.timeout"


async def test_calls_that_wait_and_run_keep_their_policy_in_the_audit(tmp_path: Path) -> None:
    gate = Gate()
    audit = tmp_path / "audit"
    first, second = policy(narrow(), audit=audit), policy(narrow(queue=9), audit=audit)
    async with running(first, tmp_path, {"web/gate": gate}) as router:
        tasks = [await start(router, call("web/gate", name=name)) for name in ("runs", "waits")]

        await router.reload(second)
        tasks.append(await start(router, call("web/gate", name="comes later")))

        for entered in (1, 2, 3):
            await gate.entered(entered)
            gate.open()
        await within(asyncio.gather(*tasks))
    revisions = [
        line["policy"] for line in audit_lines(audit) if line["event"].startswith("tool.call.")
    ]
    assert revisions == [first.revision] * 4 + [second.revision] * 2


async def test_a_denied_tool_may_finish_what_it_began(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(narrow()), tmp_path, {"web/gate": gate}) as router:
        task = await start(router, call("web/gate", name="began"))

        await router.reload(policy(narrow(more=", tools: {gate: deny}")))

        assert (await refused(router.call(call("web/gate")))).code == "policy.denied"
        gate.open()
        assert await within(task) == "began"


# The audit log.


@pytest.mark.parametrize("place", ["running", "queued", "lingering"])
async def test_a_calls_records_stay_together_when_the_log_moves(
    tmp_path: Path, clock: Clock, place: str
) -> None:
    gate, stubborn = Gate(), asyncio.Event()

    async def apart() -> None:
        while not stubborn.is_set():
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                continue

    old, new = tmp_path / "old", tmp_path / "new"
    tools = {"web/gate": gate, "web/apart": apart, "web/echo": echo}
    async with running(policy(PACED, audit=old), tmp_path, tools) as router:
        if place == "queued":
            await router.call(call())  # spends the rate; nothing is open in the log
        task = await start(router, call("web/apart" if place == "lingering" else "web/gate"))
        (flight,) = flights(router)
        assert flight.queued == (place == "queued")
        if place == "lingering":
            router.cancel(flight.request_id)
            await refused(task)

        await router.reload(policy(OPEN, audit=new))

        clock.advance(router, 3_600_000)
        await gate.entered(place != "lingering")
        gate.open()
        stubborn.set()
        if place != "lingering":
            await within(task)
        await turns()
        assert len(router.engine.recorders) == 1 or router.engine.recorders[1].is_done
        assert_nothing_is_left(router)
    mine = [event.removeprefix("tool.call.") for event in calls_of(old)[flight.request_id]]
    assert mine == (
        ["admitted", "cancelled", "late"] if place == "lingering" else ["admitted", "completed"]
    )
    assert call_events(new) == []
    assert verify(old).ok
    assert verify(new).ok


async def test_a_call_that_waited_and_is_refused_is_written_where_it_began(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with running(policy(PACED, audit=old), tmp_path) as router:
        await router.call(call())
        waits = await start(router, call())
        await router.reload(policy(OPEN, audit=new))
        former = router.engine.recorders[1]

        router.cancel(only_id(router))

        assert (await refused(waits)).code == "tool.canceled"
        assert former.is_done, "it is closed with its last call"
    assert call_events(old) == ["admitted", "completed", "denied"]
    assert call_events(new) == []


async def test_new_calls_are_written_to_the_new_log(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with running(policy(OPEN, audit=old), tmp_path) as router:
        await router.call(call())
        await router.reload(policy(OPEN, audit=new))
        await router.call(call())
        await router.reload(policy(OPEN))
        await router.call(call())
        await router.reload(policy(OPEN, audit=old))
        await router.call(call())

    assert call_events(old) == ["admitted", "completed"] * 2
    assert call_events(new) == ["admitted", "completed"]
    for path in (old, new):
        assert verify(path).ok
    loaded = [line for line in audit_lines(new) if line["event"] == "policy.loaded"]
    assert len(loaded) == 1


async def test_a_log_that_cannot_be_opened_changes_nothing(tmp_path: Path) -> None:
    audit, blocked = tmp_path / "audit", tmp_path / "blocked"
    blocked.write_text("")
    first = policy(OPEN, audit=audit)
    async with running(first, tmp_path) as router:
        with pytest.raises(OSError, match="blocked"):
            await router.reload(policy(narrow(), audit=blocked / "audit"))

        assert router.policy is first
        await router.call(call())
    assert call_events(audit) == ["admitted", "completed"]


async def test_a_policy_that_cannot_be_read_is_written_down_and_changes_nothing(
    tmp_path: Path,
) -> None:
    audit = tmp_path / "audit"
    first = policy(OPEN, audit=audit)
    async with running(first, tmp_path) as router:
        with pytest.raises(PolicyError) as caught:
            Policy.parse("version: 2\nagentz: {}\n")
        router.reload_failed(caught.value)
        await router.call(call())

        assert router.policy is first
    failed = [line for line in audit_lines(audit) if line["event"] == "policy.reload_failed"]
    assert [(line["policy"], line["count"]) for line in failed] == [(first.revision, 2)]


class Listener:
    """A sink that says by whom and how it was used."""

    name = "listener"

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.closed = 0
        self.inside = 0
        self.most_inside = 0

    def emit(self, lines: Sequence[bytes]) -> None:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        assert not self.closed
        time.sleep(0.01)  # longer than it takes to open another log
        self.lines.extend(lines)
        self.inside -= 1

    def close(self) -> None:
        self.closed += 1


async def test_a_programs_sink_stays_open_until_the_router_ends(tmp_path: Path) -> None:
    listener = Listener()
    async with running(policy(OPEN, audit=tmp_path / "0"), tmp_path, sinks=[listener]) as router:
        for number in range(1, 6):
            await router.call(call())
            audit = tmp_path / str(number) if number % 2 else None
            await router.reload(policy(OPEN, audit=audit))
        await router.call(call())
        assert listener.closed == 0

    assert (listener.closed, listener.most_inside) == (1, 1)
    copied = [orjson.loads(line) for line in listener.lines]
    written = [line for number in range(6) for line in audit_lines(tmp_path / str(number))]
    # What a log says of its own segments is not for others.
    written = [line for line in written if not line["event"].startswith("audit.")]
    assert sorted(copied, key=str) == sorted(written, key=str)


async def test_a_sink_is_closed_even_if_no_log_is_open_at_the_end(tmp_path: Path) -> None:
    listener = Listener()
    async with running(policy(OPEN, audit=tmp_path / "a"), tmp_path, sinks=[listener]) as router:
        await router.reload(policy(OPEN))

    assert listener.closed == 1


async def test_a_reload_before_the_start_is_the_policy_of_the_start(tmp_path: Path) -> None:
    router = Router(policy(OPEN), state_dir=tmp_path)
    router.add_tool("web", "echo", echo)
    later = policy(narrow(), audit=tmp_path / "audit")
    await router.reload(later)

    async with router:
        await router.call(call())

    assert router.policy is later
    assert call_events(tmp_path / "audit") == ["admitted", "completed"]


async def test_two_reloads_at_once_end_with_one_of_them(tmp_path: Path) -> None:
    policies = [policy(OPEN, audit=tmp_path / name) for name in ("a", "b", "c")]
    async with running(policy(OPEN, audit=tmp_path / "0"), tmp_path) as router:
        await within(asyncio.gather(*(router.reload(one) for one in policies)))
        await router.call(call())

        current = router.policy
        assert current in policies
        assert router.snapshot()["policy"] == current.revision
    assert current.audit is not None
    for one in policies:
        assert one.audit is not None
        written = call_events(tmp_path / one.audit.path.rpartition("/")[2])
        assert written == (["admitted", "completed"] if one is current else [])


async def test_a_start_that_is_cancelled_leaves_no_log_locked(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    audit.mkdir()
    for step in range(12):
        router = Router(policy(OPEN, audit=audit), state_dir=tmp_path)
        task = asyncio.create_task(router.__aenter__())
        await turns(step)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await router.__aexit__(None, None, None)
        # The thread that opens the log goes on and is heard of in the next turns.
        await until(lambda: verify(audit).ok and not any_live(audit))


def any_live(audit: Path) -> bool:
    return any(writer.state == "live" for writer in verify(audit).writers)


# A thousand reloads under load.


def tight(revision: int) -> str:
    """Every policy allows something else, so that a mixture would show."""
    name = f"only_{revision % 7}"
    return f"""
version: 1
defaults: {{rate: unlimited, timeout: 30s}}
agents:
  web:
    concurrency: {2 + revision % 3}
    queue: 50
    tools: {{"only_*": deny, {name}: allow, steps: {{concurrency: {1 + revision % 2}}}}}
# {revision}
"""


async def steps(count: int) -> str:
    for _ in range(count):
        await asyncio.sleep(0)
    return "ok"


class Load:
    """Calls without an end, each for a tool that some of the policies allow."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.pick = random.Random(17)  # noqa: S311  # not a secret
        self.outcomes: Counter[str] = Counter()
        self.stop = asyncio.Event()

    async def work(self) -> None:
        pick = self.pick
        while not self.stop.is_set():
            name = pick.choice(("steps", f"only_{pick.randrange(7)}"))
            made = ToolCall("web", name, {"count": pick.randrange(6)}, pick.choice("abc"))
            try:
                self.outcomes[await self.router.call(made)] += 1
            except CallgateError as error:
                self.outcomes[error.code] += 1
            await asyncio.sleep(0)


def assert_unmixed(audit: Path, allowed: dict[str, int]) -> int:
    """Each decision is that of the policy it names; returns how many there were."""
    decided = 0
    for line in audit_lines(audit):
        tool = line.get("tool", "")
        if tool.startswith("only_"):
            decided += 1
            may = tool == f"only_{allowed[line['policy']]}"
            assert (line["event"] != "tool.call.denied") == may, line
    return decided


async def test_no_call_is_lost_or_mixed_in_a_thousand_reloads(tmp_path: Path) -> None:
    audits = [tmp_path / "one", tmp_path / "two"]
    policies = [policy(tight(n), audit=audits[n % 5 == 0]) for n in range(RELOADS)]
    tools: dict[str, Any] = {f"web/only_{number}": steps for number in range(7)}
    async with running(policies[0], tmp_path, tools | {"web/steps": steps}) as router:
        load = Load(router)
        workers = [asyncio.create_task(load.work()) for _ in range(12)]
        for number, made in enumerate(policies):
            if load.pick.random() < 0.1:
                with pytest.raises(PolicyError) as caught:
                    Policy.parse(tight(number) + "agentz: 1\n")
                router.reload_failed(caught.value)
            await router.reload(made)
            await turns(load.pick.randrange(4))
        load.stop.set()
        await within(asyncio.gather(*workers))
        assert_nothing_is_left(router)

    assert load.outcomes.keys() == {"ok", "policy.denied"}
    assert all(verify(audit).ok for audit in audits)
    assert sum(map(assert_each_admitted_call_ends_once, audits)) == load.outcomes["ok"]
    allowed = {made.revision: number % 7 for number, made in enumerate(policies)}
    assert sum(assert_unmixed(audit, allowed) for audit in audits) > RELOADS
