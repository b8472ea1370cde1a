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


def agents() -> None:
    """Make a group for runs; callgate has stepped aside in its own one by then."""
    this_host()
    Path("/sys/fs/cgroup/gate/agents").mkdir()


def delegate(group: Path) -> None:
    """Have controllers for what is made in a group."""
    (group / "cgroup.subtree_control").write_text("+memory +cpu +pids")


async def test_a_run_has_its_group_in_the_one_that_the_policy_names(
    launcher: LocalLauncher,
) -> None:
    agents()
    code = "print(open('/proc/self/cgroup').read().strip())"
    named = "/sys/fs/cgroup/gate/agents"

    said = await run(launcher, spec(code, limits={"pids": 9}, cgroup_parent=named))
    taken = spec(code, limits={"pids": 9}, cgroup_parent=f"/sys/fs/cgroup/gate/{SELF}")
    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(taken, run_id=next_id())

    assert said.out.startswith("0::/gate/agents/callgate-run-")
    assert "has processes of its own" in refused.value.gaps["cgroup_parent"]


FIND = """
import subprocess, sys
from pathlib import Path
from callgate.launcher.host import cgroup_site
cgroup_site.SYSTEMD, cgroup_site.BUSCTL = Path("/proc"), Path(sys.argv[1])
found = cgroup_site.find()
print(found.v2, *found.v2_controllers, Path("/proc/self/cgroup").read_text().strip())
print(found.site, found.reason, sep="; ")
"""
BUS = """#!/bin/sh
# As systemd does: a scope below the parent, with controllers, and the process in it.
echo "$@" > "$0.said"
scope=/sys/fs/cgroup/user/$8
mkdir $scope
echo ${14} > $scope/cgroup.procs
"""


def beside_another(group: str, *words: str) -> list[str]:
    """Run a program in a group in which there is another process too."""
    this_host()
    Path(group).mkdir()
    delegate(Path("/sys/fs/cgroup"))
    script = 'echo $$ > "$0/cgroup.procs"; sleep 60 & "$@"; code=$?; kill $!; exit $code'
    done = subprocess.run(
        ["/bin/sh", "-c", script, group, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_systemd_gives_callgate_a_scope_of_its_own_where_others_share_the_first(
    root: Path,
) -> None:
    bus = root / "busctl"
    bus.write_text(BUS)
    bus.chmod(0o755)
    Path("/sys/fs/cgroup/user").mkdir()
    delegate(Path("/sys/fs/cgroup/user"))

    words = (sys.executable, "-c", FIND, str(bus))
    found, site = beside_another("/sys/fs/cgroup/user/session-1.scope", *words)

    place, *controllers, own = found.split()
    assert place.startswith("/sys/fs/cgroup/user/callgate-")
    assert place.endswith(".scope")
    assert controllers == ["memory", "cpu", "pids"]
    assert own == f"0::{place.removeprefix('/sys/fs/cgroup')}/{SELF}"
    assert site == f"{place.rpartition('/')[2]}, made by systemd; "
    said = (root / "busctl.said").read_text().split()
    assert said[:6] == [
        *("--system", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"),
        *("org.freedesktop.systemd1.Manager", "StartTransientUnit"),
    ]
    assert said[-4:] == ["Delegate", "b", "true", "0"]


def test_a_service_is_never_moved_away_from_systemd(root: Path) -> None:
    bus = root / "busctl"
    bus.write_text(BUS)
    bus.chmod(0o755)

    words = (sys.executable, "-c", FIND, str(bus))
    found, site = beside_another("/sys/fs/cgroup/other.service", *words)

    assert found.endswith("0::/other.service")
    assert "other processes share callgate's own group" in site
    assert not (root / "busctl.said").exists()


def test_in_a_container_with_a_writable_cgroup_all_of_it_steps_aside(root: Path) -> None:
    inside = 'umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"'
    words = ("unshare", "--cgroup", "--mount", "/bin/sh", "-c", inside, "sh")

    found, site = beside_another(
        "/sys/fs/cgroup/box", *words, sys.executable, "-c", FIND, str(root / "none")
    )

    assert found == f"/sys/fs/cgroup memory cpu pids 0::/{SELF}"
    assert site == "its container's group; "


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


@pytest.mark.parametrize("level", ["strict", "standard", "network"])
async def test_an_old_landlock_is_enough_for_each_level(
    launcher: LocalLauncher, level: Level
) -> None:
    code = """
import os
try:
    open("/x", "w")
except OSError as error:
    print(error.strerror, os.path.exists("/proc/3"), os.getuid())
"""
    started = await launcher.launch(spec(code, level=level), run_id=next_id())
    stopped = await started.wait()
    out = os.read(started.stdout, 100)
    close(started)

    assert this_host().landlock_abi < SCOPE_ABI
    *said, user = out.decode().split()
    assert (stopped.reason, said) == ("exited", ["Read-only", "file", "system", "False"])
    assert is_of_an_agent(int(user))
    assert started.effective["landlock"].status == "enforced"


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
