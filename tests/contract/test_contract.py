from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from callgate.cli.contract import app
from callgate.contract import CheckResult, Tools, run_contract
from callgate.contract.results import CHECKS, Times, ToolUse, UnknownCheck

if TYPE_CHECKING:
    from callgate.contract.suite import Protocol

ROOT = Path(__file__).parents[2]
AGENT = [sys.executable, str(ROOT / "examples" / "reference_agent.py")]
BROKEN = [sys.executable, str(Path(__file__).parent / "broken_agent.py")]

TOOLS = Tools(slow=ToolUse("sleep", {"seconds": 0.4}))
TIMES = Times(answer_s=10, heartbeat_ms=50)
IMPATIENT = Times(start_s=5, answer_s=2, heartbeat_ms=50)


def failures(results: list[CheckResult]) -> dict[str, str]:
    return {one.name: one.detail for one in results if one.outcome == "failed"}


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("mcp", []),
        ("mcp", ["--era", "legacy"]),
        ("mcp", ["--era", "stateless"]),
        ("runtime", ["--protocol", "runtime"]),
    ],
)
async def test_the_reference_agent_keeps_the_contract(
    protocol: Protocol, options: list[str]
) -> None:
    results = await run_contract([*AGENT, *options], protocol, tools=TOOLS, times=TIMES)

    assert failures(results) == {}
    assert [one.name for one in results[:9]] == list(CHECKS)
    assert len(results) > 40
    assert {one.outcome for one in results} == {"passed"}


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("never_answers", "handshake"),
        ("takes_any_version", "handshake failure"),
        ("names_a_tool_twice", "registration"),
        ("answers_twice", "call"),
        ("calls_fail", "call"),
        ("uses_another_token", "streaming"),
        ("does_not_grow", "streaming"),
        ("ignores_cancel", "cancel"),
        ("one_at_a_time", "heartbeat"),
        ("writes_noise", "framing"),
        ("serves_all_methods", "error shaping"),
        ("errors_without_shape", "error shaping"),
        ("dies_of_garbage", "malformed: not JSON"),
    ],
)
async def test_a_fault_of_an_mcp_server_fails_its_check(fault: str, check: str) -> None:
    results = await run_contract(
        [*BROKEN, fault], "mcp", tools=TOOLS, times=IMPATIENT, only=["registration", check]
    )

    assert check in failures(results)
    assert set(failures(results)) <= {check, "registration"}


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("has_another_token", "handshake"),
        ("goes_on_when_refused", "handshake failure"),
        ("hangs_when_refused", "handshake failure"),
        ("has_no_namespace", "registration"),
        ("answers_twice", "call"),
        ("calls_fail", "call"),
        ("forgets_the_ids", "call"),
        ("never_counts", "streaming"),
        ("ignores_cancel", "cancel"),
        ("lies_in_heartbeats", "heartbeat"),
        ("has_no_heartbeat", "heartbeat"),
        ("writes_noise_later", "framing"),
        ("errors_without_shape", "error shaping"),
        ("dies_of_garbage", "malformed: not JSON"),
    ],
)
async def test_a_fault_of_a_runtime_agent_fails_its_check(fault: str, check: str) -> None:
    command = [*BROKEN, fault, "--protocol", "runtime"]

    results = await run_contract(
        command, "runtime", tools=TOOLS, times=IMPATIENT, only=["registration", check]
    )

    assert check in failures(results)
    assert set(failures(results)) == {check}


async def test_heartbeats_that_were_on_their_way_before_a_call_are_no_lies() -> None:
    command = [*BROKEN, "hears_late", "--protocol", "runtime"]

    results = await run_contract(command, "runtime", tools=TOOLS, times=TIMES, only=["heartbeat"])

    assert [(one.outcome, one.detail) for one in results] == [("passed", "")]


async def test_a_fault_in_one_check_is_not_reported_by_the_next() -> None:
    results = await run_contract(
        [*BROKEN, "dies_of_garbage"],
        "mcp",
        tools=TOOLS,
        times=IMPATIENT,
        only=["malformed: not JSON", "malformed: truncated", "malformed: a number"],
    )

    assert list(failures(results)) == ["malformed: not JSON", "malformed: truncated"]


