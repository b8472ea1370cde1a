"""The claims about cgroup v2, run in a kernel that has its controllers.

User-mode Linux boots on this host's own files, read-only, to a script that mounts what is
needed and runs pytest. The last line is a sentinel: without it nothing was proven.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.containment.capabilities import need

REPOSITORY = Path(__file__).parents[2]
SENTINEL = "callgate-uml-ended-with"
BOOT_TIMEOUT_S = 300.0
"""It takes 20 s on two idle processors."""
EXPECTED = 10

CLAIMS = (
    "in_uml.py",
    "test_limits.py::test_a_child_cannot_allocate_past_64_mib",
    "test_limits.py::test_a_fork_bomb_stops_at_16",
    "test_limits.py::test_a_busy_child_gets_no_more_than_its_share_of_processors",
    "test_limits.py::test_everything_that_a_child_starts_shares_its_memory",
    "test_limits.py::test_an_agent_that_dies_of_refused_forks_ended_by_its_pids_limit",
)

INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
export CALLGATE_REQUIRE=cgroup,bwrap,seccomp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run  # not /tmp: the checkout may be below it
mkdir /run/scratch
export HOME=/run/scratch TMPDIR=/run/scratch
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+memory +cpu +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/gate
cd {repository}
sh -c 'echo $$ > /sys/fs/cgroup/gate/cgroup.procs; exec {command}' 2>&1
echo {sentinel} $?
echo o > /proc/sysrq-trigger
sleep 60
"""


def boot(script: Path) -> str:
    """Everything that was printed until the power went off."""
    done = subprocess.run(
        [
            *("linux.uml", "mem=512M", "rootfstype=hostfs", "rootflags=/", "ro"),
            *(f"init={script}", "con=null", "con0=fd:0,fd:1", "ignore_os_error"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=BOOT_TIMEOUT_S,
        env={**os.environ, "TMPDIR": str(script.parent)},
    )
    return done.stdout.decode("utf-8", "replace")


def test_every_claim_about_cgroup_v2_holds_in_user_mode_linux(tmp_path: Path) -> None:
    need("uml", "root")
    claims = [str(Path("tests/containment") / claim) for claim in CLAIMS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [
        "--color=no",
        "--confcutdir=tests/containment",
        "-p",
        "no:hypothesispytest",
        *claims,
    ]
    script = tmp_path / "init"
    script.write_text(
        INIT.format(repository=REPOSITORY, command=shlex.join(command), sentinel=SENTINEL)
    )
    script.chmod(0o755)

    output = boot(script)

    assert f"{SENTINEL} 0" in output, output
    passed = re.search(r"^(\d+) passed in ", output, re.MULTILINE)
    assert passed is not None, output
    assert int(passed[1]) == EXPECTED
