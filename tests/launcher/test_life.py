"""Runs from start to end: streams, states, reasons, what is left afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from signal import SIGPIPE, SIGXFSZ
from typing import TYPE_CHECKING

import msgspec
import pytest

from callgate.launcher import LaunchRefused, LocalLauncher
from callgate.launcher.host.cgroup import Group
from callgate.launcher.local.local_run import _decode
from callgate.launcher.local.run_resources import RunResources
from callgate.launcher.local.warden_client import Exit
from callgate.launcher.plan.cgroup_plan import Counters
from callgate.launcher.warden.tree import descendants
from callgate.model import EnvSpec, LaunchSpec
from tests.conftest import FULL
from tests.containment.agents import (
    close,
    eventually,
    exists,
    next_id,
    read_all,
    read_line,
    run,
    spec,
)
from tests.containment.capabilities import need

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[LocalLauncher]:
    async with LocalLauncher(root=tmp_path / "runs") as launcher:
        yield launcher


def free(code: str) -> LaunchSpec:
    """An agent without containment."""
    return spec(code, contained=False)


async def test_an_agents_streams_are_three_pipes(launcher: LocalLauncher) -> None:
    code = "import sys; word = input(); print(word); print(word, file=sys.stderr)"
    started = await launcher.launch(free(code), run_id=next_id())

    os.write(started.stdin, b"hello\n")

    os.close(started.stdin)
    assert await read_all(started.stdout) == "hello\n"
    assert await read_all(started.stderr) == "hello\n"
    assert (await started.wait()).reason == "exited"


async def test_an_agent_that_ends_well_has_stopped(launcher: LocalLauncher) -> None:
    said = await run(launcher, free("pass"))

    assert (said.stopped.reason, said.stopped.state, said.stopped.exit_code) == (
        "exited",
        "stopped",
        0,
    )


async def test_an_agent_that_ends_with_a_code_has_crashed(launcher: LocalLauncher) -> None:
    said = await run(launcher, free("raise SystemExit(3)"))

    assert (said.stopped.reason, said.stopped.state, said.stopped.exit_code) == (
        "exited",
        "crashed",
        3,
    )


async def test_somebodys_sigkill_is_a_signal_and_not_out_of_memory(
    launcher: LocalLauncher,
) -> None:
    started = await launcher.launch(free("input()"), run_id=next_id())

    os.kill(started.pid, signal.SIGKILL)

    stopped = await started.wait()
    close(started)
    assert (stopped.reason, stopped.state, stopped.signal) == ("signal", "crashed", 9)


async def test_our_own_kill_has_the_reason_that_we_gave(launcher: LocalLauncher) -> None:
    started = await launcher.launch(free("input()"), run_id=next_id())

    started.kill("unhealthy")
    started.kill("protocol_violation")

    stopped = await started.wait()
    close(started)
    assert (stopped.reason, stopped.state, stopped.signal) == ("unhealthy", "crashed", 9)


async def test_an_agent_is_asked_before_it_is_killed(launcher: LocalLauncher) -> None:
    code = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
print("bye", flush=True)
"""
    started = await launcher.launch(free(code), run_id=next_id())
    await read_line(started.stdout)

    stopped = await started.stop("stop_requested")

    assert await read_line(started.stdout) == "bye\n"
    close(started)
    assert (stopped.reason, stopped.state, stopped.exit_code) == ("stop_requested", "stopped", 0)


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""


async def test_an_agent_that_ignores_the_question_is_killed_with_its_tree(
    launcher: LocalLauncher,
) -> None:
    started = await launcher.launch(free(STUBBORN), run_id=next_id())
    await read_line(started.stdout)
    tree = [started.pid, *descendants(started.pid)]

    stopped = await started.stop("stop_requested", 50_000_000)

    close(started)
    assert len(tree) == 3
    assert stopped.signal == signal.SIGKILL
    assert not any(map(exists, tree))


