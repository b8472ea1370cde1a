"""What a contained process cannot use up. The same claims run in User-mode Linux, for v2."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.containment.agents import MIB, next_id, read_line, run, spec
from tests.containment.capabilities import need, this_host

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.launcher import LocalLauncher
    from callgate.model import Level

pytestmark = pytest.mark.usefixtures("linux")


@pytest.fixture
def linux() -> None:
    need("linux")


ALLOCATE = """
kept = []
while True:
    kept.append(bytearray(4 << 20))
    print(len(kept) * 4, flush=True)
"""


@pytest.mark.usefixtures("groups")
async def test_a_child_cannot_allocate_past_64_mib(launcher: LocalLauncher) -> None:
    said = await run(launcher, spec(ALLOCATE, limits={"memory_bytes": 64 * MIB}))

    assert (said.stopped.reason, said.stopped.state) == ("oom", "paused")
    assert int(said.out.split()[-1]) <= 64


@pytest.mark.usefixtures("groups")
async def test_the_limit_that_ended_a_run_is_told(launcher: LocalLauncher) -> None:
    said = await run(launcher, spec(ALLOCATE, limits={"memory_bytes": 64 * MIB}))

    limit = said.stopped.limit
    assert limit is not None
    assert (limit.type, limit.scope, limit.limit) == ("memory", "agent:agent", 64 * MIB)


FORK = """
import os, time
count = 1
try:
    while count < 100:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except BlockingIOError:
    pass
print(count)
"""


@pytest.mark.usefixtures("groups")
async def test_a_fork_bomb_stops_at_16(launcher: LocalLauncher) -> None:
    said = await run(launcher, spec(FORK, limits={"pids": 16}))

    assert said.out == "16\n"


@pytest.mark.usefixtures("groups", "sandbox")
async def test_a_fork_bomb_in_a_sandbox_stops_at_16_of_its_own(launcher: LocalLauncher) -> None:
    said = await run(launcher, spec(FORK, level="standard", limits={"pids": 16}))

    assert said.out == "16\n"


@pytest.mark.usefixtures("groups")
async def test_an_agent_that_dies_of_refused_forks_ended_by_its_pids_limit(
    launcher: LocalLauncher,
) -> None:
    code = "import os, time\nwhile True:\n  if os.fork() == 0: time.sleep(60)\n"

    said = await run(launcher, spec(code, limits={"pids": 8}))

    assert (said.stopped.reason, said.stopped.state) == ("pids_limit", "crashed")


@pytest.mark.usefixtures("groups")
async def test_a_refused_fork_is_the_reason_also_if_somebody_looked_in_between(
    launcher: LocalLauncher,
) -> None:
    code = """
import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(60)
except OSError:
    print("refused", flush=True)
    input()
    raise
"""
    agent = spec(code, limits={"pids": 8}, monitor_interval_ns=3_600_000_000_000)
    started = await launcher.launch(agent, run_id=next_id())
    await read_line(started.stdout)
    assert not started.out_of_memory()  # which is what a look asks

    os.close(started.stdin)

    assert (await started.wait()).reason == "pids_limit"
    os.close(started.stdout)
    os.close(started.stderr)


SPIN = """
import time
start, began = time.monotonic(), time.process_time()
while time.monotonic() - start < 1.5: pass
print((time.process_time() - began) / (time.monotonic() - start))
"""


@pytest.mark.usefixtures("groups")
async def test_a_busy_child_gets_no_more_than_its_share_of_processors(
    launcher: LocalLauncher,
) -> None:
    said = await run(launcher, spec(SPIN, limits={"cpu_millicores": 200}))

    # A period's share may be spent at its very beginning and again at the end of the last one.
    assert float(said.out) <= 0.28


@pytest.mark.usefixtures("groups")
async def test_everything_that_a_child_starts_shares_its_memory(launcher: LocalLauncher) -> None:
    code = """
import os, sys, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        kept = bytearray(b"x") * (24 << 20)
        time.sleep(60)
time.sleep(60)
"""
    said = await run(launcher, spec(code, limits={"memory_bytes": 64 * MIB}))

    assert said.stopped.reason == "oom"


async def test_a_child_cannot_open_more_files_than_it_may(launcher: LocalLauncher) -> None:
    code = """
import os
opened = []
try:
    while len(opened) < 200:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(max(opened), error.strerror)
"""
    said = await run(launcher, spec(code, limits={"open_files": 32}))

    assert said.out == "31 Too many open files\n"


async def test_a_child_cannot_raise_its_own_limits_again(launcher: LocalLauncher) -> None:
    code = """
import resource
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    said = await run(launcher, spec(code, limits={"open_files": 32}))

    assert said.out == "(32, 32)\n"


