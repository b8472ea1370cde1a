"""The claims that need another kernel than this host's: cgroup v2 with its controllers.

User-mode Linux proves them in seconds where it boots; Debian's own kernel under qemu proves them
anywhere, in minutes. `CALLGATE_VM` names which are asked: `uml` (also if it is not set), `qemu`
or `all`. `debian` is `qemu` and, on the same kernel, whatever of these tests it can have, as root
and as another user: what it lacks is landlock 6, and so the levels `strict` and `network`.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from tests.containment.capabilities import need
from tests.vm.machines import QEMU, UML, Machine

ASKED: Final = os.environ.get("CALLGATE_VM", UML.name)
BOTH: Final = (
    "in_guest.py::test_callgate_steps_aside_in_its_own_group_and_gets_every_controller",
    "in_guest.py::test_a_group_can_be_joined_again_when_callgate_has_gone[itself]",
    "in_guest.py::test_a_group_can_be_joined_again_when_callgate_has_gone[killed]",
    "in_guest.py::test_a_group_can_be_joined_again_when_callgate_has_gone[stale]",
    "in_guest.py::test_a_stale_child_of_another_user_is_neither_used_nor_removed",
    "in_guest.py::test_a_run_has_its_group_in_the_one_that_the_policy_names",
    "in_guest.py::test_systemd_gives_callgate_a_scope_of_its_own_where_others_share_the_first",
    "in_guest.py::test_a_service_is_never_moved_away_from_systemd",
    "in_guest.py::test_in_a_container_with_a_writable_cgroup_all_of_it_steps_aside",
    "in_guest.py::test_out_of_memory_ends_the_whole_group_at_once",
    "in_guest.py::test_no_swap_is_left_to_a_group_with_a_limit",
    "test_limits.py::test_a_child_cannot_allocate_past_64_mib",
    "test_limits.py::test_a_fork_bomb_stops_at_16",
    "test_limits.py::test_a_busy_child_gets_no_more_than_its_share_of_processors",
    "test_limits.py::test_everything_that_a_child_starts_shares_its_memory",
    "test_limits.py::test_an_agent_that_dies_of_refused_forks_ended_by_its_pids_limit",
)
LEVELS: Final = ("strict", "standard", "network")
ABSTRACT: Final = "test_a_child_cannot_reach_an_abstract_socket_of_the_host"
SOCKETS: Final = (
    "test_level_network_listens_only_where_landlock_keeps_it_from_ports",
    "test_level_strict_has_no_internet_socket_on_any_kernel",
)
CLAIMS: Final = {
    UML.name: (
        *BOTH,
        "in_guest.py::test_without_landlock_a_sandbox_is_refused_and_says_so",
        "in_guest.py::test_without_landlock_a_sandbox_that_is_allowed_so_still_holds",
    ),
    QEMU.name: (
        *BOTH,
        *(
            f"in_guest.py::test_an_old_landlock_is_enough_for_each_level[{level}]"
            for level in LEVELS
        ),
        *(f"test_sandbox.py::{test}[landlock-2]" for test in SOCKETS),
        *(f"test_sandbox.py::{ABSTRACT}[landlock-2-{level}]" for level in LEVELS),
    ),
}
PYTEST: Final = (
    *("-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"),
    *("-p", "no:hypothesispytest", "--confcutdir=tests/containment"),
)
WHOLE: Final = tuple(
    f"tests/containment/test_{name}.py"
    for name in ("counts", "groups", "limits", "runs", "sandbox", "workspace")
)
MAY_LACK: Final = ("landlock: ", "root: ", "freezer", "exit_status", "node", "not in a virtual")
"""Of what Debian's kernel is asked; the last where the system's interpreter takes the place."""
AT_LEAST: Final = {0: 60, 1000: 50}
"""Passed when this was written, rounded down: skips must not eat the proof."""
WHOLE_S: Final = 1500.0


@pytest.mark.parametrize("machine", [UML, QEMU], ids=lambda machine: machine.name)
def test_every_claim_about_cgroup_v2_holds_in_another_kernel(machine: Machine) -> None:
    asked = {"debian": (QEMU.name,), "all": (UML.name, QEMU.name)}.get(ASKED, (ASKED,))
    if machine.name not in asked:
        pytest.skip(f"{machine.name} was not asked for")
    need(machine.name, "root")
    claims = [f"tests/containment/{claim}" for claim in CLAIMS[machine.name]]

    ended = machine.run(
        [sys.executable, *PYTEST, *claims], env={"CALLGATE_REQUIRE": "cgroup,bwrap,seccomp"}
    )

    assert ended.exit_code == 0, ended.output
    passed = re.search(r"^(\d+) passed in ", ended.output, re.MULTILINE)
    assert passed is not None, ended.output
    assert int(passed[1]) == len(claims)


@pytest.mark.parametrize("uid", [0, 1000])
def test_what_debians_kernel_can_hold_it_holds(uid: int) -> None:
    if ASKED not in ("debian", "all"):
        pytest.skip("the whole on Debian's kernel was not asked for")
    need(QEMU.name, "root")
    env = {"CALLGATE_REQUIRE": "linux,bwrap,tmpfs,seccomp,landlock_files,cgroup,cgroup_v2"}
    python = sys.executable
    if uid and not _is_open(Path(python).resolve()):
        # An interpreter below /root, which only root can run: the system's has the same packages.
        python = f"/usr/bin/python3.{sys.version_info.minor}"
        env["PYTHONPATH"] = sysconfig.get_path("purelib")
        assert Path(python).exists(), f"uid {uid} cannot run {sys.executable}, and has no {python}"

    ended = QEMU.run([python, *PYTEST, "-rs", *WHOLE], uid=uid, env=env, timeout_s=WHOLE_S)

    assert ended.exit_code == 0, ended.output
    skipped = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", ended.output, re.MULTILINE)
    assert [each for each in skipped if not each.startswith(MAY_LACK)] == []
    passed = re.search(r"^(\d+) passed", ended.output, re.MULTILINE)
    assert passed is not None, ended.output
    assert int(passed[1]) >= AT_LEAST[uid]


def _is_open(program: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (program, *program.parents))