async def test_what_an_agent_leaves_running_ends_with_it(launcher: LocalLauncher) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(0.1)
"""
    said = await run(launcher, free(code))

    # Its standard output was held open; that it came to an end is a part of the claim.
    assert not exists(int(said.out))
    assert said.stopped.reason == "exited"


async def test_without_containment_everything_passes_but_our_own_tokens(tmp_path: Path) -> None:
    environ = {**os.environ, "MINE": "1", "TOKEN": "canary", "CALLGATE_SESSION_TOKEN": "old"}
    agent = msgspec.structs.replace(
        free("import os; print(*os.environ)"), env=EnvSpec(withheld=("TOKEN",))
    )
    async with LocalLauncher(root=tmp_path, environ=environ) as launcher:
        said = await run(launcher, agent)

    names = set(said.out.split())
    assert {"MINE", "PATH"} <= names
    assert names.isdisjoint({"TOKEN", "CALLGATE_SESSION_TOKEN"})


async def test_an_agent_of_the_runtime_protocol_has_a_channel_and_a_token(
    launcher: LocalLauncher,
) -> None:
    code = """
import os, socket
channel = socket.socket(fileno=int(os.environ["CALLGATE_CHANNEL_FD"]))
channel.sendall(os.environ["CALLGATE_SESSION_TOKEN"].encode() + b"\\n")
"""
    agent = msgspec.structs.replace(free(code), protocol="runtime")
    started = await launcher.launch(agent, run_id=next_id())
    assert started.channel is not None

    said = await read_line(started.channel)

    await started.wait()
    close(started)
    assert started.token is not None
    assert said == f"{started.token}\n"


async def test_two_agents_have_two_tokens(launcher: LocalLauncher) -> None:
    agent = msgspec.structs.replace(free("pass"), protocol="runtime")
    runs = [await launcher.launch(agent, run_id=next_id()) for _ in range(2)]

    assert runs[0].token != runs[1].token

    for each in runs:
        await each.wait()
        close(each)


async def test_signals_that_python_ignores_are_not_ignored_by_an_agent(
    launcher: LocalLauncher,
) -> None:
    agent = msgspec.structs.replace(free(""), command=("grep", "SigIgn", "/proc/self/status"))

    said = await run(launcher, agent)

    ignored = int(said.out.split()[1], 16)
    assert [number for number in (SIGPIPE, SIGXFSZ) if ignored >> (number - 1) & 1] == []


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"command": ("/no/such/program",)}, "command"),
        ({"command": ("no-such-program",)}, "command"),
        ({"cwd": "/no/such/directory"}, "cwd"),
        ({"limits": {"open_files": 2**31}}, "rlimit"),
    ],
)
async def test_a_launch_that_fails_names_the_step(
    launcher: LocalLauncher, changes: dict[str, object], stage: str
) -> None:
    agent = msgspec.structs.replace(free("pass"))
    limits = changes.pop("limits", None)
    if limits is not None:
        agent = spec("pass", limits=limits)  # type: ignore[arg-type]
    agent = msgspec.structs.replace(agent, **changes)

    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(agent, run_id=next_id())

    assert (refused.value.code, refused.value.stage) == ("agent.unavailable", stage)


async def test_a_program_that_cannot_be_executed_is_a_refusal(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF and then nonsense")
    broken.chmod(0o755)
    agent = msgspec.structs.replace(free(""), command=(str(broken),))

    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(agent, run_id=next_id())

    assert refused.value.stage == "exec"


async def test_a_launch_that_is_cancelled_leaves_nothing(launcher: LocalLauncher) -> None:
    before = count_open()
    launching = asyncio.create_task(launcher.launch(free("input()"), run_id=next_id()))
    await eventually(lambda: bool(descendants(os.getpid())))

    launching.cancel()

    with pytest.raises(asyncio.CancelledError):
        await launching
    assert descendants(os.getpid()) == []
    assert count_open() == before


async def test_an_agent_dies_with_a_warden_that_is_killed(launcher: LocalLauncher) -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(600)\nprint('up', flush=True); input()"
    started = await launcher.launch(free(code), run_id=next_id())
    await read_line(started.stdout)
    assert isinstance(started.resources, RunResources)
    warden = started.resources.warden.pid
    tree = descendants(warden)

    os.kill(warden, signal.SIGKILL)

    stopped = await started.wait()
    close(started)
    assert (stopped.reason, stopped.state) == ("signal", "crashed")
    assert len(tree) == 2
    await eventually(lambda: not any(map(exists, tree)))


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if {again} and os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
    time.sleep(600)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="environments of others are in /proc")
@pytest.mark.parametrize("again", [False, True])
async def test_what_left_the_session_is_killed_although_the_warden_was(
    launcher: LocalLauncher, again: object
) -> None:
    started = await launcher.launch(free(DAEMON.format(again=again)), run_id=next_id())
    daemon = int(await read_line(started.stdout))
    assert isinstance(started.resources, RunResources)

    os.kill(started.resources.warden.pid, signal.SIGKILL)

    await started.wait()
    close(started)
    await eventually(lambda: not exists(daemon))


@pytest.mark.skipif(sys.platform != "linux", reason="environments of others are in /proc")
async def test_only_the_runs_own_are_killed_with_it(launcher: LocalLauncher) -> None:
    first = await launcher.launch(free("print(1, flush=True); input()"), run_id=next_id())
    other = await launcher.launch(free("print(1, flush=True); input()"), run_id=next_id())
    await read_line(other.stdout)
    assert isinstance(first.resources, RunResources)

    os.kill(first.resources.warden.pid, signal.SIGKILL)
    await first.wait()

    assert other.state == "running"
    await other.stop("stop_requested", 0)
    close(first)
    close(other)


async def test_a_closed_launcher_has_no_runs_left(tmp_path: Path) -> None:
    async with LocalLauncher(root=tmp_path) as launcher:
        runs = [await launcher.launch(free(STUBBORN), run_id=next_id()) for _ in range(3)]

    for each in runs:
        close(each)
    assert [each.state for each in runs] == ["stopped"] * 3
    assert descendants(os.getpid()) == []


async def test_what_a_group_counted_before_anybody_looked_is_why_its_run_ended(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may be killed before the launcher has heard that it runs."""
    need("cgroup")
    agent = spec("import os; os.kill(os.getpid(), 9)", limits={"memory_bytes": 64 << 20})
    monkeypatch.setattr(Group, "counters", lambda _: Counters(oom_kills=1))

    said = await run(launcher, agent)

    assert (said.stopped.reason, said.stopped.state) == ("oom", "paused")


