"""Shadow mode: every limit speaks, none bites; off says nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from callgate import Policy, Router, ToolCall
from callgate.model import AuditSpec
from callgate.policy.purpose import RUN
from tests.router.helpers import (
    Clock,
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
    used_slots,
    within,
)

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = {
    "rate": "agents: {web: {rate: 1/hour}}",
    "tool rate": "agents: {web: {tools: {echo: {rate: 1/hour}}}}",
    "caller rate": 'callers: {"*": {rate: 1/hour}}',
    "global rate": "global: {rate: 1/hour}",
    "concurrency": "agents: {web: {concurrency: 1}}",
    "input": "agents: {web: {max_input_bytes: 12}}",
    "output": "agents: {web: {max_output_bytes: 1}}",
    "deny": "agents: {web: {tools: {echo: deny}}}",
    "quota": 'callers: {"*": {quota: 1/day}}',
}
CODES = {
    "rate": "limit.rate",
    "tool rate": "limit.rate",
    "caller rate": "limit.rate",
    "global rate": "limit.rate",
    "concurrency": "limit.concurrency",
    "input": "limit.input_bytes",
    "output": "limit.output_bytes",
    "deny": "policy.denied",
    "quota": "limit.quota",
}
WIDE = "version: 1\ndefaults: {rate: unlimited, concurrency: unlimited, queue: 0}\n"


def shadowed(which: str, audit: Path, mode: str) -> Policy:
    return policy(f"{WIDE}{LIMITS[which]}\nmode: {mode}\n", audit=audit)


async def use(router: Router, gate: Gate) -> Any:
    """Two calls that overlap; each of the limits refuses the second one or both."""
    tasks: list[asyncio.Task[Any]] = []
    for value in ("first", "the second"):
        tasks.append(asyncio.create_task(router.guard(call(value=value), gate)))
        await until(lambda: tasks[-1].done() or len(gate.names) == len(tasks))
    gate.open(2)
    return await within(asyncio.gather(*tasks, return_exceptions=True))


def would_deny(router: Router) -> dict[str, int]:
    return {key: n for tool in router.snapshot()["tools"] for key, n in tool["would_deny"].items()}


@pytest.mark.parametrize("which", LIMITS)
async def test_a_shadowed_limit_speaks_and_lets_the_call_pass(tmp_path: Path, which: str) -> None:
    audit = tmp_path / "audit"
    gate = Gate()
    async with running(shadowed(which, audit, "shadow"), tmp_path) as router:
        assert await use(router, gate) == ["", ""]

        counted = would_deny(router)
        assert {key.partition(" ")[0] for key in counted} == {CODES[which]}
        assert_nothing_is_left(router)
    spoken = [line for line in audit_lines(audit) if line["event"] == "tool.call.would_deny"]
    assert {line["code"] for line in spoken} == {CODES[which]}
    assert len(spoken) == sum(counted.values())
    assert "denied" not in call_events(audit)


@pytest.mark.parametrize("which", LIMITS)
async def test_the_same_limit_enforced_bites(tmp_path: Path, which: str) -> None:
    audit = tmp_path / "audit"
    async with running(shadowed(which, audit, "enforce"), tmp_path) as router:
        outcomes = await use(router, Gate())

        codes = {getattr(outcome, "code", "ok") for outcome in outcomes}
        assert CODES[which] in codes
        assert would_deny(router) == {}


@pytest.mark.parametrize("which", LIMITS)
async def test_the_same_limit_switched_off_says_nothing(tmp_path: Path, which: str) -> None:
    audit = tmp_path / "audit"
    async with running(shadowed(which, audit, "off"), tmp_path) as router:
        assert await use(router, Gate()) == ["", ""]

        assert would_deny(router) == {}
    assert call_events(audit) == ["admitted", "admitted", "completed", "completed"]


async def test_a_shadowed_timeout_speaks_once_and_the_enforced_one_ends_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    audit = tmp_path / "audit"
    made = policy(
        WIDE + "agents: {web: {timeout: {limit: 1s, mode: shadow}, max_timeout: 5s}}\n",
        audit=audit,
    )
    async with running(made, tmp_path, {"web/gate": Gate()}) as router:
        task = asyncio.create_task(router.call(call("web/gate")))
        await turns()
        clock.expire(router, 1_000)
        await turns()
        assert not task.done()
        assert would_deny(router) == {"limit.timeout agent": 1}

        clock.expire(router, 4_000)

        assert (await refused(task)).code == "limit.timeout"
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "would_deny", "timed_out"]


async def test_a_shadowed_timeout_alone_never_ends_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    gate = Gate()
    made = policy(WIDE + "mode: shadow\n")
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        task = asyncio.create_task(router.call(call("web/gate")))
        await turns()

        clock.expire(router, 24 * 3_600_000)
        await turns()

        assert not task.done()
        gate.open()
        await within(task)
        assert_nothing_is_left(router)


async def test_a_call_in_time_hears_nothing_of_a_shadowed_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    made = policy(WIDE + "mode: shadow\n")
    async with running(made, tmp_path) as router:
        await router.call(call())

        clock.expire(router, 3_600_000)

        assert would_deny(router) == {}


async def test_a_shadowed_concurrency_counts_who_is_inside(tmp_path: Path) -> None:
    gate = Gate()
    made = policy(WIDE + "agents: {web: {concurrency: {limit: 2, mode: shadow}}}\n")
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        tasks = [asyncio.create_task(router.call(call("web/gate"))) for _ in range(5)]
        await gate.entered(5)

        assert used_slots(router) == {"agent:web": 5}
        assert would_deny(router) == {"limit.concurrency agent": 3}
        gate.open(5)
        await within(asyncio.gather(*tasks))
        assert_nothing_is_left(router)


async def inside(router: Router, gate: Gate, count: int) -> list[asyncio.Task[Any]]:
    """So many more calls, all of them inside."""
    before = len(gate.names)
    tasks = [asyncio.create_task(router.call(call("web/gate"))) for _ in range(count)]
    await gate.entered(before + count)
    return tasks


TRIED = msgspec.structs.replace(RUN, tried="guarded")


async def test_a_tried_profile_records_the_call_that_it_would_have_refused_at_once(
    tmp_path: Path,
) -> None:
    audit = tmp_path / "audit"
    gate = Gate()
    purpose = msgspec.structs.replace(TRIED, audit=AuditSpec(str(audit)))
    made = Policy.profile("interactive", purpose=purpose)
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        tasks = await inside(router, gate, 23)
        assert would_deny(router) == {}

        tasks += await inside(router, gate, 1)

        assert would_deny(router) == {"limit.concurrency agent": 1}
        gate.open(24)
        await within(asyncio.gather(*tasks))
        assert_nothing_is_left(router)
    (spoken,) = [line for line in audit_lines(audit) if line["event"] == "tool.call.would_deny"]
    assert (spoken["code"], spoken["limit"]) == ("limit.concurrency", "queue agent:web 20")


async def test_a_tried_profile_is_what_the_enforced_one_refuses(tmp_path: Path) -> None:
    gate = Gate()
    async with running(Policy.profile("guarded"), tmp_path, {"web/gate": gate}) as router:
        tasks = [asyncio.create_task(router.call(call("web/gate"))) for _ in range(23)]
        await until(lambda: router.snapshot()["queued"] == 20)

        error = await refused(router.call(call("web/gate")))

        assert error.code == "limit.concurrency"
        assert error.limit is not None
        assert (error.limit.type, error.limit.limit) == ("queue", 20)
        for task in tasks:
            task.cancel()
        await within(asyncio.gather(*tasks, return_exceptions=True))


async def test_a_tried_profile_is_in_nobodys_way_and_its_timeouts_speak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    gate = Gate()
    made = Policy.profile("interactive", purpose=TRIED)
    async with running(made, tmp_path, {"web/gate": gate, "web/echo": echo}) as router:
        for _ in range(70):
            await router.call(call())
        assert would_deny(router) == {"limit.rate agent": 10}
        clock.now_ns += 60_000_000_000
        (task,) = await inside(router, gate, 1)
        clock.expire(router, 15_000)
        clock.expire(router, 60_000)

        assert not task.done()
        assert would_deny(router)["limit.timeout agent"] == 1
        clock.expire(router, 10 * 60_000)
        assert (await refused(task)).code == "limit.timeout"
        assert {row["scope"] for row in router.snapshot()["slots"]} == {"agent:web"}
        assert router.snapshot()["rates"] == []


async def test_a_flood_in_shadow_becomes_a_hundred_records_and_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    audit = tmp_path / "audit"
    made = policy(WIDE + "agents: {web: {rate: {limit: 1/hour, mode: shadow}}}\n", audit=audit)
    async with running(made, tmp_path) as router:
        for _ in range(1001):
            await router.call(call())
        clock.advance(router, 1001)
        await router.call(call())
    spoken = [line for line in audit_lines(audit) if line["event"] == "tool.call.would_deny"]
    assert [line.get("count") for line in spoken] == [None] * 100 + [900, None]
    assert call_events(audit).count("completed") == 1002


async def test_what_shadow_let_pass_and_what_was_refused_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    audit = tmp_path / "audit"
    text = "agents: {web: {rate: {limit: 1/hour, mode: shadow}, tools: {echo: {rate: 301/hour}}}}\n"
    async with running(policy(WIDE + text, audit=audit), tmp_path) as router:
        for _ in range(301):
            await router.call(call())
        for _ in range(200):
            await refused(router.call(call()))
    counted = {"tool.call.would_deny": 0, "tool.call.denied": 0}
    for line in audit_lines(audit):
        if line["event"] in counted:
            counted[line["event"]] += line.get("count", 1)
    assert counted == {"tool.call.would_deny": 300, "tool.call.denied": 200}


async def test_a_shadowed_concurrency_lets_as_many_wait_as_the_queue_is_long(
    tmp_path: Path,
) -> None:
    gate = Gate()
    text = "agents: {web: {concurrency: {limit: 2, mode: shadow}, queue: 2}}\n"
    async with running(policy(WIDE + text), tmp_path, {"web/gate": gate}) as router:
        tasks = await inside(router, gate, 5)

        assert would_deny(router) == {"limit.concurrency agent": 1}
        gate.open(5)
        await within(asyncio.gather(*tasks))


async def test_a_shadowed_rate_counts_what_it_would_have_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    made = policy(WIDE + "agents: {web: {rate: {limit: 2/second, mode: shadow}}}\n")
    async with running(made, tmp_path) as router:
        for _ in range(10):
            await router.call(call())
        clock.now_ns += 500_000_000
        for _ in range(2):
            await router.call(call())

        assert would_deny(router) == {"limit.rate agent": 9}


async def test_one_limit_in_shadow_leaves_the_others_biting(tmp_path: Path) -> None:
    made = policy(
        WIDE
        + "agents: {web: {rate: {limit: 1/hour, mode: shadow}, tools: {echo: {rate: 2/hour}}}}\n"
    )
    async with running(made, tmp_path) as router:
        for _ in range(2):
            await router.call(call())

        error = await refused(router.call(call()))

        assert error.limit is not None
        assert error.limit.scope == "tool:web/echo"
        assert would_deny(router) == {"limit.rate agent": 1}


async def test_a_shadowed_denial_shows_in_the_audit_under_its_call(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    made = policy(
        WIDE + "agents: {web: {tools: {echo: {deny: true, mode: shadow}}}}\n", audit=audit
    )
    given = "0190b2c3-d4e5-7abc-8def-00000000000a"
    async with running(made, tmp_path, {"web/echo": echo}) as router:
        await router.call(ToolCall("web", "echo", correlation_id=given))

    lines = [line for line in audit_lines(audit) if line["event"].startswith("tool.call.")]
    assert len({line["request_id"] for line in lines}) == 1
    assert {line["correlation_id"] for line in lines} == {given}
    assert sorted(line["event"].removeprefix("tool.call.") for line in lines) == [
        "admitted",
        "completed",
        "would_deny",
    ]
