"""The life of contained runs: grace, pause and resume, terminals, what is removed and when."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from callgate.cli.terminal import Size, set_window_size
from callgate.launcher import LaunchRefused, LocalLauncher
from callgate.launcher.local import run_resources
from callgate.launcher.local.workspace import RunDirectory, sweep
from callgate.launcher.warden.tree import descendants
from callgate.model import MountSpec, ResourceLimits
from tests.conftest import FULL
from tests.containment.agents import (
    MIB,
    PATIENCE_S,
    close,
    eventually,
    exists,
    next_id,
    read_line,
    run,
    spec,
)
from tests.containment.capabilities import need, this_host

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.errors import LimitInfo
    from callgate.model import Level

OPEN = "/proc/self/fd"
ASKED = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
print("bye", flush=True)
"""


@pytest.mark.usefixtures("sandbox")
async def test_the_agent_in_a_sandbox_is_asked_to_end_not_the_sandbox(
    launcher: LocalLauncher,
) -> None:
    started = await launcher.launch(spec(ASKED, level="strict"), run_id=next_id())
    await read_line(started.stdout)

    stopped = await started.stop("stop_requested")

    assert await read_line(started.stdout) == "bye\n"
    close(started)
    assert (stopped.reason, stopped.exit_code) == ("stop_requested", 0)


@pytest.mark.usefixtures("sandbox")
async def test_a_signal_that_ends_an_agent_in_a_sandbox_is_told(launcher: LocalLauncher) -> None:
    said = await run(launcher, spec("import os; os.kill(os.getpid(), 11)", level="standard"))

    assert (said.stopped.reason, said.stopped.signal) == ("signal", signal.SIGSEGV)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("code", [3, 130, 137, 192, 193, 255])
async def test_a_code_that_an_agent_in_a_sandbox_exits_with_is_not_a_signal(
    launcher: LocalLauncher, code: int
) -> None:
    need("exit_status")
    said = await run(launcher, spec(f"import os; os._exit({code})", level="standard"))

    assert (said.stopped.reason, said.stopped.exit_code, said.stopped.signal) == (
        "exited",
        code,
        None,
    )


