"""`callgate run` in front of the reference agent: the whole life of a gate."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from callgate.audit.verify import verify
from tests.gate.helpers import (
    OPEN,
    REFERENCE,
    RESTARTED,
    Gate,
    agent,
    environment,
    is_gone,
    tool,
    until,
    words,
)
from tests.peers.helpers import cancel, code_of, initialize, note, progress, refusal_of, request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

RUNTIME = [*REFERENCE, "--protocol", "runtime", "--agent-id", "web"]
RUNTIME_POLICY = OPEN.replace("web: {}", "web: {protocol: runtime}")

# An agent that answers everything, and says nothing else.
QUIET = """
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": [], "content": []}}))
"""


def test_a_call_passes_and_a_clean_end_is_zero(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()

        answer = gate.ask(tool(1, "hello_world", name="you"))

        assert json.loads(words(answer)) == {"greeting": "hello, you"}
        assert gate.ends() == 0
        assert gate.events("tool.call.") == ["admitted", "completed"]
        assert gate.events("agent.") == ["run_started", "connected", "run_stopped"]
        assert verify(tmp_path / "audit").ok


def test_the_end_of_stdin_lets_what_is_in_flight_be_answered(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        gate.send(tool(1, "sleep", seconds=0.5), tool(2, "hello_world"))

        gate.close_stdin()

        answers = {message["id"]: words(message) for message in gate.rest() if "id" in message}
        assert json.loads(answers[1]) == {"slept": 0.5}
        assert 2 in answers
        assert gate.wait() == 0


def test_a_client_that_dies_takes_the_agent_with_it(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        gate.send(tool(1, "sleep", seconds=60))
        until(lambda: "admitted" in gate.events("tool.call."))
        gate.agent_process()
        assert gate.process.stdout is not None

        gate.close_stdin()
        gate.process.stdout.close()

        assert gate.wait() == 0
        assert gate.events("tool.call.") == ["admitted", "cancelled"]


def test_a_client_on_sockets_that_dies_takes_the_agent_with_it(tmp_path: Path) -> None:
    ours_in, theirs_in = socket.socketpair()
    ours_out, theirs_out = socket.socketpair()
    with (
        ours_in,
        ours_out,
        Gate(tmp_path, REFERENCE, stdin=theirs_in.fileno(), stdout=theirs_out.fileno()) as gate,
    ):
        theirs_in.close()
        theirs_out.close()
        ours_in.sendall(json.dumps(tool(1, "sleep", seconds=60)).encode() + b"\n")
        until(lambda: "admitted" in gate.events("tool.call."))
        gate.agent_process()

        ours_in.close()
        ours_out.close()

        assert gate.wait() == 0


def test_a_gate_that_is_killed_takes_the_agent_with_it(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        process = gate.agent_process()

        gate.process.kill()

        gate.wait()
        until(lambda: is_gone(process))


def test_a_death_is_answered_at_once_and_the_client_does_not_notice(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE, RESTARTED) as gate:
        gate.shake_hands()
        gate.send(*(tool(number, "sleep", seconds=60) for number in range(3)))
        until(lambda: gate.events("tool.call.").count("admitted") == 3)

        gate.kill_agent()

        refused = [refusal_of(gate.answer_to(number)) for number in range(3)]
        assert [one["code"] for one in refused] == ["agent.crashed"] * 3
        (ended,) = [one for one in gate.records() if one["event"] == "agent.run_crashed"]
        ends = {(one["run_id"], one["stop_reason"], one["limit"]) for one in refused}
        assert ends == {(ended["run_id"], "signal", None)}
        assert json.loads(words(gate.ask(tool(9, "hello_world")))) == {"greeting": "hello, world"}
        assert "web ended: signal SIGKILL; it will be started again" in gate.stderr
        assert gate.ends() == 0
        assert [event for event in gate.events("agent.") if event.startswith("run_")] == [
            "run_started",
            "run_crashed",
            "run_started",
            "run_stopped",
        ]


def test_without_a_restart_a_death_ends_the_gate_with_its_code(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()

        answer = gate.ask(tool(1, "crash", code=7))

        assert code_of(answer) == "agent.crashed"
        assert gate.wait() == 7
        assert "agent web ended: exited with code 7" in gate.stderr


def test_a_signal_that_ends_the_agent_is_told_as_a_shell_would(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()

        gate.send(tool(1, "crash", signal=int(signal.SIGKILL)))

        assert gate.wait() == 128 + signal.SIGKILL


def test_an_agent_that_ends_well_ends_the_gate_well(tmp_path: Path) -> None:
    with Gate(tmp_path, agent("pass")) as gate:
        assert gate.wait() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_gate_and_the_agent(number: int, code: int, tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        gate.send(tool(1, "sleep", seconds=60))
        until(lambda: "admitted" in gate.events("tool.call."))
        gate.look_at_tree()

        gate.process.send_signal(number)

        assert gate.wait() == code
        assert gate.events("tool.call.") == ["admitted", "cancelled"]
        assert gate.events("agent.")[-1] == "run_stopped"


def test_a_signal_ends_a_gate_that_waits_for_its_last_answers(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        gate.send(tool(1, "sleep", seconds=60))
        until(lambda: "admitted" in gate.events("tool.call."))
        gate.close_stdin()

        gate.process.terminate()

        assert gate.wait() == 0


def test_a_hang_up_ends_a_gate_without_a_policy(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE, None) as gate:
        gate.shake_hands()

        gate.process.send_signal(signal.SIGHUP)

        assert gate.wait() == 0


def test_the_end_does_not_wait_for_a_backoff(tmp_path: Path) -> None:
    policy = OPEN.replace("web: {}", "web: {restart: {on: always, backoff: 50s..50s}}")
    with Gate(tmp_path, REFERENCE, policy) as gate:
        gate.shake_hands()
        gate.kill_agent()
        until(lambda: "run_crashed" in gate.events("agent."))
        gate.send(tool(1, "hello_world"))

        gate.process.terminate()

        assert gate.wait() == 0


def test_an_agent_that_ignores_the_end_of_its_stdin_is_ended(tmp_path: Path) -> None:
    with Gate(tmp_path, agent("import time; time.sleep(600)")) as gate:
        gate.agent_process()

        assert gate.ends() == 0


def test_an_agent_that_closes_its_stdout_and_lives_is_replaced(tmp_path: Path) -> None:
    code = "import os, sys, time; sys.stdin.readline(); os.close(1); time.sleep(600)"
    with Gate(tmp_path, agent(code)) as gate:
        gate.send(request(1, "ping"))

        assert code_of(gate.answer_to(1)) == "agent.crashed"
        assert gate.wait() != 0
        assert "agent web ended: unhealthy" in gate.stderr


# Each life of it is counted in a file, and answers as its number says.
LIVES = """
import json, os, pathlib, sys, time
file = pathlib.Path(sys.argv[1])
life = len(file.read_text()) if file.exists() else 0
file.write_text("x" * (life + 1))
version = ["2025-11-25", sys.argv[2]][min(life, 1)]
for line in sys.stdin:
    message = json.loads(line)
    if message.get("params", {}).get("name") == "hang":
        time.sleep(600)
    if "id" in message:
        content = [{"type": "text", "text": str(life)}]
        result = {"protocolVersion": version, "content": content, "tools": []}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
