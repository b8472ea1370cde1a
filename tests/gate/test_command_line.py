"""What `callgate run` says, refuses and follows: policies, exit codes, stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from callgate.cli.run import main
from tests.gate.helpers import (
    FOREVER_S,
    OPEN,
    REFERENCE,
    RESTARTED,
    Gate,
    agent,
    environment,
    tool,
    until,
    words,
)
from tests.peers.helpers import code_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")


def run(tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A gate that ends by itself, or because it has no input."""
    return subprocess.run(
        [sys.executable, "-m", "callgate", "run", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**environment(tmp_path), **env},
        timeout=FOREVER_S,
        check=False,
    )


def policy(tmp_path: Path, text: str) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return str(path)


def mark(tmp_path: Path) -> list[str]:
    """An agent that leaves a file behind when it is launched."""
    return agent(f"open({str(tmp_path / 'launched')!r}, 'w')")


def test_without_configuration_one_line_says_what_is_enforced_and_one_what_is_tried(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "--", *agent("pass"))

    line, tried, *_, last = done.stderr.splitlines()
    assert "0 calls, 0 refused, 0 would have been refused; see: callgate calls --agent" in last
    assert line.startswith("callgate: agent python")
    assert "timeout 10m, concurrency 64, queue 10000" in line
    assert "guarded would refuse (timeout 15s, concurrency 3, rate 60/minute) is recorded" in tried
    assert "put `profile: guarded` into a file and say --policy FILE" in tried
    assert "not contained" in line
    assert f"audit in {tmp_path}/state/callgate/audit" in line
    assert (done.returncode, done.stdout) == (0, "")
    assert list((tmp_path / "state" / "callgate" / "audit").glob("*/*.jsonl"))


@pytest.mark.parametrize(
    ("text", "limits", "written"),
    [
        ("version: 1\nagents: {web: {concurrency: 2}}\n", "concurrency 2, queue 10000", True),
        ("audit: off\nagents: {web: {concurrency: 2}}\n", "concurrency 2, queue 10000", False),
        ("profile: guarded\n", "15s, concurrency 3, rate 60/minute, queue 20", True),
    ],
    ids=["two lines", "no audit", "guarded"],
)
def test_a_policy_changes_what_it_says_and_keeps_the_audit(
    tmp_path: Path, text: str, limits: str, *, written: bool
) -> None:
    done = run(tmp_path, "--policy", policy(tmp_path, text), "--", *agent("pass"))

    line = done.stderr.splitlines()[0]
    home = tmp_path / "state" / "callgate" / "audit"
    assert done.returncode == 0
    assert limits in line
    assert line.endswith(f"audit in {home}" if written else "no audit")
    assert bool(list(home.glob("*/*.jsonl"))) is written


def test_a_policy_without_an_audit_of_its_own_runs_where_none_can_be_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    text = policy(tmp_path, "version: 1\n")
    home = {"XDG_STATE_HOME": str(tmp_path / "file")}

    done = run(tmp_path, "--policy", text, "--", *agent("pass"), **home)

    assert done.returncode == 0
    assert "no audit is written" in done.stderr
    assert any(line.endswith("; no audit") for line in done.stderr.splitlines())


def test_without_configuration_calls_pass(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE, None) as gate:
        gate.shake_hands()

        assert "greeting" in words(gate.ask(tool(1, "hello_world")))
        assert gate.ends() == 0


def test_an_audit_at_home_that_cannot_be_written_is_said_and_calls_pass(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with Gate(tmp_path, REFERENCE, None, env={"XDG_STATE_HOME": str(tmp_path / "file")}) as gate:
        gate.shake_hands()

        assert "greeting" in words(gate.ask(tool(1, "hello_world")))
        assert "no audit is written" in gate.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\nagents: {web: {timeout: soon}}\n", "policy.yaml"),
        ("version: 1\nagents: {web: {}}\naudit: {path: /dev/null/audit}\n", "audit"),
        ("version: 1\nagents: {web: {}}\naudit: {path: audit, stdout: true}\n", "audit.stdout"),
        (
            "version: 1\ncallers: {bot: {token: env:UNSET_TOKEN}}\nagents: {web: {}}\n",
            "UNSET_TOKEN",
        ),
        ("version: 1\nagents: {web: {}, other: {}}\n", "--agent"),
    ],
    ids=["invalid", "unwritable audit", "audit on stdout", "unset token", "which agent"],
)
def test_what_cannot_be_used_is_one_before_anything_is_launched(
    text: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["--policy", policy(tmp_path, text), "--", *mark(tmp_path)])

    assert code == 1
    assert said in capfd.readouterr().err
    assert not (tmp_path / "launched").exists()