@pytest.mark.parametrize("level", ["strict", "standard", "network"])
async def test_a_child_of_a_sandbox_cannot_open_what_the_host_has_of_descriptors(
    launcher: LocalLauncher, level: Level
) -> None:
    need("bwrap", "seccomp", "tmpfs", "landlock_files")
    code = """
import os, resource
print(resource.getrlimit(resource.RLIMIT_NOFILE))
try:
    while True:
        last = os.open("/dev/null", os.O_RDONLY)
except OSError as error:
    print(last, error.strerror)
"""
    said = await run(launcher, spec(code, level=level))

    assert said.out.splitlines() == ["(1024, 1024)", "1023 Too many open files"]


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A file of 3 MiB that a group's throughput is about."""
    need("cgroup")
    device = tmp_path.stat().st_dev
    disk = f"{os.major(device)}:{os.minor(device)}"
    if this_host().cgroups.holder("io") is None or disk not in this_host().cgroups.disks:
        pytest.skip(f"io: no group with that controller, or {disk} is no whole disk")
    file = tmp_path / "long"
    with file.open("wb") as out:
        out.write(os.urandom(3 * MIB))
        os.fsync(out.fileno())
    return file


async def test_a_child_reads_no_faster_from_a_disk_than_it_may(
    launcher: LocalLauncher, on_disk: Path
) -> None:
    code = f"""
import mmap, os, time
fd, page = os.open({str(on_disk)!r}, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, {MIB})
began = time.monotonic()
while os.readv(fd, [page]): pass
print(time.monotonic() - began)
"""
    said = await run(launcher, spec(code, limits={"io_read_bytes_per_s": 2 * MIB}))

    assert said.err == ""
    assert float(said.out) > 1.0


async def test_a_child_that_spins_is_ended_at_its_cpu_time(launcher: LocalLauncher) -> None:
    said = await run(launcher, spec("while True: pass", limits={"cpu_time_ns": 1_000_000_000}))

    assert (said.stopped.reason, said.stopped.state) == ("cpu_time_limit", "crashed")
    assert said.stopped.limit is not None
    assert said.stopped.limit.usage == said.stopped.limit.limit == 1_000_000_000


async def test_memory_that_ran_out_is_what_its_group_was_charged_and_never_more(
    launcher: LocalLauncher,
) -> None:
    need("cgroup")

    said = await run(launcher, spec(ALLOCATE, limits={"memory_bytes": 64 * MIB}))

    limit = said.stopped.limit
    assert said.stopped.reason == "oom"
    assert limit is not None
    if limit.usage is not None:  # a kernel before 5.19 does not keep it
        assert 60 * MIB < limit.usage <= 64 * MIB
        assert limit.usage == said.stopped.usage.memory_peak_bytes


async def test_a_child_cannot_map_more_than_its_address_space(launcher: LocalLauncher) -> None:
    code = """
try:
    bytearray(512 << 20)
except MemoryError:
    print("refused")
"""
    said = await run(launcher, spec(code, limits={"address_space_bytes": 256 * MIB}))

    assert said.out == "refused\n"


async def test_a_child_that_outlives_its_wall_time_is_ended(launcher: LocalLauncher) -> None:
    code = "import time; time.sleep(60)"

    said = await run(launcher, spec(code, limits={"wall_time_ns": 200_000_000}))

    assert (said.stopped.reason, said.stopped.state) == ("wall_time_limit", "crashed")


@pytest.mark.parametrize("contained", [True, False])
async def test_only_with_containment_a_child_can_gain_no_rights(
    launcher: LocalLauncher, contained: Any
) -> None:
    code = "print([line.split()[1] for line in open('/proc/self/status') if 'NoNewPrivs' in line])"

    said = await run(launcher, spec(code, contained=contained))

    assert said.out == f"['{int(contained)}']\n"


async def test_a_dial_that_is_left_alone_stays_as_it_was(launcher: LocalLauncher) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    before = await run(launcher, spec(code, contained=False))

    said = await run(launcher, spec(code, limits={"core_bytes": 0}))

    assert said.out == before.out


async def test_a_child_cannot_dump_a_larger_core_than_it_may(launcher: LocalLauncher) -> None:
    code = """
import resource
print(resource.getrlimit(resource.RLIMIT_CORE))
try:
    resource.setrlimit(resource.RLIMIT_CORE, (8192, 8192))
except (OSError, ValueError):
    print("refused")
"""
    said = await run(launcher, spec(code, level="privileged", limits={"core_bytes": 4096}))

    assert said.out.splitlines()[0] == "(4096, 4096)"
    assert os.geteuid() == 0 or said.out.splitlines()[1] == "refused"  # root may raise its own
