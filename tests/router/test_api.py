"""What programs see of `Router`: the names, the ways to call, and what comes back."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import uuid
from importlib import resources
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

import callgate
from callgate import CallgateError, Job, Policy, RateLimited, Router, ToolCall
from tests.router.helpers import (
    OPEN,
    Gate,
    assert_nothing_is_left,
    audit_lines,
    call,
    echo,
    fail,
    policy,
    refused,
    running,
    turns,
    until,
    within,
)

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC = {
    "__version__",
    "AuditUnavailable",
    "CallCanceled",
    "CallEnded",
    "CallRefused",
    "CallTimedOut",
    "CallgateError",
    "ConcurrencyLimited",
    "InputTooLarge",
    "Job",
    "LimitInfo",
    "OutputTooLarge",
    "Policy",
    "PolicyDenied",
    "PolicyError",
    "QuotaExceeded",
    "RateLimited",
    "Router",
    "ToolCall",
    "guarded",
}

GUARDED = """
version: 1
callers: {alice: {rate: 30/minute}}
agents:
  web:
    concurrency: 2
    queue: 0
    tools:
      "delete_*": deny
      secret: deny
      search: {timeout: 2s}
"""


# The package.


def test_the_public_names_are_these() -> None:
    assert set(callgate.__all__) == PUBLIC
    assert all(getattr(callgate, name) is not None for name in PUBLIC)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Rooter"):
        callgate.Rooter  # noqa: B018


def test_the_package_is_typed() -> None:
    assert resources.files("callgate").joinpath("py.typed").is_file()


def test_importing_the_package_imports_none_of_its_parts() -> None:
    code = "import callgate, sys; print([m for m in sys.modules if m.startswith('callgate.')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True
    )

    assert done.stdout.strip() == "[]"


# Calls.


async def test_arguments_bind_as_keywords(tmp_path: Path) -> None:
    async def tool(a: int, *, b: int = 2, **rest: int) -> tuple[int, int, dict[str, int]]:
        return a, b, rest

    async with running(policy(), tmp_path, {"web/tool": tool}) as router:
        assert await router.call(call("web/tool", a=1, c=3)) == (1, 2, {"c": 3})
        assert await router.call(call("web/tool", b=5, a=4)) == (4, 5, {})


async def test_a_tools_own_exception_passes_unchanged(tmp_path: Path) -> None:
    error = ValueError("its own words")

    async def explode() -> None:
        raise error

    def explode_in_a_thread() -> None:
        raise error

    made = policy(OPEN + "agents: {web: {tools: {apart: {isolate: task}}}}\n")
    tools = {"web/here": explode, "web/apart": explode, "web/thread": explode_in_a_thread}
    async with running(made, tmp_path, tools) as router:
        for name in tools:
            with pytest.raises(ValueError, match="its own words") as caught:
                await router.call(call(name))
            assert caught.value is error
            assert caught.value.__cause__ is None
        with pytest.raises(ValueError, match="its own words") as caught:
            await router.guard(call("web/guarded"), explode)
        assert caught.value is error
        assert_nothing_is_left(router)


async def test_an_error_of_ours_that_a_tool_raises_passes_as_its_own(tmp_path: Path) -> None:
    async with running(policy(), tmp_path) as router:

        async def outer() -> None:
            await router.call(call("web/nothing"))

        router.add_tool("web", "outer", outer)
        error = await refused(router.call(call("web/outer")))
        outcomes = {tool["tool"]: tool["outcomes"] for tool in router.snapshot()["tools"]}

    assert error.code == "tool.unknown"
    assert outcomes["outer"] == {"ok": 0, "tool.failed": 1}


async def test_a_sync_tool_runs_in_a_thread_and_blocks_nobody(tmp_path: Path) -> None:
    import threading  # noqa: PLC0415

    here = threading.get_ident()

    def sync(value: int) -> tuple[int, bool]:
        return value, threading.get_ident() == here

    async with running(policy(), tmp_path, {"web/sync": sync}) as router:
        assert await router.call(call("web/sync", value=7)) == (7, False)
        assert await router.submit(call("web/sync", value=8)) == (8, False)


class Callable:
    async def __call__(self, value: int) -> int:
        return value


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(echo, value=3),
        Callable(),
        functools.partial(Callable(), value=3),
        AsyncMock(return_value=3),
        functools.wraps(echo)(AsyncMock(return_value=3)),
    ],
    ids=["partial", "object", "partial of an object", "mock", "wrapped"],
)
async def test_every_kind_of_async_callable_is_awaited_here(tmp_path: Path, function: Any) -> None:
    async with running(policy(), tmp_path, {"web/tool": function}) as router:
        assert await within(router.call(call("web/tool", value=3))) == 3


# Refusals before anything is charged.


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("nobody/echo", {}, "agent.unknown"),
        ("web/nothing", {}, "tool.unknown"),
        ("web/echo", {"other": 1}, "tool.invalid_input"),
        ("web/needy", {}, "tool.invalid_input"),
        ("web/needy", {"a": 1, "b": 2}, "tool.invalid_input"),
        ("web/secret", {}, "policy.denied"),
        ("web/delete_all", {}, "policy.denied"),
        ("web/secret", {"unfit": 1}, "policy.denied"),
        ("web/delete_what_is_not_there", {}, "policy.denied"),
    ],
)
@pytest.mark.parametrize("way", ["call", "submit"])
async def test_what_cannot_be_called_is_refused_and_charged_nothing(
    tmp_path: Path, name: str, arguments: dict[str, Any], code: str, way: str
) -> None:
    async def needy(a: int) -> int:
        return a

    tools = {"web/echo": echo, "web/needy": needy, "web/secret": echo, "web/delete_all": echo}
    async with running(policy(GUARDED), tmp_path, tools) as router:
        made = call(name, **arguments)
        left = router.snapshot()["rates"]

        error = await refused(router.call(made) if way == "call" else router.submit(made))

        assert (error.code, error.retryable) == (code, False)
        assert error.request_id is not None
        assert uuid.UUID(error.request_id).version == 7
        assert all(rate["left"] == rate["burst"] for rate in router.snapshot()["rates"])
        assert left == []
        assert_nothing_is_left(router)


async def test_keys_that_are_no_text_do_not_fit(tmp_path: Path) -> None:
    async def anything(**arguments: Any) -> Any:
        return arguments

    arguments: Any = {1: 2}
    async with running(policy(), tmp_path, {"web/anything": anything}) as router:
        error = await refused(router.call(ToolCall("web", "anything", arguments)))

        assert error.code == "tool.invalid_input"


@pytest.mark.parametrize("timeout_ms", [0, -1, 1.5, True, "1"])
async def test_a_timeout_that_is_no_positive_number_is_refused(
    tmp_path: Path, timeout_ms: Any
) -> None:
    async with running(policy(), tmp_path) as router:
        error = await refused(router.call(ToolCall("web", "echo", timeout_ms=timeout_ms)))

        assert error.code == "tool.invalid_input"


@pytest.mark.parametrize("field", ["correlation_id", "causation_id", "trace"])
@pytest.mark.parametrize("value", [17, b"x", ["x"], object(), "\ud800", {"traceparent": 3}])
async def test_ids_of_any_type_neither_fail_nor_leak_a_slot(
    tmp_path: Path, field: str, value: Any
) -> None:
    audit = tmp_path / "audit"
    fields: Any = {field: value}
    async with running(policy(GUARDED, audit=audit), tmp_path) as router:
        assert await router.call(ToolCall("web", "echo", {"value": 1}, **fields)) == 1
        assert_nothing_is_left(router)
    admitted = next(line for line in audit_lines(audit) if line["event"] == "tool.call.admitted")
    assert field == "trace" or uuid.UUID(admitted[field]).version == 7


async def test_a_uuid_is_as_good_as_its_text(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    given = uuid.uuid4()
    made: Any = {"correlation_id": given, "causation_id": str(given).upper()}
    async with running(policy(audit=audit), tmp_path) as router:
        await router.call(ToolCall("web", "echo", **made))

    admitted = next(line for line in audit_lines(audit) if line["event"] == "tool.call.admitted")
    assert (admitted["correlation_id"], admitted["causation_id"]) == (str(given), str(given))


async def test_a_tool_whose_name_is_a_pattern_answers_for_itself_alone(tmp_path: Path) -> None:
    made = policy(OPEN + 'agents: {web: {tools: {"read_*": {timeout: 1s}}}}\n')
    async with running(made, tmp_path, {"web/*": echo, "web/read_*": echo}) as router:
        assert await router.call(call("web/*", value=1)) == 1
        assert await router.call(call("web/read_*", value=2)) == 2
        for name in ("web/other", "web/read_other"):
            assert (await refused(router.call(call(name)))).code == "tool.unknown"


async def test_a_tool_whose_name_cannot_be_shown_can_still_be_called(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    async with running(policy(audit=audit), tmp_path, {"web/größe bestimmen": echo}) as router:
        assert await router.call(call("web/größe bestimmen", value=1)) == 1
        assert await router.call(call("web/größe bestimmen", value=2)) == 2

    assert all("tool" not in line for line in audit_lines(audit))


# Registration.


def test_a_tool_is_registered_once() -> None:
    router = Router()
    router.add_tool("web", "echo", echo)

    with pytest.raises(ValueError, match="web/echo"):
        router.add_tool("web", "echo", echo)


def test_a_tool_with_positional_only_arguments_is_refused() -> None:
    async def tool(a: int, /) -> int:
        return a

    with pytest.raises(TypeError, match="positional"):
        Router().add_tool("web", "tool", tool)


def test_the_decorator_returns_the_function_itself() -> None:
    router = Router()

    assert router.tool(agent="web")(echo) is echo
    assert router.tool(agent="web", name="other")(echo) is echo
    assert set(router._lanes.agents["web"].tools) == {"echo", "other"}


def test_the_decorator_needs_a_name() -> None:
    with pytest.raises(TypeError, match="name"):
        Router().tool(agent="web")(functools.partial(echo))


async def test_a_tool_may_be_registered_while_the_router_runs(tmp_path: Path) -> None:
    async with running(policy(), tmp_path) as router:
        assert (await refused(router.call(call("web/later")))).code == "tool.unknown"

        router.add_tool("web", "later", echo)

        assert await router.call(call("web/later", value=1)) == 1


# Guard.


async def test_guard_runs_any_handler_under_a_tools_limits(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(GUARDED), tmp_path) as router:
        tasks = [asyncio.create_task(router.guard(call("web/x"), gate)) for _ in range(2)]
        await gate.entered(2)

        error = await refused(router.guard(call("web/x"), gate))

        assert (error.code, error.agent, error.tool) == ("limit.concurrency", "web", None)
        gate.open(2)
        assert await within(asyncio.gather(*tasks)) == ["", ""]


async def test_guard_gives_an_agent_that_nobody_knows_the_defaults(tmp_path: Path) -> None:
    made = policy("version: 1\ndefaults: {concurrency: 1, queue: 0, rate: unlimited}\n")
    gate = Gate()
    async with running(made, tmp_path) as router:
        task = asyncio.create_task(router.guard(call("stranger/x"), gate))
        await gate.entered()

        error = await refused(router.guard(call("another/y"), gate))

        assert error.code == "limit.concurrency"
        assert (error.agent, error.tool) == (None, None)
        gate.open()
        await within(task)


async def test_guard_refuses_what_is_denied(tmp_path: Path) -> None:
    async with running(policy(GUARDED), tmp_path) as router:
        error = await refused(router.guard(call("web/delete_x"), echo))

        assert error.code == "policy.denied"


# Jobs.


async def test_a_job_has_its_id_at_once_and_its_result_as_often_as_asked(tmp_path: Path) -> None:
    gate = Gate()
    async with running(policy(), tmp_path, {"web/gate": gate}) as router:
        job = router.submit(call("web/gate", name="x"))
        assert isinstance(job, Job)
        assert list(router.engine.flights) == [job.request_id]
        assert not job.done()
        await gate.entered()
        gate.open()

        assert await within(job) == "x"
        assert await within(job) == "x"
        assert job.done()


async def test_a_job_that_is_refused_says_so_when_it_is_awaited(tmp_path: Path) -> None:
    async with running(policy(GUARDED), tmp_path, {"web/secret": echo}) as router:
        job = router.submit(call("web/secret"))

        assert job.done()
        assert not job.cancel()
        for _ in range(2):
            error = await refused(job)
            assert (error.code, error.request_id) == ("policy.denied", job.request_id)


async def test_a_jobs_failure_reaches_who_awaits_it(tmp_path: Path) -> None:
    async with running(policy(), tmp_path, {"web/fail": fail}) as router:
        job = router.submit(call("web/fail"))
        await until(job.done)

        with pytest.raises(ValueError, match="no"):
            await job


# Explain and snapshot.


async def test_explain_says_each_limit_and_where_it_came_from() -> None:
    router = Router(Policy.parse(GUARDED, source="callgate.yaml"))

    rows = {(row.key, row.scope): row for row in router.explain("web", "search", caller="alice")}

    timeout = rows["timeout", "tool:web/search"]
    assert (timeout.value, timeout.source) == ("2s", "callgate.yaml:11")
    assert rows["rate", "caller:alice"].value == "30/minute"
    assert rows["concurrency", "agent:web"].value == "2"


async def test_a_snapshot_shows_live_usage(tmp_path: Path) -> None:
    gate = Gate()
    made = policy(GUARDED.replace("queue: 0", "queue: 5"))
    async with running(made, tmp_path, {"web/search": gate}) as router:
        tasks = [asyncio.create_task(router.call(call("web/search"))) for _ in range(3)]
        await gate.entered(2)

        seen = router.snapshot()

        assert (seen["policy"], seen["in_flight"], seen["queued"]) == (made.revision, 2, 1)
        assert {"scope": "agent:web", "limit": 2, "used": 2} in seen["slots"]
        assert {"scope": "agent:web", "limit": "60/minute", "burst": 60, "left": 58} in seen[
            "rates"
        ]
        (tool,) = seen["tools"]
        assert (tool["agent"], tool["tool"]) == ("web", "search")
        assert (tool["in_flight"], tool["queued"]) == (2, 1)
        assert (seen["callers"], seen["audit"]) == (1, None)
        gate.open(2)
        await gate.entered(3)
        gate.open()
        await within(asyncio.gather(*tasks))
        (tool,) = router.snapshot()["tools"]
        assert (tool["in_flight"], tool["queued"], tool["outcomes"]) == (0, 0, {"ok": 3})


# Nothing without `async with`.


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", ["call", "guard", "submit"])
async def test_nothing_is_let_in_outside_of_the_context(
    tmp_path: Path, when: str, way: str
) -> None:
    router = Router(policy(), state_dir=tmp_path)
    router.add_tool("web", "echo", echo)
    if when == "after":
        async with router:
            await router.call(call())  # its lane is known now

    ways: dict[str, Any] = {
        "call": lambda: router.call(call()),
        "guard": lambda: router.guard(call(), echo),
        "submit": lambda: router.submit(call()),
    }
    with pytest.raises(RuntimeError, match="async with"):
        await ways[way]()


async def test_nothing_is_let_in_while_the_router_ends(tmp_path: Path) -> None:
    seen: list[BaseException] = []

    async def clings() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            try:
                await router.call(call())
            except BaseException as error:  # noqa: BLE001
                seen.append(error)

    async with running(policy(), tmp_path, {"web/echo": echo, "web/clings": clings}) as router:
        job = router.submit(call("web/clings"))
        await turns()

    assert [type(error) for error in seen] == [RuntimeError]
    assert (await refused(job)).code == "tool.canceled"


async def test_a_router_runs_once_at_a_time(tmp_path: Path) -> None:
    async with running(policy(), tmp_path) as router:
        with pytest.raises(RuntimeError, match="running already"):
            await router.__aenter__()


async def test_a_router_may_run_again(tmp_path: Path) -> None:
    router = Router(policy(audit=tmp_path / "audit"), state_dir=tmp_path)
    router.add_tool("web", "echo", echo)
    for value in range(3):
        async with router:
            assert await router.call(call(value=value)) == value
    assert_nothing_is_left(router)


async def test_a_router_without_audit_and_quota_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    router = Router(policy(OPEN + "callers: {alice: {quota: 5/day}}\n"))
    router.add_tool("web", "echo", echo)

    async with router:
        await router.call(call(caller="bob"))
        await refused(router.call(call("web/nothing", caller="carol")))

    assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_an_audit_path_that_cannot_be_opened_is_an_error_at_the_start(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    router = Router(policy(audit=blocked / "audit"), state_dir=tmp_path)

    with pytest.raises(OSError, match="file"):
        await router.__aenter__()

    with pytest.raises(RuntimeError, match="async with"):
        await router.call(call())


# Nested calls.


async def test_a_nested_call_has_its_parents_caller_and_ids(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    made = policy(OPEN + "callers: {alice: {}}\n", audit=audit)
    async with running(made, tmp_path) as router:

        async def outer(depth: int) -> None:
            if depth:
                await router.call(ToolCall("web", "outer", {"depth": depth - 1}))

        router.add_tool("web", "outer", outer)
        await router.call(call("web/outer", depth=2))

    first, second, third = [
        line for line in audit_lines(audit) if line["event"] == "tool.call.admitted"
    ]
    assert {line["caller"] for line in (first, second, third)} == {"alice"}
    assert "correlation_id" not in first
    assert second["correlation_id"] == third["correlation_id"] == first["request_id"]
    assert second["causation_id"] == first["request_id"]
    assert third["causation_id"] == second["request_id"]


async def test_a_correlation_id_passes_to_nested_calls(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    given = str(uuid.uuid4())
    async with running(policy(audit=audit), tmp_path) as router:

        async def outer() -> None:
            await router.call(call())

        router.add_tool("web", "outer", outer)
        await router.call(ToolCall("web", "outer", correlation_id=given))

    found = [line["correlation_id"] for line in audit_lines(audit) if "correlation_id" in line]
    assert found == [given] * 4


async def test_a_call_after_a_call_is_not_nested_in_it(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    async with running(
        policy(audit=audit), tmp_path, {"web/echo": echo, "web/fail": fail}
    ) as router:
        with pytest.raises(ValueError, match="no"):
            await router.call(call("web/fail"))
        await router.call(call())

    assert all("causation_id" not in line for line in audit_lines(audit))


async def test_errors_are_structured_and_complete(tmp_path: Path) -> None:
    async with running(policy("version: 1\nagents: {web: {rate: 1/hour}}\n"), tmp_path) as router:
        await router.call(call())

        error = await refused(router.call(call()))

        assert isinstance(error, CallgateError)
        assert error.as_dict() == {
            "code": "limit.rate",
            "message": "rate limit of agent web reached: 1/hour; try again in "
            f"{(error.retry_after_ms or 0) / 1000:.1f} s",
            "request_id": error.request_id,
            "agent": "web",
            "tool": "echo",
            "limit": {"type": "rate", "scope": "agent:web", "limit": "1/hour", "usage": 1},
            "retryable": True,
            "retry_after_ms": error.retry_after_ms,
        }
        assert 3_590_000 < (error.retry_after_ms or 0) <= 3_600_000


def every_kind(kind: type[CallgateError]) -> list[type[CallgateError]]:
    """Return the errors that are raised; the others are groups, without a code."""
    below = [error for sub in kind.__subclasses__() for error in every_kind(sub)]
    return [kind, *below] if hasattr(kind, "code") else below


@pytest.mark.parametrize("kind", every_kind(CallgateError), ids=lambda kind: kind.__name__)
def test_the_repr_of_an_error_says_which_and_of_what(kind: type[CallgateError]) -> None:
    error = kind.__new__(kind)
    CallgateError.__init__(error, agent="web", tool="echo", request_id="1")

    text = repr(error)

    assert text == (
        f"{kind.__name__}(code={kind.code!r}, agent='web', tool='echo', request_id='1')"
    )
    assert repr(RateLimited()) == "RateLimited(code='limit.rate')"


async def work() -> str:
    """Run, which nothing here may."""
    raise AssertionError


WAYS_IN: dict[str, Any] = {
    "call": lambda router: router.call(call()),
    "guard": lambda router: router.guard(call(), work),
    "submit": lambda router: router.submit(call()),
}


@pytest.mark.parametrize("way", WAYS_IN)
async def test_a_call_on_another_loop_runs_nothing_and_says_what_to_do(
    tmp_path: Path, way: str
) -> None:
    async with running(policy(OPEN), tmp_path) as router:
        await router.call(call())  # its lane is known: the quickest way in

        async def elsewhere() -> None:
            with pytest.raises(RuntimeError, match=r"another event loop; .* on the router's: "):
                await WAYS_IN[way](router)

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert_nothing_is_left(router)


def test_a_call_on_a_later_loop_of_the_same_thread_runs_nothing(tmp_path: Path) -> None:
    with asyncio.Runner() as first:
        made = running(policy(OPEN), tmp_path)
        router = first.run(made.__aenter__())
        first.run(router.call(call()))

        async def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="another event loop"):
                await router.call(call())

        other = asyncio.new_event_loop()
        other.run_until_complete(elsewhere())
        other.close()
        assert_nothing_is_left(router)
        first.run(made.__aexit__(None, None, None))


async def test_a_call_from_another_loop_can_be_made_on_the_routers(tmp_path: Path) -> None:
    async with running(policy(OPEN), tmp_path) as router:
        loop = asyncio.get_running_loop()

        async def elsewhere() -> Any:
            answer = asyncio.run_coroutine_threadsafe(router.call(call()), loop)
            return await asyncio.wrap_future(answer)

        assert await asyncio.to_thread(asyncio.run, elsewhere()) == await router.call(call())
