"""Groups themselves: written, read back, killed, removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.launcher.host.cgroup import CgroupError, Group, group_for
from callgate.launcher.plan.cgroup_plan import CgroupPlan, Setting
from tests.containment.agents import MIB, PATIENCE_S
from tests.containment.capabilities import need, this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

FORKS = "import os, time\nfor _ in range(3):\n  if os.fork() == 0: os.setsid()\ntime.sleep(600)"


JOIN = ("/bin/sh", "-c", 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"', "join")


def wait_for(group: Group, count: int) -> None:
    """Until so many processes are in it."""
    until = time.monotonic() + PATIENCE_S
    while len(group.processes()) != count:
        assert time.monotonic() < until
        time.sleep(0.005)


def made(plan: CgroupPlan) -> Group:
    group = group_for(this_host().cgroups, plan, f"test-{os.getpid()}")
    group.make(plan)
    return group


@pytest.fixture
def kill_by_v2() -> Iterator[Group]:
    need("cgroup_v2")
    group = made(CgroupPlan(v2=True))
    yield group
    group.remove()


@pytest.fixture
def kill_by_freezer() -> Iterator[Group]:
    need("freezer")
    group = made(CgroupPlan(v2=False, v1=("freezer",)))
    yield group
    group.remove()


@pytest.mark.parametrize("kind", ["kill_by_v2", "kill_by_freezer"])
def test_a_kill_ends_everybody_in_a_group_whatever_session_they_are_in(
    request: pytest.FixtureRequest, kind: str
) -> None:
    group: Group = request.getfixturevalue(kind)
    process = subprocess.Popen([*JOIN, str(group.paths[0]), sys.executable, "-ISc", FORKS])
    wait_for(group, 8)

    group.kill()

    assert process.wait(PATIENCE_S) == -9
    wait_for(group, 0)


def one(controller: str, file: dict[str, str], value: str, *, rounded: bool = False) -> CgroupPlan:
    """A plan with one setting, wherever this host has the controller."""
    need("cgroup")
    version = this_host().cgroups.holder(controller)
    if version == "v2":
        setting = Setting("v2", controller, file["v2"], value, rounded=rounded)
        return CgroupPlan(v2=True, settings=(setting,))
    setting = Setting("v1", controller, file["v1"], value, rounded=rounded)
    return CgroupPlan(v2=False, v1=(controller,), settings=(setting,))


PIDS = {"v1": "pids.max", "v2": "pids.max"}
MEMORY = {"v1": "memory.limit_in_bytes", "v2": "memory.max"}


def test_a_value_that_the_kernel_refuses_is_an_error_and_leaves_no_group() -> None:
    with pytest.raises(CgroupError) as refused:
        made(one("pids", PIDS, "nonsense"))

    file = Path(refused.value.filename)
    assert file.name == "pids.max"
    assert not file.parent.exists()


def test_a_value_that_reads_back_otherwise_is_an_error() -> None:
    with pytest.raises(CgroupError, match="wrote 010, reads 8"):
        made(one("pids", PIDS, "010"))


def test_memory_is_kept_in_whole_pages() -> None:
    plan = one("memory", MEMORY, str(MIB + 1), rounded=True)

    group = made(plan)

    (folder,) = group.paths
    assert (folder / plan.settings[0].file).read_text() == f"{MIB}\n"
    group.remove()
    assert not folder.exists()
