"""Claims that only another kernel can test: cgroup v2 with controllers; no landlock, or an old one.

`test_kernels.py` boots it and runs these and some of `test_limits.py` there. The process that
runs them is alone in a group that is not the root, as under systemd with `Delegate=yes`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from callgate.launcher import LaunchRefused
from callgate.launcher.host.cgroup_site import SELF
from callgate.launcher.plan.bwrap import SCOPE_ABI
from tests.containment.agents import MIB, close, next_id, run, spec
from tests.containment.capabilities import is_of_an_agent, this_host

if TYPE_CHECKING:
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
