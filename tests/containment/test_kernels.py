"""The claims that need another kernel than this host's: cgroup v2 with its controllers.

User-mode Linux proves them in seconds where it boots; Debian's own kernel under qemu proves them
anywhere, in minutes. `CALLGATE_VM` names which are asked: `uml` (also if it is not set), `qemu`
or `all`.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final

import pytest

from tests.containment.capabilities import need
from tests.vm.machines import QEMU, UML, Machine

ASKED: Final = os.environ.get("CALLGATE_VM", UML.name)
BOTH: Final = (
    "in_guest.py::test_callgate_steps_aside_in_its_own_group_and_gets_every_controller",
    "in_guest.py::test_out_of_memory_ends_the_whole_group_at_once",
    "in_guest.py::test_no_swap_is_left_to_a_group_with_a_limit",
    "test_limits.py::test_a_child_cannot_allocate_past_64_mib",
    "test_limits.py::test_a_fork_bomb_stops_at_16",
    "test_limits.py::test_a_busy_child_gets_no_more_than_its_share_of_processors",
    "test_limits.py::test_everything_that_a_child_starts_shares_its_memory",
    "test_limits.py::test_an_agent_that_dies_of_refused_forks_ended_by_its_pids_limit",
)
CLAIMS: Final = {
    UML.name: (
        *BOTH,
        "in_guest.py::test_without_landlock_a_sandbox_is_refused_and_says_so",
        "in_guest.py::test_without_landlock_a_sandbox_that_is_allowed_so_still_holds",
    ),
    QEMU.name: (
        *BOTH,
        "in_guest.py::test_an_old_landlock_is_enough_for_standard",
        "in_guest.py::test_an_old_landlock_is_too_little_for_strict_which_says_so",
    ),
}
PYTEST: Final = (
    *(sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"),
    *("-p", "no:hypothesispytest", "--confcutdir=tests/containment"),
)


@pytest.mark.parametrize("machine", [UML, QEMU], ids=lambda machine: machine.name)
def test_every_claim_about_cgroup_v2_holds_in_another_kernel(machine: Machine) -> None:
    if ASKED not in (machine.name, "all"):
        pytest.skip(f"{machine.name} was not asked for")
    need(machine.name, "root")
    claims = [f"tests/containment/{claim}" for claim in CLAIMS[machine.name]]

    ended = machine.run([*PYTEST, *claims], env={"CALLGATE_REQUIRE": "cgroup,bwrap,seccomp"})

    assert ended.exit_code == 0, ended.output
    passed = re.search(r"^(\d+) passed in ", ended.output, re.MULTILINE)
    assert passed is not None, ended.output
    assert int(passed[1]) == len(claims)
