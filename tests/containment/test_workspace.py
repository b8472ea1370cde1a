"""What a run may keep on disk: held by the kernel, or seen by a look, at the latest at its end."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from callgate.launcher import LocalLauncher
from callgate.launcher.plan.capabilities import Capability
from tests.containment.agents import MIB, PATIENCE_S, close, next_id, run, spec
from tests.containment.capabilities import need, this_host

if TYPE_CHECKING:
    from pathlib import Path

IN_WORKSPACE = "import os, signal, sys, time; os.chdir(os.environ['CALLGATE_WORKSPACE'])\n"


@pytest.mark.parametrize(
    ("limits", "code", "reason", "kind"),
    [
        (
            {"disk_bytes": MIB},
            "for n in range(4): open(str(n), 'wb').write(bytes(1 << 19))",
            "disk_limit",
            "disk",
        ),
        (
            {"files": 20},
            "for n in range(21): open(str(n), 'wb').close()",
            "file_count_limit",
            "files",
        ),
    ],
)
async def test_a_run_too_short_for_a_sample_is_judged_by_what_it_leaves(
    launcher: LocalLauncher, limits: Any, code: str, reason: str, kind: str
) -> None:
    hour_ns = 3_600_000_000_000
    agent = spec(IN_WORKSPACE + code, limits=limits, monitor_interval_ns=hour_ns)

    said = await run(launcher, agent)

    assert (said.stopped.reason, said.stopped.state, said.stopped.exit_code) == (
        reason,
        "crashed",
        0,
    )
    limit = said.stopped.limit
    assert limit is not None
    assert (limit.type, limit.limit) == (kind, next(iter(limits.values())))
    assert isinstance(limit.usage, int)
    assert limit.usage > limits[f"{kind}_bytes" if kind == "disk" else kind]


@pytest.mark.parametrize("level", ["privileged", "standard"])
async def test_as_many_files_as_are_allowed_are_no_failure_and_counted(
    launcher: LocalLauncher, level: Any
) -> None:
    if level != "privileged":
        need("bwrap", "seccomp", "landlock_files", "tmpfs")
    code = IN_WORKSPACE + "for n in range(20): open(str(n), 'wb').write(b'x')"
    agent = spec(code, level=level, limits={"files": 20, "disk_bytes": MIB})

    said = await run(launcher, agent)

    assert (said.err, said.stopped.reason) == ("", "exited")
    usage = said.stopped.usage
    assert usage.files == 20
    assert 20 * 4096 <= (usage.disk_bytes or 0) <= MIB


HELD = IN_WORKSPACE + (
    "held = []\n"
    "for n in range(4):\n"
    "    held.append(open(str(n), 'wb', 0)); held[-1].write(bytes(1 << 19)); os.unlink(str(n))\n"
    "    if n == 0: print(len(os.listdir('.')), flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.mark.parametrize("level", ["privileged", "standard"])
async def test_deleted_files_that_are_held_open_count_where_a_workspace_is_only_watched(
    root: Path, level: Any
) -> None:
    if level != "privileged":
        need("bwrap", "seccomp", "landlock_files")
    agent = spec(HELD, level=level, limits={"disk_bytes": MIB}, monitor_interval_ns=50_000_000)
    async with LocalLauncher(root=root) as launcher:
        launcher._tried |= {"groups", "sandbox"}
        no_tmpfs = Capability(False, "none, for this test")
        launcher._host = msgspec.structs.replace(this_host(), tmpfs=no_tmpfs)
        started = await launcher.launch(agent, run_id=next_id())
        async with asyncio.timeout(PATIENCE_S):
            stopped = await started.wait()
        out = os.read(started.stdout, 10)
        close(started)

    assert out == b"0\n"
    assert (stopped.reason, stopped.state) == ("disk_limit", "crashed")
    assert stopped.limit is not None
    assert (stopped.limit.usage or 0) > MIB


@pytest.mark.parametrize(
    ("before", "reason", "out"),
    [
        ("", "exited", "File too large\n"),
        ("signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n", "disk_limit", ""),
    ],
)
async def test_no_file_outgrows_a_watched_workspace_also_between_two_looks(
    launcher: LocalLauncher, before: str, reason: str, out: str
) -> None:
    code = f"""
{before}file = open("big", "wb", 0)
try:
    for _ in range(5): file.write(bytes(1 << 18))
except OSError as error: print(error.strerror)
"""
    agent = spec(IN_WORKSPACE + code, limits={"disk_bytes": MIB})

    said = await run(launcher, agent)

    assert (said.out, said.stopped.reason) == (out, reason)


@pytest.mark.usefixtures("groups")
async def test_a_disk_that_nobody_wrote_is_held_by_the_kernel_below_the_memory(
    launcher: LocalLauncher,
) -> None:
    need("bwrap", "seccomp", "landlock_files", "tmpfs")
    code = IN_WORKSPACE + (
        "count = 0\n"
        "try:\n"
        "    with open('big', 'wb', 0) as file:\n"
        "        while True: count += file.write(bytes(1 << 20))\n"
        "except OSError as error: print(count, error.strerror)\n"
    )
    limits = {"memory_bytes": 128 * MIB, "disk_bytes": 1024 * MIB}
    agent = spec(code, level="standard", limits=limits, assumed=("memory", "disk"))

    said = await run(launcher, agent)

    assert said.out == f"{64 * MIB} No space left on device\n"
    assert said.stopped.reason == "exited"
    assert said.stopped.usage.disk_bytes == 64 * MIB
