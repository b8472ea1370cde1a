"""The claims of `contract.py`, under every runtime that this environment has."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import canaries, leaks
from tests.mounts.conftest import CALLERS, PATIENCE_S, Desk, is_idle, until
from tests.mounts.contract import INSIDE, Asking, Claim, Stage, outcome, running
from tests.mounts.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.mounts.conftest import Tools

SECRET = canaries(1)[0]

pytestmark = pytest.mark.filterwarnings("ignore")  # the runtimes' own; ours are seen elsewhere


def claim(which: Claim) -> Callable[[Any], Any]:
    """Say which claim a test proves."""

    def mark(test: Any) -> Any:
        test.claim = which
        return test

    return mark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of each claim under the runtimes of this environment: its folder says which."""
    which = getattr(metafunc.function, "claim", None)
    if which is None:
        return
    folder = metafunc.module.__name__.split(".")[-2]
    home = "" if folder == "mounts" else folder
    here = [
        pytest.param((runtime, which), marks=runtime.marks(which), id=runtime.id)
        for runtime in RUNTIMES
        if runtime.home == home
    ]
    metafunc.parametrize("stage", here, indirect=True)


@pytest.fixture
def stage(request: pytest.FixtureRequest, desk: Desk, tools: Tools) -> Stage:
    runtime, which = request.param
    return Stage(runtime, which, desk, tools)


@claim(Claim.ADMITTED)
async def test_an_admitted_call_is_answered_and_recorded(stage: Stage) -> None:
    async with stage.open() as session:
        answer = await session.call("echo", text="an owl")

    assert "an owl" in answer
    assert stage.events() == [("admitted", "echo"), ("completed", "echo")]


@claim(Claim.RATE)
async def test_a_call_over_its_rate_is_refused(stage: Stage) -> None:
    async with stage.open() as session:
        first = await session.call("limited")
        second = await session.call("limited")

    name = f"web/{stage.runtime.prefix}limited"
    assert "done" in first
    assert f"rate limit of tool {name} reached: 1/hour; try again in" in second
    assert stage.code() == "limit.rate"
    assert stage.tools.calls == ["limited"]


@claim(Claim.CONCURRENCY)
async def test_a_call_too_many_at_once_is_refused(stage: Stage) -> None:
    async with stage.open() as session, running(session, stage, "single") as first:
        second = await session.call("single")
        stage.tools.free.set()
        answer = await first

    name = f"web/{stage.runtime.prefix}single"
    assert f"concurrency limit of tool {name} reached: 1 at once" in second
    assert ("denied", "single") in stage.events()
    assert "done" in answer
    assert stage.tools.calls == ["single"]


@claim(Claim.QUEUED)
async def test_a_call_waits_for_its_turn(stage: Stage) -> None:
    async with stage.open(queue=4) as session, running(session, stage, "single") as first:
        second = asyncio.create_task(session.call("single"))
        await until(lambda: len(stage.router.engine.flights) == 2)
        started = list(stage.tools.calls)
        stage.tools.free.set()
        answers = [await first, await second]

    assert started == ["single"]
    assert stage.tools.calls == ["single", "single"]
    assert ["done" in answer for answer in answers] == [True, True]
    assert [event for event, _ in stage.events()].count("completed") == 2


@claim(Claim.TIMEOUT)
async def test_a_call_that_takes_too_long_is_answered_and_its_work_is_stopped(
    stage: Stage,
) -> None:
    async with stage.open() as session, running(session, stage, "slow") as call:
        await stage.recorded("timed_out", "slow")
        answer = await stage.answered(call)
        await stage.happens(stage.tools.cancelled)
        await until(lambda: is_idle(stage.router))

    assert f"web/{stage.runtime.prefix}slow did not answer in time: 50 ms" in answer
    assert stage.code() == "limit.timeout"


