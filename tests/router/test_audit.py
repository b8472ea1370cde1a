"""What the router writes of calls: each admitted one ends once, and no disk no call."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from callgate import AuditUnavailable, Router, ToolCall
from callgate.audit import AuditLog
from callgate.audit import writer as writer_module
from callgate.audit.verify import verify
from callgate.model import AuditSpec
from tests.audit.helpers import run_python
from tests.router.helpers import (
    FOREVER_S,
    OPEN,
    Clock,
    Gate,
    assert_each_admitted_call_ends_once,
    assert_nothing_is_left,
    audit_lines,
    call,
    call_events,
    echo,
    fail,
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

LIMITED = """
version: 1
callers: {alice: {}}
agents:
  web:
    concurrency: 2
    queue: 1
    rate: 1000/hour
    timeout: 10s
    max_output_bytes: 100
    cancel_grace: 1s
    tools: {apart: {isolate: task}, no: deny}
"""

real_write = os.write


class Disk:
    """Stands before write(2): says how many more writes it has room for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        monkeypatch.setattr(writer_module, "os_write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if self.room is not None:
            if not self.room:
                raise OSError(errno.ENOSPC, "no")
            self.room -= 1
        return real_write(fd, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def ends(path: Path) -> list[tuple[str, str | None]]:
    """Every record of a call but `admitted`: event and code."""
    return [
        (line["event"].removeprefix("tool.call."), line.get("code"))
        for line in audit_lines(path)
        if line["event"].startswith("tool.call.") and line["event"] != "tool.call.admitted"
    ]


# Every ending.


async def large() -> str:
    return "x" * 200


async def never() -> None:
    await asyncio.sleep(FOREVER_S)


async def raise_cancel() -> None:
    raise asyncio.CancelledError


ENDINGS = {
    "answer": ("completed", None),
    "failure": ("failed", "tool.failed"),
    "large": ("failed", "limit.output_bytes"),
    "deadline": ("timed_out", "limit.timeout"),
    "cancel": ("cancelled", "tool.canceled"),
    "caller": ("cancelled", "tool.canceled"),
    "exit": ("cancelled", "tool.canceled"),
    "raised cancel": ("failed", "tool.failed"),
}


@pytest.mark.parametrize("way", ["call", "guard", "submit", "apart", "thread"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_admitted_call_ends_once_in_the_log(
    tmp_path: Path, clock: Clock, way: str, ending: str
) -> None:
    made: dict[str, Any] = {
        "answer": echo,
        "failure": fail,
        "large": large,
        "raised cancel": raise_cancel,
    }
    function = made.get(ending, never)
    stop = threading.Event()

    def in_thread() -> Any:
        if function is never:
            stop.wait(FOREVER_S)
            return None
        return asyncio.run(function())

    audit = tmp_path / "audit"
    tools = {"web/here": function, "web/apart": function, "web/thread": in_thread}
    async with running(policy(LIMITED, audit=audit), tmp_path, tools) as router:
        task = asyncio.create_task(begin(router, way, function))
        await turns()
        if ending == "deadline":
            clock.expire(router, 10_000)
        elif ending == "cancel":
            router.cancel(only_id(router))
        elif ending == "caller":
            task.cancel()
        if ending != "exit":
            await asyncio.wait([task], timeout=FOREVER_S)
    await asyncio.wait([task], timeout=FOREVER_S)
    assert task.cancelled() or task.exception() or ending == "answer"
    stop.set()
    await until(lambda: used_slots(router) == {})
    assert_nothing_is_left(router)
    assert [end for end in ends(audit) if end[0] != "late"] == [ENDINGS[ending]]
    assert assert_each_admitted_call_ends_once(audit) == 1
    assert verify(audit).ok


async def begin(router: Router, way: str, function: Any) -> Any:
    if way == "guard":
        return await router.guard(call("web/guarded"), function)
    if way == "submit":
        return await router.submit(call("web/here"))
    return await router.call(call("web/here" if way == "call" else f"web/{way}"))


async def test_a_refused_call_is_written_with_its_reason(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    async with running(policy(LIMITED, audit=audit), tmp_path, {"web/no": echo}) as router:
        error = await refused(router.call(call("web/no")))

    (denied,) = [line for line in audit_lines(audit) if line["event"] == "tool.call.denied"]
    assert denied["request_id"] == error.request_id
    assert {key: denied[key] for key in ("caller", "agent", "tool", "code", "outcome")} == {
        "caller": "alice",
        "agent": "web",
        "tool": "no",
        "code": "policy.denied",
        "outcome": "denied",
    }


async def test_a_refusal_by_a_limit_names_it(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    made = policy(LIMITED.replace("1000/hour", "1/hour"), audit=audit)
    async with running(made, tmp_path) as router:
        await router.call(call())
        error = await refused(router.call(call()))

    (denied,) = [line for line in audit_lines(audit) if line["event"] == "tool.call.denied"]
    assert denied["limit"] == "rate agent:web 1/hour"
    assert denied["retry_after_ms"] == error.retry_after_ms


async def test_a_flood_of_refusals_becomes_a_hundred_records_and_a_count(
    tmp_path: Path, clock: Clock
) -> None:
    audit = tmp_path / "audit"
    async with running(policy(LIMITED, audit=audit), tmp_path, {"web/no": echo}) as router:
        for _ in range(1_000):
            await refused(router.call(call("web/no")))
        clock.advance(router, 1_000)
        for _ in range(3):
            await refused(router.call(call("web/no")))

    denied = [line for line in audit_lines(audit) if line["event"] == "tool.call.denied"]
    assert [line.get("count") for line in denied] == [None] * 100 + [900] + [None] * 3


async def test_counted_refusals_are_written_at_the_end(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    async with running(policy(LIMITED, audit=audit), tmp_path, {"web/no": echo}) as router:
        for _ in range(150):
            await refused(router.call(call("web/no")))

    denied = [line for line in audit_lines(audit) if line["event"] == "tool.call.denied"]
    assert sum(line.get("count", 1) for line in denied) == 150


async def test_the_records_are_there_before_the_caller_is_answered(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    seen: list[list[str]] = []

    async def look() -> None:
        seen.append(call_events(audit))

    async with running(policy(LIMITED, audit=audit), tmp_path, {"web/look": look}) as router:
        await router.call(call("web/look"))
        seen.append(call_events(audit))

    assert seen == [["admitted"], ["admitted", "completed"]]


# A disk that is full.


async def test_a_call_whose_start_cannot_be_written_does_not_run(
    tmp_path: Path, disk: Disk
) -> None:
    ran: list[int] = []

    async def tool() -> None:
        ran.append(1)

    audit = tmp_path / "audit"
    async with running(policy(LIMITED, audit=audit), tmp_path, {"web/tool": tool}) as router:
        await router.call(call("web/tool"))
        before = rates_left(router)
        disk.room = 0

        for made in (router.call(call("web/tool")), router.submit(call("web/tool"))):
            error = await refused(made)
            assert isinstance(error, AuditUnavailable)
            assert (error.code, error.retryable) == ("audit.unavailable", True)
            assert (error.agent, error.tool) == ("web", "tool")
            assert error.request_id is not None

        assert (ran, rates_left(router)) == ([1], before)
        assert_nothing_is_left(router)
        disk.room = None
        await router.call(call("web/tool"))
    assert call_events(audit) == ["admitted", "completed"] * 2
    assert verify(audit).ok


@pytest.mark.parametrize("tool", ["web/echo", "web/fail", "web/large", "web/apart", "web/thread"])
async def test_an_answer_whose_record_cannot_be_written_is_withheld(
    tmp_path: Path, disk: Disk, tool: str
) -> None:
    def thread() -> str:
        return "answer"

    audit = tmp_path / "audit"
    tools = {
        "web/echo": echo,
        "web/fail": fail,
        "web/large": large,
        "web/apart": echo,
        "web/thread": thread,
    }
    async with running(policy(LIMITED, audit=audit), tmp_path, tools) as router:
        disk.room = 1  # its start, and no more

        error = await refused(router.call(call(tool)))

        assert (error.code, error.retryable) == ("audit.unavailable", False)
        assert (error.agent, error.tool) == ("web", tool.removeprefix("web/"))
        assert error.__suppress_context__ or error.__context__ is None
        assert_nothing_is_left(router)
        disk.room = None
        await router.call(call("web/echo"))
    assert call_events(audit) == ["admitted", "lost", "admitted", "completed"]
    async with running(policy(LIMITED, audit=audit), tmp_path, tools):
        pass
    assert len(call_events(audit)) == 4, "its end was made good, so the start has none to write"
    assert assert_each_admitted_call_ends_once(audit) == 2
    assert verify(audit).ok


async def test_a_deadline_whose_record_cannot_be_written_says_so(
    tmp_path: Path, disk: Disk, clock: Clock
) -> None:
    async with running(
        policy(LIMITED, audit=tmp_path / "audit"), tmp_path, {"web/never": never}
    ) as router:
        task = asyncio.create_task(router.call(call("web/never")))
        await turns()
        disk.room = 0

        clock.expire(router, 10_000)

        error = await refused(task)
        assert (error.code, error.retryable) == ("audit.unavailable", False)
        assert_nothing_is_left(router)


async def test_a_cancel_of_the_caller_passes_though_it_cannot_be_written(
    tmp_path: Path, disk: Disk
) -> None:
    async with running(
        policy(LIMITED, audit=tmp_path / "audit"), tmp_path, {"web/never": never}
    ) as router:
        task = asyncio.create_task(router.call(call("web/never")))
        await turns()
        disk.room = 0

        task.cancel()

        await asyncio.wait([task], timeout=FOREVER_S)
        assert task.cancelled()
        assert_nothing_is_left(router)


async def test_a_call_that_waited_is_refused_if_its_entry_cannot_be_written(
    tmp_path: Path, disk: Disk
) -> None:
    gate = Gate()
    made = policy(LIMITED.replace("concurrency: 2", "concurrency: 1"), audit=tmp_path / "audit")
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        first = asyncio.create_task(router.call(call("web/gate")))
        await gate.entered()
        second = asyncio.create_task(router.call(call("web/gate")))
        await turns()
        disk.room = 1  # the end of the first

        gate.open()

        assert await within(first) == ""
        error = await refused(second)
        assert (error.code, error.retryable) == ("audit.unavailable", True)
        assert gate.names == [""]
        assert_nothing_is_left(router)


async def test_a_refusal_stays_a_refusal_if_it_cannot_be_written(
    tmp_path: Path, disk: Disk
) -> None:
    made = policy(LIMITED, audit=tmp_path / "audit")
    async with running(made, tmp_path, {"web/no": echo}) as router:
        disk.room = 0

        assert (await refused(router.call(call("web/no")))).code == "policy.denied"


async def test_drop_lets_calls_pass_and_counts_what_is_missing(tmp_path: Path, disk: Disk) -> None:
    audit = tmp_path / "audit"
    made = policy(LIMITED, audit=audit, audit_more=", on_failure: drop")
    async with running(made, tmp_path) as router:
        disk.room = 0
        for value in range(5):
            assert await router.call(call(value=value)) == value

        assert router.snapshot()["audit"]["dropped"] == 10
        disk.room = None
        await router.call(call())
        assert router._logs.dropped == 10
        await router.reload(policy(OPEN))
        assert router._logs.dropped == 10, "a log that is closed took its count with it"
    assert router._logs.dropped == 10
    gap = [line for line in audit_lines(audit) if line["event"] == "audit.recovered"]
    assert [(line["code"], line["count"]) for line in gap] == [("audit.dropped", 10)]
    assert call_events(audit) == ["admitted", "completed"]
    assert verify(audit).ok


FULL_DISK = """
import asyncio, resource, signal, sys
from pathlib import Path
from callgate import AuditUnavailable, Policy, Router, ToolCall

async def main(audit):
    text = f"version: 1\\ndefaults: {{rate: unlimited}}\\naudit: {{path: {audit}}}\\n"
    router = Router(Policy.parse(text), state_dir=audit)
    ran = 0

    @router.tool(agent="web", name="echo")
    async def echo():
        nonlocal ran
        ran += 1

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    answered = before = after = 0
    async with router:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))
        for _ in range(200):
            try:
                await router.call(ToolCall("web", "echo"))
                answered += 1
            except AuditUnavailable as error:
                before += error.retryable
                after += not error.retryable
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        await router.call(ToolCall("web", "echo"))
        answered += 1
    print(answered, before, after, ran)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_file_that_may_not_grow_any_more_closes_the_gate(tmp_path: Path) -> None:
    child = run_python(FULL_DISK, tmp_path)

    assert child.returncode == 0, child.stderr.decode()
    answered, before, after, ran = map(int, child.stdout.split())
    assert before > 0
    assert after <= 1, "after the first failure no call is let in"
    assert ran == answered + after
    events = call_events(tmp_path)
    assert events.count("completed") == answered
    assert events.count("admitted") == ran
    assert verify(tmp_path).ok


# Sinks.


class Hung:
    """A sink that never comes back until it is told."""

    name = "hung"

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def emit(self, lines: Sequence[bytes]) -> None:
        self.go_on.wait(FOREVER_S)

    def close(self) -> None:
        pass


async def test_a_sink_that_hangs_holds_no_call_up(tmp_path: Path) -> None:
    hung = Hung()
    made = policy(OPEN, audit=tmp_path / "audit")
    async with running(made, tmp_path, sinks=[hung]) as router:
        async with asyncio.timeout(FOREVER_S / 4):
            for value in range(500):
                assert await router.call(call(value=value)) == value
        hung.go_on.set()
    assert len(call_events(tmp_path / "audit")) == 1_000


# Names.


async def test_a_caller_that_the_policy_does_not_name_is_a_pseudonym(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    for _ in range(2):
        async with running(policy(LIMITED, audit=audit), tmp_path) as router:
            for caller in ("alice", "mallory", None):
                await router.call(call("web/echo", caller))

    shown = [line["caller"] for line in audit_lines(audit) if "caller" in line]
    alice, stranger, nobody = shown[0], shown[2], shown[4]
    assert (alice, nobody) == ("alice", "anonymous")
    assert stranger.startswith("~")
    assert len(stranger) == 13
    assert shown == ([alice] * 2 + [stranger] * 2 + [nobody] * 2) * 2


async def test_a_trace_id_is_written_down(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    carrier = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    async with running(policy(OPEN, audit=audit), tmp_path) as router:
        await router.call(ToolCall("web", "echo", trace=carrier))
        await router.call(ToolCall("web", "echo", trace={"traceparent": "nonsense"}))

    assert [line.get("trace_id") for line in audit_lines(audit) if "request_id" in line] == [
        trace_id,
        trace_id,
        None,
        None,
    ]


@pytest.mark.parametrize("on_failure", ["fail_closed", "drop"])
async def test_a_former_log_is_closed_though_its_last_end_could_not_be_written(
    tmp_path: Path, disk: Disk, on_failure: str
) -> None:
    gate = Gate()
    made = policy(LIMITED, audit=tmp_path / "old", audit_more=f", on_failure: {on_failure}")
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        task = asyncio.create_task(router.call(call("web/gate")))
        await gate.entered()
        await router.reload(policy(LIMITED, audit=tmp_path / "new"))
        former = router.engine.recorders[1]
        disk.room = 0

        gate.open()
        await asyncio.wait([task])

        disk.room = None
        assert former.is_done
        if on_failure == "fail_closed":
            assert isinstance(task.exception(), AuditUnavailable)
    recovered = AuditLog.open(AuditSpec(str(tmp_path / "old")), policy="x")
    recovered.close()
    assert [event for event, _ in ends(tmp_path / "old")] == ["lost"]