async def test_every_one_of_many_that_run_out_of_memory_at_once_is_told_so(
    launcher: LocalLauncher,
) -> None:
    need("cgroup")
    at_once = asyncio.Semaphore(24)
    agent = spec("b'x' * (200 << 20)", limits={"memory_bytes": 64 << 20})

    async def one() -> str:
        async with at_once:
            started = await launcher.launch(agent, run_id=next_id())
            stopped = await started.wait()
            close(started)
            await started.discard()
            return stopped.reason

    reasons = await asyncio.gather(*(one() for _ in range(1000 if FULL else 24)))

    assert set(reasons) == {"oom"}


def count_open() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def test_crashes_leave_no_zombies_and_no_descriptors(launcher: LocalLauncher) -> None:
    await run(launcher, free("pass"))
    before = count_open()

    for number in range(500 if FULL else 50):
        code = "import os; os.abort()" if number % 2 else "raise SystemExit(1)"
        await run(launcher, free(code))

    assert descendants(os.getpid()) == []
    assert zombies() == []
    assert count_open() == before
    assert launcher.runs == {}


def zombies() -> list[int]:
    """Children of ours that nobody has collected."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and name != str(os.getpid()):
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) == os.getpid():
                found.append(int(name))
    return found


@pytest.mark.parametrize(
    ("status", "inner", "told"),
    [
        (130 << 8, 130 << 8, (130, None)),
        (130 << 8, 2, (None, 2)),
        (130 << 8, None, (None, 2)),
        (192 << 8, None, (None, 64)),
        (193 << 8, None, (193, None)),
        (3 << 8, None, (3, None)),
        (9, None, (None, 9)),
        (None, None, (None, 9)),
    ],
    ids=["a code", "a signal", "unknown", "the last signal", "no signal", "small", "bwrap", "lost"],
)
def test_an_exit_in_a_sandbox_is_told_from_a_signal_where_the_kernel_knows(
    status: int | None, inner: int | None, told: tuple[int | None, int | None]
) -> None:
    assert _decode(Exit(status, inner=inner), sandboxed=True) == told


def test_without_a_sandbox_a_code_is_a_code() -> None:
    assert _decode(Exit(130 << 8), sandboxed=False) == (130, None)
