"""Sizes of arguments and results: measured only when a limit asks, and never let through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from callgate import InputTooLarge, OutputTooLarge, ToolCall
from callgate.errors import LimitInfo
from callgate.router import screen
from tests.router.helpers import (
    OPEN,
    assert_nothing_is_left,
    audit_lines,
    call,
    call_events,
    echo,
    policy,
    refused,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

SIZES = """
version: 1
global: {max_input_bytes: 1KiB}
defaults: {rate: unlimited, concurrency: 5}
agents:
  web:
    max_input_bytes: 200
    max_output_bytes: 100
    tools:
      small: {max_input_bytes: 20, max_output_bytes: 30}
      apart: {isolate: task}
  far: {}
"""


def make(size: int) -> str:
    return "x" * size


async def make_async(size: int) -> str:
    return "x" * size


def text_of(total: int, around: str) -> str:
    """A text that makes the whole JSON document so long."""
    return "x" * (total - len(around))


@pytest.mark.parametrize(
    ("tool", "limit", "scope"),
    [
        ("web/echo", 200, "agent:web"),
        ("web/small", 20, "tool:web/small"),
        ("far/echo", 1024, "global"),
    ],
)
async def test_arguments_may_be_as_large_as_the_lowest_ceiling(
    tmp_path: Path, tool: str, limit: int, scope: str
) -> None:
    tools = {"web/echo": echo, "web/small": echo, "far/echo": echo}
    made = policy(SIZES.replace("max_output_bytes: 100", ""))
    made = policy(SIZES.replace("max_output_bytes: 100", "").replace(", max_output_bytes: 30", ""))
    async with running(made, tmp_path, tools) as router:
        await router.call(call(tool, value=text_of(limit, '{"value":""}')))

        error = await refused(router.call(call(tool, value=text_of(limit + 1, '{"value":""}'))))

        assert isinstance(error, InputTooLarge)
        assert (error.code, error.retryable) == ("limit.input_bytes", False)
        assert error.limit == LimitInfo("input_bytes", scope, limit, limit + 1)
        assert_nothing_is_left(router)


async def test_arguments_are_measured_as_utf_8(tmp_path: Path) -> None:
    async with running(policy(SIZES), tmp_path, {"web/small": echo}) as router:
        assert await router.call(call("web/small", value="äöü")) == "äöü"  # 12 + 6 bytes

        error = await refused(router.call(call("web/small", value="漢字漢")))  # 12 + 9

        assert error.limit is not None
        assert error.limit.usage == 21


@pytest.mark.parametrize("value", [object(), {1, 2}, "\ud800", 1 << 70])
async def test_arguments_that_have_no_json_form_cannot_be_measured(
    tmp_path: Path, value: Any
) -> None:
    async with running(policy(SIZES), tmp_path) as router:
        error = await refused(router.call(call(value=value)))

        assert error.code == "tool.invalid_input"
        assert_nothing_is_left(router)


async def test_arguments_nested_too_deep_cannot_be_measured(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    async with running(policy(SIZES), tmp_path) as router:
        error = await refused(router.call(call(value=deep)))

        assert error.code == "tool.invalid_input"


@pytest.mark.parametrize("tool", ["web/sync", "web/async", "web/apart"])
async def test_a_result_may_be_as_large_as_its_ceiling(tmp_path: Path, tool: str) -> None:
    audit = tmp_path / "audit"
    tools = {"web/sync": make, "web/async": make_async, "web/apart": make_async}
    async with running(policy(SIZES, audit=audit), tmp_path, tools) as router:
        assert await router.call(call(tool, size=98)) == "x" * 98

        error = await refused(router.call(call(tool, size=99)))

        assert isinstance(error, OutputTooLarge)
        assert (error.code, error.retryable) == ("limit.output_bytes", False)
        assert error.limit == LimitInfo("output_bytes", "agent:web", 100, 101)
        assert_nothing_is_left(router)
    assert call_events(audit) == ["admitted", "completed", "admitted", "failed"]
    ended = [line for line in audit_lines(audit) if "bytes_out" in line]
    assert [(line["bytes_out"], line.get("code")) for line in ended] == [
        (100, None),
        (101, "limit.output_bytes"),
    ]


@pytest.mark.parametrize("tool", ["web/echo", "web/apart"])
async def test_a_result_that_cannot_be_measured_is_not_let_through(
    tmp_path: Path, tool: str
) -> None:
    async def odd() -> object:
        return object()

    async with running(policy(SIZES), tmp_path, {tool: odd}) as router:
        error = await refused(router.call(call(tool)))

        assert (error.code, error.limit) == ("limit.output_bytes", None)
        assert_nothing_is_left(router)


async def test_guard_measures_its_calls_arguments_and_its_handlers_result(tmp_path: Path) -> None:
    async def large() -> str:
        return "x" * 200

    async with running(policy(SIZES), tmp_path) as router:
        made = ToolCall("web", "any", {"value": "x" * 300})
        assert (await refused(router.guard(made, echo))).code == "limit.input_bytes"
        assert (await refused(router.guard(call("web/any"), large))).code == "limit.output_bytes"


async def test_without_a_limit_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(value: Any) -> int:
        raise AssertionError(f"measured {value}")

    monkeypatch.setattr(screen, "measure", forbidden)
    async with running(policy(OPEN), tmp_path) as router:
        assert await router.call(call(value=b"x")) == b"x"


async def test_sizes_are_written_down_when_they_are_known(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    async with running(policy(SIZES, audit=audit), tmp_path) as router:
        await router.call(call(value="abc"))

    (ended,) = [line for line in audit_lines(audit) if line["event"] == "tool.call.completed"]
    assert (ended["bytes_in"], ended["bytes_out"]) == (15, 5)