"""


def test_a_process_that_comes_back_with_another_version_ends_the_gate(tmp_path: Path) -> None:
    command = [*agent(LIVES), str(tmp_path / "lives"), "2025-06-18"]
    with Gate(tmp_path, command, RESTARTED) as gate:
        gate.shake_hands()

        gate.kill_agent()

        assert gate.wait() != 0
        assert "agent web ended: protocol_violation" in gate.stderr
        assert (tmp_path / "lives").read_text() == "xx"


def test_an_agent_that_is_deaf_to_cancels_is_started_again_if_the_policy_says_so(
    tmp_path: Path,
) -> None:
    ignored = "web: {cancel_grace: 200ms, on_ignored_cancel: restart}"
    command = [*agent(LIVES), str(tmp_path / "lives"), "2025-11-25"]
    with Gate(tmp_path, command, OPEN.replace("web: {}", ignored)) as gate:
        gate.shake_hands()
        gate.send(tool(1, "hang"), tool(2, "echo"))
        until(lambda: gate.events("tool.call.").count("admitted") == 2)

        gate.send(cancel(1))

        assert code_of(gate.answer_to(2)) == "agent.crashed"
        assert words(gate.ask(tool(3, "echo"))) == "1"
        assert "web ended: ignored_cancel; it will be started again" in gate.stderr


def test_a_process_that_cannot_be_started_again_ends_the_gate(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable} -u\n{QUIET}")
    program.chmod(0o755)
    policy = RESTARTED.replace("max: 1000000", "max: 2")
    with Gate(tmp_path, [str(program)], policy) as gate:
        gate.ask(request(1, "ping"))
        program.unlink()
        gate.agent_process().suspend()  # so that the call is in flight when it dies
        gate.send(tool(2, "echo"))
        until(lambda: "admitted" in gate.events("tool.call."))

        gate.kill_agent()

        assert code_of(gate.answer_to(2)) == "agent.crashed"
        assert gate.wait() == 1
        assert gate.stderr.count("is not a program that can be run") == 2


# Cancel, progress, questions: through real pipes.


def test_a_cancel_reaches_the_work_and_frees_its_slot(tmp_path: Path) -> None:
    policy = RUNTIME_POLICY.replace("concurrency: 200", "concurrency: 1, queue: 5")
    policy = policy.replace("runtime}", "runtime, cancel_grace: 60s}")
    with Gate(tmp_path, RUNTIME, policy) as gate:
        gate.shake_hands()
        gate.send(tool(1, "sleep", seconds=60), tool(2, "hello_world"))
        until(lambda: "admitted" in gate.events("tool.call."))

        gate.send(cancel(1))

        answer = gate.answer_to(2)
        assert answer["result"]["structuredContent"] == {"greeting": "hello, world"}
        assert gate.aside == []
        assert gate.events("tool.call.") == ["admitted", "cancelled", "admitted", "completed"]


def test_progress_reaches_the_client(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        message = tool(1, "stream_counter", count=3)
        message["params"]["_meta"] = {"progressToken": "mine"}

        gate.ask(message)

        shown = [one["params"] for one in gate.aside if one["method"] == progress(1)["method"]]
        assert [(one["progressToken"], one["progress"]) for one in shown] == [
            ("mine", 1),
            ("mine", 2),
            ("mine", 3),
        ]


def test_a_runtime_agent_is_served_to_an_mcp_client(tmp_path: Path) -> None:
    with Gate(tmp_path, RUNTIME, RUNTIME_POLICY) as gate:
        gate.shake_hands()
        listed = gate.ask(request("l", "tools/list"))
        message = tool(1, "stream_counter", count=2)
        message["params"]["_meta"] = {"progressToken": "mine"}

        answer = gate.ask(message)

        assert "hello_world" in {one["name"] for one in listed["result"]["tools"]}
        assert answer["result"]["structuredContent"] == {"count": 2}
        assert [one["params"]["progress"] for one in gate.aside] == [1, 2]
        assert gate.ends() == 0
        assert gate.events("agent.") == ["run_started", "connected", "run_stopped"]


def test_a_runtime_agent_that_dies_is_replaced(tmp_path: Path) -> None:
    policy = RESTARTED.replace("web: {", "web: {protocol: runtime, ")
    with Gate(tmp_path, RUNTIME, policy) as gate:
        gate.shake_hands()
        assert code_of(gate.ask(tool(1, "crash"))) == "agent.crashed"

        answer = gate.ask(tool(2, "hello_world"))

        assert answer["result"]["structuredContent"] == {"greeting": "hello, world"}
        assert gate.ends() == 0


def test_a_runtime_agent_that_prints_does_not_block(tmp_path: Path) -> None:
    chatty = (
        "import os, sys, runpy; os.write(1, b'x' * 300_000); os.write(2, b'y' * 300_000);"
        f"sys.argv = {RUNTIME[1:]!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    with Gate(tmp_path, agent(chatty), RUNTIME_POLICY) as gate:
        gate.shake_hands()

        assert "result" in gate.ask(tool(1, "hello_world"))


# Streams that are no pipes.


PROMPT = """
import sys
for line in sys.stdin.buffer:
    if b'"id"' in line:
        own_id = line.split(b'"id":')[1].split(b",")[0]
        answer = b'{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","tools":[]}}'
        sys.stdout.buffer.write(answer % own_id + b"\\n")
        sys.stdout.buffer.flush()