def test_a_policy_that_is_not_there_is_one(tmp_path: Path) -> None:
    assert main(["--policy", str(tmp_path / "none.yaml"), "--", *mark(tmp_path)]) == 1
    assert not (tmp_path / "launched").exists()


def test_an_agent_without_a_command_is_one_and_says_what_to_write(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--policy", policy(tmp_path, "version: 1\nagents: {web: {}}\n")]) == 1
    assert "command:" in capfd.readouterr().err


def test_the_policys_own_command_is_run(tmp_path: Path) -> None:
    text = f"version: 1\nagents: {{web: {{command: {json.dumps(mark(tmp_path))}}}}}\n"

    done = run(tmp_path, "--policy", policy(tmp_path, text))

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "launched").exists()


@pytest.mark.parametrize("arguments", [[], ["--policy"], ["--what", "--", "true"]])
def test_bad_usage_is_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2


@pytest.mark.parametrize("configured", [False, True])
def test_a_command_that_cannot_be_started_is_a_refusal(*, configured: bool, tmp_path: Path) -> None:
    given = ["--policy", policy(tmp_path, OPEN)] if configured else []

    done = run(tmp_path, *given, "--", "/no/such/program")

    assert done.returncode == 125
    assert "/no/such/program is not a program" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_end_of_an_agents_time_is_a_timeout(tmp_path: Path) -> None:
    text = OPEN.replace("web: {}", "web: {containment: {level: privileged, wall_time: 300ms}}")
    with Gate(tmp_path, agent("import time; time.sleep(600)"), text) as gate:
        assert gate.wait() == 124
        assert "wall_time" in gate.stderr


# Reload.