@pytest.mark.usefixtures("sandbox")
async def test_a_program_that_the_sandbox_does_not_show_is_a_refusal(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    script = tmp_path / "agent"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    agent = msgspec.structs.replace(spec("", level="standard"), command=(str(script),))

    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(agent, run_id=next_id())

    assert refused.value.stage == "exec"


@pytest.mark.usefixtures("sandbox")
async def test_a_mount_that_does_not_exist_is_a_refusal(launcher: LocalLauncher) -> None:
    agent = spec("", level="standard", mounts=(MountSpec("/no/such/place"),))

    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(agent, run_id=next_id())

    assert "/no/such/place" in str(refused.value)


EAT = """
import os, sys
path = "/workspace/note"
if os.path.exists(path):
    print(open(path).read(), flush=True)
else:
    open(path, "w").write("resumed")
    kept = []
    while True: kept.append(bytearray(4 << 20))
"""


@pytest.mark.usefixtures("sandbox", "groups")
@pytest.mark.parametrize("kind", ["tmpfs", "directory"])
async def test_a_run_that_is_out_of_memory_is_paused_and_goes_on_in_its_workspace(
    launcher: LocalLauncher, kind: str
) -> None:
    limits = {"memory_bytes": 64 * MIB} | ({"disk_bytes": MIB} if kind == "tmpfs" else {})
    agent = spec(EAT, level="standard", limits=limits)
    first = await launcher.launch(agent, run_id=next_id())
    assert (await first.wait()).state == first.state == "paused"
    close(first)

    second = await launcher.launch(agent, run_id=next_id(), resume=first)

    assert await read_line(second.stdout) == "resumed\n"
    stopped = await second.wait()
    close(second)
    assert (stopped.reason, stopped.exit_code) == ("exited", 0)


@pytest.mark.usefixtures("sandbox", "groups")
async def test_a_resumed_run_has_the_memory_that_the_policy_gives_it_now(
    launcher: LocalLauncher,
) -> None:
    code = EAT + "kept = bytearray(b'x') * (96 << 20); print('enough', flush=True)"
    small = spec(code, level="standard", limits={"memory_bytes": 64 * MIB})
    large = spec(code, level="standard", limits={"memory_bytes": 256 * MIB})
    first = await launcher.launch(small, run_id=next_id())
    await first.wait()
    close(first)

    second = await launcher.launch(large, run_id=next_id(), resume=first)

    assert await read_line(second.stdout) == "resumed\n"
    assert await read_line(second.stdout) == "enough\n"
    await second.wait()
    close(second)


@pytest.mark.usefixtures("sandbox", "groups")
async def test_a_run_begins_anew_if_its_sandbox_has_changed(
    launcher: LocalLauncher, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"memory_bytes": 64 * MIB}
    first = await launcher.launch(spec(EAT, level="standard", limits=limits), run_id=next_id())
    await first.wait()
    close(first)
    looks = "import os; print(os.listdir('/workspace'), os.path.exists('/var/lib'))"
    changed = spec(looks, level="standard", limits=limits, mounts=(MountSpec("/var/lib"),))

    second = await launcher.launch(changed, run_id=next_id(), resume=first)

    assert await read_line(second.stdout) == "[] True\n"
    await second.wait()
    close(second)
    assert "begins anew" in caplog.text
    assert (first.state, list_directory(root)) == ("stopped", [])


@pytest.mark.usefixtures("sandbox", "groups")
async def test_a_paused_run_keeps_its_workspace_until_it_is_given_up(
    launcher: LocalLauncher, root: Path
) -> None:
    agent = spec(EAT, level="standard", limits={"memory_bytes": 64 * MIB})
    paused = await launcher.launch(agent, run_id=next_id())
    await paused.wait()
    close(paused)
    kept = list_directory(root)

    await paused.discard()

    assert len(kept) == 1
    assert list_directory(root) == []
    assert paused.state == "stopped"


async def test_a_run_that_is_not_paused_cannot_be_resumed(launcher: LocalLauncher) -> None:
    agent = spec("pass", contained=False)
    ended = await launcher.launch(agent, run_id=next_id())
    await ended.wait()
    close(ended)

    with pytest.raises(ValueError, match="paused"):
        await launcher.launch(agent, run_id=next_id(), resume=ended)


def list_directory(path: Path | str) -> list[str]:
    return os.listdir(path)  # noqa: PTH208


def groups_of(name: str) -> list[str]:
    """Groups of runs whose id has the name in it."""
    host = this_host().cgroups
    places = {host.v2, *host.v1.values()} - {None}
    return [path for place in places for path in os.listdir(place) if name in path]  # noqa: PTH208


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("level", ["privileged", "standard"])
async def test_crashes_leave_no_group_no_workspace_and_no_descriptor(
    launcher: LocalLauncher, root: Path, level: Level
) -> None:
    limits = {"memory_bytes": 64 * MIB, "disk_bytes": MIB, "pids": 16}
    agent = spec("import os; os.abort()", level=level, limits=limits)
    await run(launcher, agent)
    before = len(list_directory(OPEN))

    for _ in range(250 if FULL else 10):
        await run(launcher, agent)

    assert len(list_directory(OPEN)) == before
    assert list_directory(root) == []
    assert groups_of(f"run-{os.getpid()}-") == []
    assert descendants(os.getpid()) == []


GREEDY = """
import os, time
kept = bytearray(b"x") * (96 << 20)
print(os.environ.get("CALLGATE_WORKSPACE"), flush=True)
time.sleep(60)
"""


async def test_memory_that_no_group_holds_is_watched_and_the_run_ended(tmp_path: Path) -> None:
    warnings: list[LimitInfo] = []
    agent = spec(GREEDY, limits={"memory_bytes": 64 * MIB}, monitor_interval_ns=100_000_000)
    async with LocalLauncher(root=tmp_path) as launcher:
        without_groups(launcher)
        started = await launcher.launch(agent, run_id=next_id(), on_warning=warnings.append)
        async with asyncio.timeout(PATIENCE_S):
            stopped = await started.wait()
        close(started)

    assert started.effective["memory"].status == "degraded"
    assert (stopped.reason, stopped.state) == ("memory_limit", "crashed")
    assert stopped.limit is not None
    assert (stopped.limit.type, stopped.limit.limit) == ("memory", 64 * MIB)
    assert (stopped.limit.usage or 0) > 64 * MIB


TALKATIVE = """
import signal, socket
server = socket.create_server(("127.0.0.1", 0))
kept = [socket.create_connection(server.getsockname()) for _ in range(3)]
signal.pause()
"""


@pytest.mark.parametrize("level", ["privileged", "network", "standard"])
async def test_a_child_with_more_connections_than_it_may_have_is_ended(
    launcher: LocalLauncher, level: Level
) -> None:
    if level != "privileged":
        need("bwrap", "seccomp", "landlock_files")
    if level == "network":
        need("landlock")  # else it cannot listen
    limits = {"connections": 2}
    limited = spec(TALKATIVE, level=level, limits=limits, monitor_interval_ns=50_000_000)

    said = await run(launcher, limited)

    limit = said.stopped.limit
    assert said.stopped.reason == "connections_limit"
    assert limit is not None
    # A connection has two ends in a network namespace of its own, and here both are the child's.
    assert (limit.type, limit.limit) == ("connections", 2)
    assert limit.usage in (3, 4, 5, 6)


async def test_a_limit_of_connections_is_held_at_level_strict_where_there_are_none(
    launcher: LocalLauncher,
) -> None:
    need("bwrap", "seccomp", "landlock_files")

    said = await run(launcher, spec(TALKATIVE, level="strict", limits={"connections": 2}))

    assert (said.stopped.reason, said.stopped.exit_code) == ("exited", 1)
    assert "PermissionError" in said.err


def without_groups(launcher: LocalLauncher) -> None:
    """As on a host where callgate may make no groups."""
    launcher._tried.add("groups")


async def test_a_workspace_that_is_only_watched_ends_the_run_when_it_is_full(
    launcher: LocalLauncher,
) -> None:
    code = """
import os, time
for name in ("one", "other"):
    with open(os.path.join(os.environ["CALLGATE_WORKSPACE"], name), "wb") as file:
        file.write(bytes(1 << 20))
time.sleep(60)
"""
    agent = spec(code, limits={"disk_bytes": MIB}, monitor_interval_ns=100_000_000)
    started = await launcher.launch(agent, run_id=next_id())

    async with asyncio.timeout(PATIENCE_S):
        stopped = await started.wait()

    close(started)
    assert started.effective["disk"].status == "degraded"
    assert (stopped.reason, stopped.state) == ("disk_limit", "crashed")


@pytest.mark.usefixtures("groups")
async def test_a_warning_comes_before_the_limit(launcher: LocalLauncher) -> None:
    warnings: list[LimitInfo] = []
    code = "kept = bytearray(b'x') * (60 << 20); input()"
    agent = spec(code, limits={"memory_bytes": 64 * MIB}, monitor_interval_ns=100_000_000)
    started = await launcher.launch(agent, run_id=next_id(), on_warning=warnings.append)

    await eventually(lambda: bool(warnings))

    await started.stop("stop_requested", 0)
    close(started)
    assert [(each.type, each.limit) for each in warnings] == [("memory", 64 * MIB)]


@pytest.mark.usefixtures("groups")
async def test_usage_is_seen_while_a_run_lives(launcher: LocalLauncher) -> None:
    code = "import os\nkept = bytearray(b'x') * (32 << 20)\nos.fork()\ninput()"
    agent = spec(code, limits={"memory_bytes": 128 * MIB}, monitor_interval_ns=50_000_000)
    started = await launcher.launch(agent, run_id=next_id())

    await eventually(lambda: started.usage().pids == 2)

    usage = started.usage()
    await started.stop("stop_requested", 0)
    close(started)
    assert 32 * MIB <= (usage.memory_bytes or 0) < 64 * MIB
    assert usage.connections == 0


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("level", ["privileged", "standard"])
async def test_ctrl_c_reaches_an_agent_at_a_terminal_and_nobody_else(
    launcher: LocalLauncher, level: Level
) -> None:
    code = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print(os.isatty(0), os.isatty(1), os.isatty(2), flush=True)
signal.sigwait({signal.SIGINT})
print("interrupted", flush=True)
"""
    agent = msgspec.structs.replace(spec(code, level=level), terminal=True)
    started = await launcher.launch(agent, run_id=next_id())
    assert await read_line(started.stdout) == "True True True\r\n"

    os.write(started.stdin, b"\x03")

    assert "interrupted" in await read_line(started.stdout)
    stopped = await started.wait()
    close(started)
    assert (stopped.reason, stopped.exit_code) == ("exited", 0)


@pytest.mark.usefixtures("sandbox")
async def test_a_window_that_changes_is_seen_in_the_sandbox(launcher: LocalLauncher) -> None:
    code = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
print("up", flush=True)
signal.sigwait({signal.SIGWINCH})
print(*os.get_terminal_size(), flush=True)
"""
    agent = msgspec.structs.replace(spec(code, level="standard"), terminal=True)
    started = await launcher.launch(agent, run_id=next_id())
    await read_line(started.stdout)

    set_window_size(started.stdin, Size(rows=33, columns=101))

    assert await read_line(started.stdout) == "101 33\r\n"
    await started.wait()
    close(started)


@pytest.mark.usefixtures("groups")
async def test_a_sweep_ends_and_removes_what_a_killed_callgate_and_warden_left(
    root: Path,
) -> None:
    launcher = LocalLauncher(root=root)
    code = (
        "import os, time\nif os.fork() == 0: os.setsid()\nprint('up', flush=True)\ntime.sleep(600)"
    )
    agent = spec(code, limits={"memory_bytes": 64 * MIB, "disk_bytes": MIB})
    left = await launcher.launch(agent, run_id=next_id())
    await read_line(left.stdout)
    held = left.resources
    assert isinstance(held, run_resources.RunResources)
    assert held.directory is not None
    tree = descendants(held.warden.pid)
    forget(held.warden.pid, held.directory)

    swept = sweep(root)

    assert swept == 1
    assert list_directory(root) == []
    assert groups_of(left.run_id) == []
    await eventually(lambda: not any(map(exists, tree)))
    close(left)
    await left.wait()


def forget(warden: int, directory: RunDirectory) -> None:
    """As if warden and callgate had been killed in the same moment."""
    os.kill(warden, signal.SIGKILL)
    os.waitid(os.P_PID, warden, os.WEXITED | os.WNOWAIT)
    directory.close()


async def test_a_sweep_leaves_living_runs_alone(launcher: LocalLauncher, root: Path) -> None:
    agent = spec("input()", limits={"disk_bytes": MIB})
    living = await launcher.launch(agent, run_id=next_id())

    swept = sweep(root)

    assert swept == 0
    assert len(list_directory(root)) == 1
    await living.stop("stop_requested", 0)
    close(living)


async def test_a_refused_launch_leaves_nothing_on_disk(launcher: LocalLauncher, root: Path) -> None:
    agent = spec("pass", limits={"disk_bytes": MIB, "open_files": 2**31})

    with pytest.raises(LaunchRefused):
        await launcher.launch(agent, run_id=next_id())

    assert list_directory(root) == []


async def test_a_launch_that_is_cancelled_at_any_await_leaves_nothing_on_disk(
    launcher: LocalLauncher, root: Path
) -> None:
    agent = spec("input()", limits={"disk_bytes": MIB, "memory_bytes": 64 * MIB})
    await run(launcher, spec("pass", limits={"disk_bytes": MIB}))  # the host is known then
    for turns in range(0, 40, 2):
        launching = asyncio.create_task(launcher.launch(agent, run_id=next_id()))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        launching.cancel()
        with suppress(asyncio.CancelledError):
            started = await launching
            await started.stop("stop_requested", 0)
            close(started)

    assert list_directory(root) == []
    assert groups_of(f"run-{os.getpid()}-") == []
    assert descendants(os.getpid()) == []


async def test_a_launch_that_is_cancelled_while_a_thread_prepares_it_leaves_nothing(
    launcher: LocalLauncher, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    make = run_resources.make

    def slowly(*arguments: Any) -> Any:
        made = make(*arguments)
        entered.set()
        go_on.wait(PATIENCE_S)
        return made

    monkeypatch.setattr(run_resources, "make", slowly)
    agent = spec("input()", limits={"disk_bytes": MIB})
    launching = asyncio.create_task(launcher.launch(agent, run_id=next_id()))
    await eventually(entered.is_set)
    launching.cancel()
    await asyncio.sleep(0)
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await launching

    assert list_directory(root) == []


async def test_a_closed_launcher_starts_nothing(root: Path) -> None:
    launcher = LocalLauncher(root=root)
    await launcher.aclose()

    with pytest.raises(ValueError, match="closed"):
        await launcher.launch(spec("pass", contained=False), run_id=next_id())


async def test_a_workspace_with_locked_directories_is_removed_all_the_same(
    launcher: LocalLauncher, root: Path, tmp_path: Path
) -> None:
    code = f"""
import os
os.chdir(os.environ["CALLGATE_WORKSPACE"])
os.makedirs("a/b")
os.symlink({str(tmp_path)!r}, "a/link")
os.chmod("a/b", 0)
os.chmod("a", 0)
"""
    os.chmod(tmp_path, 0o750)  # noqa: PTH101, S103  # not what a removal would make of it

    await run(launcher, spec(code, limits={"disk_bytes": MIB}))

    assert list_directory(root) == []
    assert os.stat(tmp_path).st_mode & 0o777 == 0o750  # noqa: PTH116


async def test_a_level_that_cannot_be_had_is_refused_with_every_gap(root: Path) -> None:
    need("linux")
    agent = spec("pass", level="strict", limits={"memory_bytes": MIB})
    async with LocalLauncher(root=root) as launcher:
        launcher._tried |= {"groups", "sandbox"}  # as on a host that has neither

        with pytest.raises(LaunchRefused) as refused:
            await launcher.launch(agent, run_id=next_id())

    assert refused.value.stage == "plan"
    wanted = {"namespaces", "network", "filesystem", "seccomp", "landlock", "memory"}
    assert refused.value.gaps.keys() - {"uid_drop"} == wanted


async def test_degraded_containment_is_allowed_only_explicitly_and_said_aloud(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    need("linux")
    agent = spec("print('ran')", level="standard", allow_degraded=True)
    async with LocalLauncher(root=root) as launcher:
        launcher._tried |= {"groups", "sandbox"}

        said = await run(launcher, agent)

    assert said.out == "ran\n"
    (record,) = [each for each in caplog.records if each.name == "callgate.launcher"]
    assert record.levelname == "ERROR"
    assert "seccomp" in record.getMessage()


@pytest.mark.usefixtures("sandbox", "groups")
async def test_a_run_says_what_holds(launcher: LocalLauncher) -> None:
    limits = msgspec.structs.asdict(
        ResourceLimits(memory_bytes=64 * MIB, cpu_millicores=500, pids=16, disk_bytes=MIB)
    )
    started = await launcher.launch(spec("", level="strict", limits=limits), run_id=next_id())
    await started.wait()
    close(started)

    held = {name for name, effect in started.effective.items() if effect.status == "enforced"}
    absent = {name for name, effect in started.effective.items() if effect.status == "absent"}
    assert held == {
        *("tree_kill", "namespaces", "network", "filesystem", "seccomp", "landlock", "uid_drop"),
        *("memory", "cpu", "pids", "disk", "environment", "open_files"),
    }
    assert {started.effective[name].reason for name in absent} == {"not asked for"}