"""
"""Answers as fast as it can."""


def test_redirected_files_are_served(tmp_path: Path) -> None:
    calls = [tool(number, "hello_world") for number in range(1, 3_001)]
    """Many reads of a file, while answers come."""
    messages = [initialize(0), note("notifications/initialized"), *calls]
    requests = tmp_path / "requests"
    requests.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in messages))
    answers = tmp_path / "answers"
    policy = OPEN.replace("concurrency: 200", "concurrency: unlimited")
    with (
        requests.open("rb") as stdin,
        answers.open("wb") as stdout,
        Gate(tmp_path, agent(PROMPT), policy, stdin=stdin, stdout=stdout) as gate,
    ):
        assert gate.wait() == 0

    found = [json.loads(line) for line in answers.read_bytes().splitlines()]
    assert [one["id"] for one in found] == list(range(3_001))
    assert all("result" in one for one in found)


@pytest.mark.parametrize("stdin", ["null", "closed"])
def test_a_gate_without_input_ends(stdin: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    with Gate(tmp_path, agent(QUIET), **options) as gate:
        assert gate.wait() == 0
    if stdin == "closed":
        command = [sys.executable, "-m", "callgate", "run", "--", *agent(QUIET)]
        shell = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command]
        done = subprocess.run(shell, env=environment(tmp_path), timeout=60, check=False)
        assert done.returncode == 0


def test_a_terminal_is_left_as_it_was_found(tmp_path: Path) -> None:
    master, slave = os.openpty()
    try:
        with Gate(tmp_path, agent(QUIET), stdin=slave, stdout=slave) as gate:
            os.write(master, b"\x04")  # the end of a terminal's input

            assert gate.wait() == 0

        assert os.get_blocking(slave)
    finally:
        os.close(master)
        os.close(slave)