@pytest.mark.parametrize("protocol", ["mcp", "runtime"])
async def test_an_agent_without_a_tool_for_a_check_is_not_blamed(protocol: Protocol) -> None:
    command = [*BROKEN, "has_other_tools", "--protocol", protocol]

    results = await run_contract(command, protocol, times=TIMES, only=["call", "error shaping"])

    assert [(one.outcome, one.detail) for one in results] == [
        ("skipped", "the agent has no tool hello_world; name one with --call"),
        ("passed", results[1].detail),
    ]
    assert results[1].detail.endswith("no tool invalid_input; name one with --invalid")


@pytest.mark.parametrize("protocol", ["mcp", "runtime"])
async def test_a_tool_that_somebody_named_must_be_there(protocol: Protocol) -> None:
    tools = Tools(call=ToolUse("no_such_tool", {}))
    command = [*AGENT, "--protocol", protocol]

    results = await run_contract(command, protocol, tools=tools, times=TIMES, only=["call"])

    assert failures(results) == {"call": "the agent has no tool no_such_tool"}


async def test_how_an_agent_ended_is_said() -> None:
    talks = [sys.executable, "-c", "print('hello'); raise SystemExit(3)"]

    [result] = await run_contract(talks, times=IMPATIENT)

    assert result.detail == (
        "no answer before it ended with exit code 3; 1 of its frames are no messages"
    )


async def test_a_check_that_does_not_exist_is_no_success() -> None:
    with pytest.raises(UnknownCheck, match="there is no check 'cancle'"):
        await run_contract(AGENT, only=["cancle"])


@pytest.mark.parametrize("command", [["/no/such/command"], [sys.executable, "-c", ""]])
async def test_a_command_that_is_no_agent_fails_the_handshake_and_ends_there(
    command: list[str],
) -> None:
    results = await run_contract(command, times=IMPATIENT)

    assert list(failures(results)) == ["handshake"]
    assert len(results) == 1


@pytest.mark.parametrize("tool", ["flood", "never_end_line"])
async def test_an_agent_that_floods_does_not_hold_the_suite(tool: str) -> None:
    arguments: dict[str, Any] = {"frames": 2_000_000} if tool == "flood" else {"bytes": 1e8}
    tools = Tools(call=ToolUse(tool, arguments))

    results = await run_contract(AGENT, tools=tools, times=IMPATIENT, only=["call", "framing"])

    assert list(failures(results)) == ["call"]


class TestCommand:
    def test_it_says_yes_with_exit_code_0(self) -> None:
        answer = CliRunner().invoke(app, ["--only", "handshake", "--", *AGENT])

        assert (answer.exit_code, answer.output.split()[0]) == (0, "passed")
        assert answer.output.splitlines()[-1] == "1 passed"

    def test_it_says_no_with_exit_code_1_and_json(self) -> None:
        answer = CliRunner().invoke(app, ["--json", "--only", "call", "--", *BROKEN, "calls_fail"])

        report = json.loads(answer.output)
        assert (answer.exit_code, report["ok"], report["protocol"]) == (1, False, "mcp")
        assert [check["outcome"] for check in report["checks"]] == ["failed"]

    def test_it_calls_the_tools_that_it_is_told_to(self) -> None:
        arguments = ["--only", "call", "--call", 'hello_world={"name":"x"}', "--", *AGENT]

        assert CliRunner().invoke(app, arguments).exit_code == 0

    def test_an_agent_that_does_not_start_is_told_how_to_find_out_why(self) -> None:
        answer = CliRunner().invoke(app, ["--", "/no/such/command"])

        assert "it cannot be started: No such file or directory" in answer.stdout
        assert "--agent-stderr pass" in answer.stderr

    @pytest.mark.parametrize(
        "arguments", [["--protocol", "http"], ["--call", "x=1"], ["--call", "x={"], ["--only", "y"]]
    )
    def test_what_it_does_not_understand_is_exit_code_2(self, arguments: list[str]) -> None:
        assert CliRunner().invoke(app, [*arguments, "--", *AGENT]).exit_code == 2
