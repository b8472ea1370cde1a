"""The process layer for systems without a warden, run here on whatever this is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

import callgate.launcher as launcher_package
from callgate.launcher import LaunchRefused, Run
from callgate.launcher.host.process_tree import count_of_user, kill_tree
from callgate.launcher.local.portable_launcher import PortableLauncher
from callgate.launcher.plan.launch_plan import NICE
from callgate.model import EnvSpec
from tests.containment.agents import (
    MIB,
    PATIENCE_S,
    close,
    eventually,
    next_id,
    read_all,
    read_line,
    spec,
)

FORMED = """
import os, resource
for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CORE", "CPU"):
    print(name, resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1])
print("nice", os.nice(0))
print("names", *sorted(os.environ))
"""
LIMITS = {
    "memory_bytes": 256 * MIB,
    "pids": 50,
    "disk_bytes": 3 * MIB,
    "open_files": 60,
    "core_bytes": 0,
    "cpu_time_ns": 7 * 10**9,
    "cpu_millicores": 500,
}
SLEEPS = "import time; time.sleep(600)"
STARTS = f"""
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-ISc", {SLEEPS!r}]) for _ in range(2)]
print(*(child.pid for child in children), flush=True)
time.sleep(600)
"""


async def test_a_run_reads_writes_and_ends() -> None:
    agent = spec("import sys; print(input()); sys.exit(3)", contained=False)
    async with PortableLauncher() as launcher:
        started = await launcher.launch(agent, run_id=next_id())
        os.write(started.stdin, b"hello\n")
        os.close(started.stdin)

        assert await read_all(started.stdout) == "hello\n"

        stopped = await started.wait()
        os.close(started.stderr)
    assert (stopped.reason, stopped.state, stopped.exit_code) == ("exited", "crashed", 3)


async def test_a_command_that_cannot_be_started_is_refused_and_leaves_nothing_open() -> None:
    agent = msgspec.structs.replace(spec("", contained=False), command=(sys.executable, "a\0b"))
    async with PortableLauncher() as launcher:
        before = count_open()
        with pytest.raises(LaunchRefused) as refused:
            await launcher.launch(agent, run_id=next_id())
        after = count_open()

    assert (refused.value.stage, after) == ("exec", before)


def count_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


async def test_an_end_is_told_where_signals_have_fewer_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with PortableLauncher() as launcher:
        started = await launcher.launch(spec("raise SystemExit(9)"), run_id=next_id())
        monkeypatch.delattr(signal, "SIGKILL")
        async with asyncio.timeout(PATIENCE_S):
            stopped = await started.wait()
        close(started)

    assert (stopped.reason, stopped.exit_code, stopped.signal) == ("exited", 9, None)


UNIX_ONLY = """
import asyncio, psutil, sys
for name in ("fcntl", "resource", "termios", "callgate.launcher.warden.libc"):
    sys.modules[name] = None
package = sys.modules["callgate.launcher"] = type(sys)("callgate.launcher")
package.__path__ = [sys.argv[1]]
import callgate.launcher.local.portable_launcher, callgate.launcher.local.usage_readers
"""


def test_nothing_that_only_unix_has_is_imported() -> None:
    here = str(Path(launcher_package.__file__).parent)

    subprocess.run([sys.executable, "-c", UNIX_ONLY, here], check=True, timeout=60)


async def test_a_kill_ends_the_tree() -> None:
    async with PortableLauncher() as launcher:
        started = await launcher.launch(spec(STARTS, contained=False), run_id=next_id())
        children = [int(pid) for pid in (await read_line(started.stdout)).split()]

        started.kill("unhealthy")

        stopped = await started.wait()
        await eventually(lambda: not any(map(psutil.pid_exists, children)))
        close(started)
    assert (stopped.reason, stopped.state) == ("unhealthy", "crashed")


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM cannot be caught there")
async def test_a_stop_asks_first() -> None:
    code = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
"""
    async with PortableLauncher() as launcher:
        started = await launcher.launch(spec(code, contained=False), run_id=next_id())
        await read_line(started.stdout)

        stopped = await started.stop("stop_requested")

        close(started)
    assert (stopped.reason, stopped.state, stopped.exit_code) == ("stop_requested", "stopped", 0)


async def test_time_and_memory_are_held_by_watching() -> None:
    greedy = spec(
        "kept = bytearray(b'x') * (64 << 20); input()",
        limits={"memory_bytes": 32 * MIB},
        assumed=("memory",),  # else its address space is limited, too, and it ends by itself
        monitor_interval_ns=50_000_000,
    )
    slow = spec(SLEEPS, limits={"wall_time_ns": 100_000_000}, kill_grace_ns=10_000_000)
    ends = []
    async with PortableLauncher() as launcher:
        for agent in (greedy, slow):
            started = await launcher.launch(agent, run_id=next_id())
            async with asyncio.timeout(PATIENCE_S):
                ends.append((await started.wait()).reason)
            close(started)
        assert launcher.runs == {}

    assert ends == ["memory_limit", "wall_time_limit"]
    assert started.effective["tree_kill"].status == "degraded"