def test_a_changed_policy_is_in_force_for_new_calls(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        gate.ask(tool(1, "hello_world"))

        gate.policy.write_text(OPEN.replace("web: {}", "web: {tools: {hello_world: deny}}"))

        until(lambda: "is in force" in gate.stderr)
        assert code_of(gate.ask(tool(2, "hello_world"))) == "policy.denied"
        assert "policy.loaded" in gate.events()
        assert gate.ends() == 0


TELLS = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in "ab"]
        result = {"protocolVersion": "2025-11-25", "tools": tools}
        result["capabilities"] = {"tools": {"listChanged": True}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def test_a_client_is_told_to_list_again_when_a_reload_denies_a_tool(tmp_path: Path) -> None:
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    with Gate(tmp_path, agent(TELLS)) as gate:
        gate.shake_hands()
        before = gate.ask(listing)
        assert [one["name"] for one in before["result"]["tools"]] == ["a", "b"]

        gate.policy.write_text(OPEN.replace("web: {}", "web: {tools: {b: deny}}"))

        assert gate.receive()["method"] == "notifications/tools/list_changed"
        after = gate.ask({**listing, "id": 2})
        assert [one["name"] for one in after["result"]["tools"]] == ["a"]
        gate.policy.write_text(OPEN.replace("web: {}", "web: {timeout: 9s, tools: {b: deny}}"))
        until(lambda: gate.stderr.count("is in force") == 2)
        assert gate.ends() == 0
        assert gate.rest() == []


def test_a_hang_up_reloads(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()

        gate.process.send_signal(signal.SIGHUP)

        until(lambda: "is in force" in gate.stderr)
        assert "greeting" in words(gate.ask(tool(1, "hello_world")))


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nagents: {web: {timeout: soon}}\n",
        OPEN.replace("path: audit", "path: /dev/null/audit"),
        OPEN.replace("path: audit", "path: audit, stdout: true"),
        "version: 1\ncallers: {bot: {token: env:UNSET_TOKEN}}\nagents: {web: {}}\n",
    ],
    ids=["invalid", "unwritable audit", "audit on stdout", "unset token"],
)
def test_a_policy_that_cannot_be_used_leaves_the_old_one(text: str, tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()

        gate.policy.write_text(text)
        gate.process.send_signal(signal.SIGHUP)

        until(lambda: "the policy stays as it was" in gate.stderr)
        assert "greeting" in words(gate.ask(tool(1, "hello_world")))
        assert "completed" in gate.events("tool.call.")
        assert gate.ends() == 0


def test_a_reload_reaches_the_next_process(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        gate.policy.write_text(RESTARTED)
        until(lambda: "is in force" in gate.stderr)

        gate.kill_agent()

        until(lambda: "run_crashed" in gate.events("agent."))
        assert "greeting" in words(gate.ask(tool(1, "hello_world")))


# What the agent prints.

PRINTS = """
import json, os, sys
print("before", os.environ["API_TOKEN"], file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/call":
        print("after", os.environ["API_TOKEN"], file=sys.stderr, flush=True)
    if "id" in message:
        result = {"protocolVersion": "2025-11-25", "content": [], "tools": []}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
SECRET = OPEN.replace("web: {}", "web: {env: {pass: [PATH], secret: [API_TOKEN]}}")
TOKEN = "Very-secret-Value-123"  # noqa: S105  # a canary


CONTAINED = SECRET.replace("web: {", "web: {containment: {level: privileged}, ")


@pytest.mark.parametrize(
    ("text", "options", "passes"),
    [(SECRET, [], True), (CONTAINED, [], False), (CONTAINED, ["--agent-stderr", "pass"], True)],
    ids=["uncontained", "contained", "asked"],
)
def test_an_agents_stderr_passes_masked_and_of_a_contained_one_only_its_start(
    text: str, options: list[str], *, passes: bool, tmp_path: Path
) -> None:
    with Gate(tmp_path, agent(PRINTS), text, *options, env={"API_TOKEN": TOKEN}) as gate:
        gate.shake_hands()

        gate.ask(tool(1, "anything"))
        gate.ends()

        assert "before ***" in gate.stderr
        assert ("after ***" in gate.stderr) is passes
        assert TOKEN not in gate.stderr


@pytest.mark.parametrize("text", [SECRET, CONTAINED], ids=["uncontained", "contained"])
def test_a_crashs_traceback_is_shown_once(text: str, tmp_path: Path) -> None:
    crashes = PRINTS.replace('    if "id"', "        raise ValueError('\\x1b[2J')\n    if \"id\"")
    with Gate(tmp_path, agent(crashes), text, env={"API_TOKEN": TOKEN}) as gate:
        gate.shake_hands()

        gate.send(tool(1, "anything"))
        assert gate.wait() == 1

        assert gate.stderr.count("Traceback (most recent call last)") == 1
        assert gate.stderr.count("after ***") == 1
        assert "\nValueError: " in gate.stderr
        assert TOKEN not in gate.stderr
        if text == CONTAINED:
            assert "agent web printed before it ended:\n" in gate.stderr
            assert r"\x1b[2J" in gate.stderr
            assert "\x1b" not in gate.stderr


def test_callgates_own_tokens_do_not_reach_the_agent(tmp_path: Path) -> None:
    shows = "import os, sys; print('BOT_TOKEN' in os.environ, file=sys.stderr)"
    text = "version: 1\ncallers: {bot: {token: env:BOT_TOKEN}}\nagents: {web: {}}\n"

    done = run(
        tmp_path, "--policy", policy(tmp_path, text), "--", *agent(shows), BOT_TOKEN="x" * 40
    )

    assert "False" in done.stderr


def test_a_stderr_that_nobody_reads_does_not_stop_the_gate(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    floods = "import os\nfor _ in range(64): os.write(2, b'x' * 65536)\n" + PRINTS
    try:
        with Gate(tmp_path, agent(floods), OPEN, env={"API_TOKEN": "x"}, stderr=writing) as gate:
            gate.shake_hands()

            assert "result" in gate.ask(tool(1, "anything"))
            assert gate.ends() == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_a_caller_that_is_named_is_counted_as_itself(tmp_path: Path) -> None:
    text = OPEN + "callers: {bot: {rate: 1/day}}\n"
    with Gate(tmp_path, REFERENCE, text, "--caller", "bot") as gate:
        gate.shake_hands()
        gate.ask(tool(1, "hello_world"))

        assert code_of(gate.ask(tool(2, "hello_world"))) == "limit.rate"
        assert {record.get("caller") for record in gate.records() if "caller" in record} == {"bot"}