@claim(Claim.THREAD)
async def test_a_sync_tool_is_answered_for_in_time_and_keeps_its_slot(stage: Stage) -> None:
    async with stage.open() as session:
        late = await stage.answered(asyncio.create_task(session.call("slow_sync")))
        held = await stage.answered(asyncio.create_task(session.call("slow_sync")))
        stage.tools.thread_free.set()
        await until(lambda: is_idle(stage.router))
        again = await session.call("slow_sync")

    assert "web/slow_sync did not answer in time: 50 ms" in late
    assert "concurrency limit of tool web/slow_sync reached" in held
    assert "done" in again
    assert stage.tools.calls == ["slow_sync", "slow_sync"]


@claim(Claim.CANCEL)
async def test_a_cancel_from_outside_stops_the_work_and_frees_its_slot(stage: Stage) -> None:
    async with stage.open() as session, running(session, stage, "single") as call:
        await session.cancel(call)
        await stage.happens(stage.tools.cancelled)
        async with asyncio.timeout(stage.patience_s):
            await until(lambda: ("cancelled", "single") in stage.events())
        await until(lambda: is_idle(stage.router))
        stage.tools.free.set()

        assert "done" in await session.call("single")
    assert [event for event, _ in stage.events()] == [
        "admitted",
        "cancelled",
        "admitted",
        "completed",
    ]


@claim(Claim.DENIED)
async def test_a_denied_call_is_refused_and_recorded(stage: Stage) -> None:
    async with stage.open() as session:
        answer = await session.call("delete_all")

    assert f"the policy does not allow web/{stage.runtime.prefix}delete_all" in answer
    assert stage.events() == [("denied", "delete_all")]
    assert stage.tools.calls == []


@claim(Claim.HIDDEN)
async def test_a_denied_tool_is_not_offered(stage: Stage) -> None:
    async with stage.open() as session:
        offered = await session.offered()

    assert "echo" in offered
    assert "delete_all" not in offered


@claim(Claim.SHADOW)
async def test_in_shadow_mode_a_call_passes_and_its_denial_is_recorded(stage: Stage) -> None:
    async with stage.open("shadow") as session:
        answer = await session.call("delete_all")
        offered = await session.offered()

    assert "deleted" in answer
    assert "delete_all" in offered
    assert sorted(stage.events()) == [
        ("admitted", "delete_all"),
        ("completed", "delete_all"),
        ("would_deny", "delete_all"),
    ]


@claim(Claim.INPUT_BYTES)
async def test_arguments_over_their_bytes_are_refused(stage: Stage) -> None:
    async with stage.open() as session:
        answer = await session.call("small", text="x" * 100)

    assert "at most 64 are allowed" in answer
    assert stage.code() == "limit.input_bytes"
    assert stage.tools.calls == []


@claim(Claim.OUTPUT_BYTES)
async def test_a_result_over_its_bytes_is_withheld_and_no_other(stage: Stage) -> None:
    async with stage.open() as session:
        small = await session.call("sized", text="x")
        large = await session.call("sized", text="x" * 100)

    assert "x" * 500 in small
    assert stage.code() == "limit.output_bytes"
    assert "x" * 500 not in large


@claim(Claim.FAILED)
async def test_a_tools_own_failure_passes_and_is_recorded_as_one(stage: Stage) -> None:
    async with stage.open() as session:
        answer = await outcome(session.call("fail", text="its own words"))

    assert stage.runtime.failure in answer
    assert stage.events() == [("admitted", "fail"), ("failed", "fail")]
    assert stage.code() == "tool.failed"


@claim(Claim.SUSPENDED)
async def test_a_call_that_asks_a_person_is_suspended_and_resumed(stage: Stage) -> None:
    async with stage.open() as session:
        assert isinstance(session, Asking)
        async with asyncio.timeout(PATIENCE_S):
            await session.suspend()
            idle = is_idle(stage.router)
            asked = stage.desk.records()
            answer = await session.resume()

    assert idle
    assert "a person says yes" in answer
    assert (asked[-1]["outcome"], asked[-1]["code"]) == ("unknown", "tool.suspended")
    assert stage.events() == [
        ("admitted", "ask"),
        ("suspended", "ask"),
        ("admitted", "ask"),
        ("completed", "ask"),
    ]