async def test_what_it_cannot_do_is_refused() -> None:
    strict = spec("", level="strict", limits={"files": 9})
    terminal = msgspec.structs.replace(spec("", contained=False), terminal=True)
    channel = msgspec.structs.replace(spec("", contained=False), protocol="runtime")
    gaps = []
    async with PortableLauncher() as launcher:
        for agent in (strict, terminal, channel):
            with pytest.raises(LaunchRefused) as refused:
                await launcher.launch(agent, run_id=next_id())
            gaps.append(set(refused.value.gaps))

    assert gaps[0] >= {"namespaces", "network", "seccomp", "landlock", "files"}
    assert gaps[1:] == [{"terminal"}, {"channel"}]


async def test_a_tree_can_be_killed_without_its_root() -> None:
    agent = spec(STARTS + "\n", contained=False)
    async with PortableLauncher() as launcher:
        started = await launcher.launch(agent, run_id=next_id())
        children = [int(pid) for pid in (await read_line(started.stdout)).split()]

        ended = await asyncio.to_thread(kill_tree, started.pid, itself=False)

        assert ended
        assert [psutil.Process(pid).status() for pid in children] == [psutil.STATUS_ZOMBIE] * 2
        assert psutil.pid_exists(started.pid)
        os.kill(started.pid, signal.SIGKILL)
        await started.wait()
        close(started)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
async def test_rlimits_and_a_lower_priority_stand_in_for_what_no_group_holds() -> None:
    processes, nice = count_of_user(), os.nice(0)
    async with PortableLauncher() as launcher:
        agent = spec(FORMED, limits=LIMITS, env=EnvSpec(pass_all=False))
        started = await launcher.launch(agent, run_id=next_id())
        out = await read_all(started.stdout)
        await started.wait()
        close_inputs(started)

    said = dict(line.split(" ", 1) for line in out.splitlines())
    effective = started.effective
    watched = ("memory", "pids", "disk", "cpu")
    assert (said["AS"], said["FSIZE"]) == (str(256 * MIB), str(3 * MIB))
    assert (said["NOFILE"], said["CORE"], said["CPU"]) == ("60", "0", "7")
    assert 50 < int(said["NPROC"]) < 2 * processes + 500
    assert int(said["nice"]) == min(19, nice + NICE)
    assert {effective[name].status for name in watched} == {"degraded"}
    assert {effective[name].status for name in ("open_files", "core_size", "cpu_time")} == {
        "enforced"
    }


async def test_a_limited_process_gets_no_variable_of_pythons_own() -> None:
    environ = {"PATH": os.environ["PATH"], "OWN": "1"}
    async with PortableLauncher(environ=environ) as launcher:
        agent = msgspec.structs.replace(
            spec("", limits={"open_files": 60}, env=EnvSpec(pass_all=False, names=("OWN",))),
            command=("env",),
        )
        started = await launcher.launch(agent, run_id=next_id())
        out = await read_all(started.stdout)
        await started.wait()
        close_inputs(started)

    assert {line.partition("=")[0] for line in out.splitlines()} <= {"PATH", "OWN", "HOME"}


async def test_a_file_that_is_longer_than_the_disk_may_be_is_refused(tmp_path: Path) -> None:
    code = f"""
with open({str(tmp_path / "long")!r}, "wb", buffering=0) as file:
    try:
        while True: file.write(bytes(1 << 20))
    except OSError as error:
        print(file.tell(), error.strerror)
"""
    async with PortableLauncher() as launcher:
        agent = spec(code, limits={"disk_bytes": 3 * MIB})
        started = await launcher.launch(agent, run_id=next_id())
        out = await read_all(started.stdout)
        await started.wait()
        close_inputs(started)

    assert out == f"{3 * MIB} File too large\n"


def close_inputs(started: Run) -> None:
    """Close what is left when standard output was read."""
    for fd in (started.stdin, started.stderr):
        os.close(fd)


async def test_without_resource_limits_are_left_out_and_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    async with PortableLauncher() as launcher:
        with pytest.raises(LaunchRefused) as refused:
            await launcher.plan(spec("", limits=LIMITS))
        allowed = await launcher.plan(spec("", limits=LIMITS, allow_degraded=True))

    assert refused.value.gaps.keys() == {"open_files", "core_size", "cpu_time", "disk", "cpu"}
    assert (allowed.rlimits, allowed.nice) == ((), 0)
    assert allowed.effective["memory"].status == "degraded"
