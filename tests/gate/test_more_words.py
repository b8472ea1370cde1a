"""What a person reads on stderr who has just put the gate in front of a server."""

from __future__ import annotations

import os
import pty
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from callgate.errors import LimitInfo
from callgate.gate.stderr import how_it_ended, warning
from callgate.launcher.protocol import Stopped
from tests.gate.helpers import OPEN, REFERENCE, Gate, agent, tool, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

WITHOUT = "Try its command without callgate"


@pytest.mark.parametrize("code", [0, 3])
def test_a_server_that_ends_at_its_start_is_told_with_its_own_words(
    code: int, tmp_path: Path
) -> None:
    program = f"import sys; print('no module foo', file=sys.stderr); sys.exit({code})"
    with Gate(tmp_path, agent(program)) as gate:
        assert gate.wait() == code

        assert "no module foo" in gate.stderr
        assert f"agent web ended: exited with code {code}; it had answered nothing" in gate.stderr
        assert WITHOUT in gate.stderr


def test_a_server_that_has_answered_is_not_doubted(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()
        gate.send(tool(1, "crash", code=7))
        assert gate.wait() == 7

        assert "agent web ended: exited with code 7\n" in gate.stderr


def test_an_end_that_the_client_wants_needs_no_word(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        assert gate.ends() == 0

        assert "ended" not in gate.stderr


NOISY = """
import sys
print("Server listening, token=hunter2")
print("another line")
sys.stdin.read()
"""


def test_what_a_server_prints_to_its_stdout_is_told_once_and_not_repeated(tmp_path: Path) -> None:
    with Gate(tmp_path, agent(NOISY)) as gate:
        until(lambda: gate.events().count("protocol.frame_rejected") == 2)
        assert gate.ends() == 0

        assert gate.stderr.count("could not be read (json)") == 1
        assert "hunter2" not in gate.stderr


def test_an_agent_that_the_policy_does_not_know_is_told(tmp_path: Path) -> None:
    policy = OPEN.replace("web: {}", "wbe: {}, other: {}")
    with Gate(tmp_path, REFERENCE, policy) as gate:
        assert gate.ends() == 0

        assert "the policy says nothing of agent web, only of other, wbe" in gate.stderr


def test_a_person_who_starts_it_by_hand_is_told_what_it_waits_for(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    with Gate(tmp_path, REFERENCE, stdin=its) as gate:
        until(lambda: "meant to be started by an MCP client" in gate.stderr)
        gate.process.terminate()
        assert gate.wait() == 0
    os.close(ours)
    os.close(its)


def test_a_bare_name_that_is_not_found_says_where_to_look(tmp_path: Path) -> None:
    with Gate(tmp_path, ["no-such-program"]) as gate:
        assert gate.wait() == 125

        assert "PATH" in gate.stderr


@pytest.mark.parametrize(
    ("stopped", "said"),
    [
        (Stopped("exited", "crashed", exit_code=3), "exited with code 3"),
        (Stopped("signal", "crashed", signal=int(signal.SIGKILL)), "signal SIGKILL"),
        (Stopped("signal", "crashed", signal=250), "signal 250"),
        (Stopped("unhealthy", "crashed", signal=9), "unhealthy"),
    ],
)
def test_an_end_is_told_with_the_number_that_says_more(stopped: Stopped, said: str) -> None:
    assert how_it_ended(stopped) == said


MI = 1024 * 1024


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (LimitInfo("memory", "agent:web", 256 * MI, 250 * MI), "used 250 MiB of 256 MiB: memory"),
        (LimitInfo("memory", "agent:web", 256 * MI, 1024 * MI), "used 1 GiB of 256 MiB: memory"),
        (LimitInfo("pids", "agent:web", 64, 60), "used 60 of 64: pids"),
        (LimitInfo("cpu_time", "agent:web", 10**10, 9 * 10**9), "used 9 s of 10 s: cpu time"),
    ],
)
def test_a_resource_warning_says_how_much_of_how_much(limit: LimitInfo, said: str) -> None:
    assert warning("web", limit) == f"agent web {said}"
