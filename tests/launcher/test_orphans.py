"""callgate is killed with -9 at any moment: nobody it started is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from callgate.launcher.local.workspace import sweep
from callgate.launcher.warden.tree import parent_of
from tests.conftest import FULL
from tests.containment.agents import PATIENCE_S
from tests.containment.capabilities import need

GATE = '''
"""Start agents whose grandchildren have left their session, and end some of them, for ever."""
import asyncio, os, sys, time
from pathlib import Path
from callgate.launcher import LocalLauncher
from callgate.model import EnvSpec, LaunchSpec

AGENT = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
        time.sleep(600)
time.sleep(600)
"""

async def main(mark, level, root, forks=""):
    launcher = LocalLauncher(root=Path(root))
    contained = level != "privileged"
    spec = LaunchSpec(
        "agent", (sys.executable, "-I", "-S", "-c", AGENT, mark), level=level,
        contained=contained, env=EnvSpec(pass_all=not contained),
    )
    print("up", flush=True)
    for number in range(1000):
        run = await launcher.launch(spec, run_id=f"{mark}-{number}")
        await asyncio.sleep(0.02)
        if forks:
            if os.fork() == 0:
                time.sleep(600)  # with a copy of every descriptor that the gate has
            print("forked", flush=True)
            await asyncio.sleep(600)
        if number % 3 == 2:
            await run.stop("stop_requested", 1_000_000)

asyncio.run(main(*sys.argv[1:]))
'''
MOMENTS_S = 0.35
"""Of the gate's life: the first launches of many, and a few ends."""


def processes(mark: bytes) -> list[int]:
    """Everybody whose arguments have the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wardens(parent: int) -> list[int]:
    """A warden's last argument is the pid of the one it belongs to."""
    last = [str(parent).encode()]
    return [pid for pid in processes(b"warden.main()") if arguments(pid)[-1:] == last]


def arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []


def kill_at_a_random_moment(level: str, root: Path, number: int) -> list[int]:
    """Who is left of a gate that was killed."""
    mark = f"orphan-{os.getpid()}-{level}-{number}"
    gate = subprocess.Popen(
        [sys.executable, "-c", GATE, mark, level, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert gate.stdout is not None
    assert gate.stdout.readline() == b"up\n"
    time.sleep(random.uniform(0, MOMENTS_S))  # noqa: S311  # not a secret
    gate.kill()
    gate.wait(PATIENCE_S)
    gate.stdout.close()
    left = until_only([], mark)
    until = time.monotonic() + PATIENCE_S
    while wardens(gate.pid) and time.monotonic() < until:
        time.sleep(0.01)
    return left + wardens(gate.pid)


def until_only(expected: list[int], mark: str) -> list[int]:
    """Who has the mark, when it is only these, or when patience is over."""
    until = time.monotonic() + PATIENCE_S
    left = processes(mark.encode())
    while left != expected and time.monotonic() < until:
        time.sleep(0.01)
        left = processes(mark.encode())
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_no_process_is_left_when_callgate_is_killed_at_a_random_moment(tmp_path: Path) -> None:
    left = [
        kill_at_a_random_moment("privileged", tmp_path, number)
        for number in range(200 if FULL else 20)
    ]

    assert left == [[]] * len(left)


def test_nothing_of_a_sandbox_is_left_when_callgate_is_killed_at_a_random_moment(
    tmp_path: Path,
) -> None:
    need("bwrap", "seccomp", "landlock")
    root = tmp_path / "runs"

    left = [
        kill_at_a_random_moment("standard", root, number) for number in range(50 if FULL else 5)
    ]

    assert left == [[]] * len(left)
    # Killed between making a run's directory and telling its warden of it.
    sweep(root)
    assert list(root.iterdir()) == []
    assert list(Path("/sys/fs/cgroup").glob(f"**/*orphan-{os.getpid()}-*")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pidfds")
def test_a_fork_of_callgate_that_lives_on_keeps_no_agent_alive(tmp_path: Path) -> None:
    mark = f"orphan-{os.getpid()}-forked"
    gate = subprocess.Popen(
        [sys.executable, "-c", GATE, mark, "privileged", str(tmp_path), "forks"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert gate.stdout is not None
    assert gate.stdout.readline() == b"up\n"
    assert gate.stdout.readline() == b"forked\n"
    (fork,) = [pid for pid in processes(mark.encode()) if parent_of(pid) == gate.pid]
    gate.kill()
    gate.wait(PATIENCE_S)

    left = until_only([fork], mark)

    os.kill(fork, signal.SIGKILL)
    gate.stdout.close()
    assert left == [fork]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has parent-death signals")
def test_an_agent_dies_with_its_warden_even_if_callgate_does_nothing(tmp_path: Path) -> None:
    mark = f"orphan-{os.getpid()}-stopped"
    gate = subprocess.Popen(
        [sys.executable, "-c", GATE, mark, "privileged", str(tmp_path), "forks"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert gate.stdout is not None
    assert gate.stdout.readline() == b"up\n"
    assert gate.stdout.readline() == b"forked\n"
    (warden,) = wardens(gate.pid)
    (agent,) = [pid for pid in processes(mark.encode()) if parent_of(pid) == warden]
    os.kill(gate.pid, signal.SIGSTOP)

    os.kill(warden, signal.SIGKILL)

    until = time.monotonic() + PATIENCE_S
    while parent_of(agent) is not None:  # None for a zombie too
        assert time.monotonic() < until
        time.sleep(0.01)
    for pid in processes(mark.encode()):
        os.kill(pid, signal.SIGKILL)
    gate.wait(PATIENCE_S)
    gate.stdout.close()
