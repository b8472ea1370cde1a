"""Claims that only another kernel can test: cgroup v2 with controllers; no landlock, or an old one.

`test_kernels.py` boots it and runs these and some of `test_limits.py` there. The process that
runs them is alone in a group that is not the root, as under systemd with `Delegate=yes`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.launcher import LaunchRefused
from callgate.launcher.plan.bwrap import SCOPE_ABI
from callgate.launcher.warden.leftovers import SELF
from tests.containment.agents import MIB, PATIENCE_S, close, eventually, next_id, run, spec
from tests.containment.capabilities import is_of_an_agent, this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from callgate.launcher import LocalLauncher
    from callgate.model import Level


def test_callgate_steps_aside_in_its_own_group_and_gets_every_controller() -> None:
    found = this_host().cgroups

    assert (found.v2, found.v1) == ("/sys/fs/cgroup/gate", {})
    assert found.v2_controllers == ("memory", "cpu", "pids")
    with open("/proc/self/cgroup", encoding="utf-8") as file:  # noqa: PTH123
        assert file.read() == f"0::/gate/{SELF}\n"


async def test_out_of_memory_ends_the_whole_group_at_once(launcher: LocalLauncher) -> None:
    code = """
import os
if os.fork() == 0:
    kept = []
    while True: kept.append(bytearray(4 << 20))
os.wait()
print("outlived its child")
"""
    said = await run(launcher, spec(code, limits={"memory_bytes": 64 * MIB}))

    assert said.out == ""
    assert said.stopped.reason == "oom"


async def test_no_swap_is_left_to_a_group_with_a_limit(launcher: LocalLauncher) -> None:
    code = """
with open("/proc/self/cgroup") as file:
    group = "/sys/fs/cgroup" + file.read().strip().removeprefix("0::")
for name in ("memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "pids.max"):
    try:
        print(open(f"{group}/{name}").read().strip())
    except FileNotFoundError:
        print("no such file")
"""
    limits = {"memory_bytes": 64 * MIB, "cpu_millicores": 250, "pids": 16}
    said = await run(launcher, spec(code, limits=limits))

    memory, swap, group, cpu, pids = said.out.splitlines()
    assert (memory, group, cpu, pids) == (str(64 * MIB), "1", "25000 100000", "16")
    assert swap in ("0", "no such file")


async def test_without_landlock_a_sandbox_is_refused_and_says_so(launcher: LocalLauncher) -> None:
    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(spec("pass", level="standard"), run_id=next_id())

    assert refused.value.gaps["landlock"] == "this kernel has no landlock"


async def test_without_landlock_a_sandbox_that_is_allowed_so_still_holds(
    launcher: LocalLauncher,
) -> None:
    code = """
import os
try:
    open("/x", "w")
except OSError as error:
    print(error.strerror, os.path.exists("/proc/3"), os.getuid())
"""
    agent = spec(code, level="standard", allow_degraded=True)
    started = await launcher.launch(agent, run_id=next_id())
    stopped = await started.wait()
    out = os.read(started.stdout, 100)
    close(started)

    *said, user = out.decode().split()
    assert (stopped.reason, said) == ("exited", ["Read-only", "file", "system", "False"])
    assert is_of_an_agent(int(user))
    assert started.effective["namespaces"].status == "enforced"
    assert started.effective["landlock"].status == "absent"


async def test_an_old_landlock_is_enough_for_standard(launcher: LocalLauncher) -> None:
    code = """
import os
try:
    open("/x", "w")
except OSError as error:
    print(error.strerror, os.path.exists("/proc/3"), os.getuid())
"""
    started = await launcher.launch(spec(code, level="standard"), run_id=next_id())
    stopped = await started.wait()
    out = os.read(started.stdout, 100)
    close(started)

    assert this_host().landlock_abi < SCOPE_ABI
    *said, user = out.decode().split()
    assert (stopped.reason, said) == ("exited", ["Read-only", "file", "system", "False"])
    assert is_of_an_agent(int(user))
    assert started.effective["landlock"].status == "enforced"


@pytest.mark.parametrize("level", ["strict", "network"])
async def test_an_old_landlock_is_too_little_for_other_levels_which_say_so(
    launcher: LocalLauncher, level: Level
) -> None:
    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(spec("pass", level=level), run_id=next_id())

    assert f"{SCOPE_ABI} is needed" in refused.value.gaps["landlock"]


JOINED = """
echo $$ > "$0/cgroup.procs" || exit 9
exec "$@"
"""
CALLGATE = """
import asyncio, sys
from pathlib import Path
from callgate.launcher import LocalLauncher
from tests.containment.agents import MIB, spec
async def main():
    async with LocalLauncher(root=Path(sys.argv[1])) as launcher:
        await launcher.launch(spec("input()", limits={"memory_bytes": 64 * MIB}), run_id="1")
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


def start_in(group: Path, root: Path) -> subprocess.Popen[bytes]:
    """A callgate of its own, started into a group as a service manager does it."""
    return subprocess.Popen(
        ["/bin/sh", "-c", JOINED, group, sys.executable, "-c", CALLGATE, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.fixture
def group() -> Iterator[Path]:
    path = Path("/sys/fs/cgroup/next")
    path.mkdir()
    yield path
    for each in (*path.glob("*/"), path):
        each.rmdir()


@pytest.mark.parametrize("end", ["itself", "killed", "stale"])
async def test_a_group_can_be_joined_again_when_callgate_has_gone(
    group: Path, root: Path, end: str
) -> None:
    if end == "stale":
        (group / SELF).mkdir()
    for _ in range(3):
        with start_in(group, root) as callgate:
            assert callgate.stdin is not None
            assert callgate.stdout is not None
            assert callgate.stdout.readline() == b"up\n"
            assert "memory" in (group / "cgroup.subtree_control").read_text()
            assert (group / SELF / "cgroup.procs").read_text() != ""
            if end == "killed":
                callgate.kill()
            else:
                callgate.stdin.close()
            assert callgate.wait(timeout=PATIENCE_S) == (-9 if end == "killed" else 0)
        await eventually(lambda: [entry for entry in group.iterdir() if entry.is_dir()] == [])

        assert (group / "cgroup.subtree_control").read_text().strip() == ""
        await eventually(lambda: (group / "cgroup.procs").read_text() == "")


async def test_a_stale_child_of_another_user_is_neither_used_nor_removed(
    group: Path, root: Path
) -> None:
    (group / SELF).mkdir()
    os.chown(group / SELF, 1000, 1000)
    with start_in(group, root) as callgate:
        assert callgate.stdin is not None
        assert callgate.stdout is not None
        assert callgate.stdout.readline() == b"up\n"  # with its memory only watched
        assert (group / SELF / "cgroup.procs").read_text() == ""
        callgate.stdin.close()
        assert callgate.wait(timeout=PATIENCE_S) == 0

    assert (group / SELF).is_dir()