SECOND = """
version: 1
agents: {web: {tools: {"*echo": {rate: 1/hour}}}}
audit: {path: PATH}
"""


@claim(Claim.TWO_GATES)
async def test_two_gates_in_one_agent_both_count_and_either_may_refuse(
    stage: Stage, tmp_path: Path
) -> None:
    other = Desk(tmp_path / "second")
    async with other.router(text=SECOND) as second, stage.open(second=second) as session:
        passed = await session.call("echo", text="an owl")
        refused = await session.call("echo", text="an owl")

    name = f"web/{stage.runtime.prefix}echo"
    assert "an owl" in passed
    assert "an owl" not in refused
    assert f"rate limit of tool {name} reached: 1/hour" in refused
    assert stage.tools.calls == ["echo"]
    assert [event for event, _ in other.events()] == ["admitted", "completed", "denied"]
    assert stage.events()[:2] == [("admitted", "echo"), ("completed", "echo")]


@claim(Claim.ANOTHER_LOOP)
async def test_a_call_on_another_loop_is_refused_and_told_what_to_do(stage: Stage) -> None:
    async def elsewhere() -> str:
        async with stage.runtime.connect(stage.router, stage.tools, caller="alice") as session:
            return await outcome(session.call("echo", text="an owl"))

    async with stage.open():
        answer = await asyncio.to_thread(asyncio.run, elsewhere())

    assert "the router runs on another event loop; make a router for each loop" in answer
    assert stage.tools.calls == []


@CALLERS
@claim(Claim.CALLER)
async def test_a_name_or_a_function_says_who_calls(stage: Stage, caller: Any) -> None:
    async with stage.open(caller=caller) as session:
        await session.call("echo", text="an owl")

    assert {record["caller"] for record in stage.desk.records()} == {"alice"}


@claim(Claim.FAULT)
async def test_a_router_that_fails_lets_nothing_through(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.open() as session:
        monkeypatch.setattr(stage.router.engine.__class__, "begin", None)
        answer = await session.call("echo", text="an owl")
        monkeypatch.undo()

    assert INSIDE in answer
    assert stage.tools.calls == []


@claim(Claim.FAULT)
async def test_a_caller_that_cannot_be_told_lets_nothing_through(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def who(_: object) -> str:
        raise ValueError(SECRET.secret)

    async with stage.open(caller=who) as session:
        answer = await session.call("echo", text="an owl")
        offered = await session.offered()

    assert offered == set() or Claim.HIDDEN in stage.runtime.cannot
    # Where denied tools are left out, this one is: then the runtime answers, in its own words.
    assert "an owl" not in answer
    assert stage.tools.calls == []
    assert "failed and refused a call: ValueError in" in said_by_us(caplog)
    assert leaks([SECRET], answer + said_by_us(caplog)) == {}


@claim(Claim.CANARY)
async def test_arguments_and_results_reach_no_record_no_log_and_no_refusal(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = SECRET.secret
    async with stage.open(caller=lambda _: secret) as session:
        passed = await session.call("echo", text=secret)
        await outcome(session.call("fail", text=secret))
        refused = await session.call("small", text=secret * 10)

    assert leaks([SECRET], passed) != {}
    assert len(stage.desk.records()) == 5
    shown = refused + said_by_us(caplog)
    assert leaks([SECRET], stage.desk.everything() + shown.encode()) == {}


def said_by_us(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("callgate")
    )


def test_every_claim_has_a_test() -> None:
    tests = [each for name, each in globals().items() if name.startswith("test_")]

    assert {test.claim for test in tests if hasattr(test, "claim")} == set(Claim)


def test_no_runtime_has_a_reason_and_a_finding_for_one_claim() -> None:
    assert [each.id for each in RUNTIMES if set(each.cannot) & set(each.findings)] == []
