from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.launcher.host.cgroup import Group
from callgate.launcher.host.process_tree import descendants
from callgate.launcher.local import usage_readers, workspace_usage
from callgate.launcher.local.limit_check import Sample
from callgate.launcher.local.usage_readers import (
    UsageReader,
    count_connections,
    read_processes,
)
from callgate.launcher.local.workspace_usage import (
    Uncountable,
    Workspace,
    count_deleted,
    count_workspace,
    filesystem_use,
)
from callgate.model import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def later() -> int:
    return time.monotonic_ns() + 60_000_000_000


def files(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (root / name.replace("__", ".")).write_text(text)
    return root


def test_a_v2_group_is_read_without_the_cache_that_would_be_given_back(tmp_path: Path) -> None:
    group = files(
        tmp_path,
        memory__current="1000\n",
        memory__peak="1500\n",
        memory__stat="anon 600\ninactive_file 300\nactive_file 100\n",
        cpu__stat="usage_usec 7\nuser_usec 5\n",
        pids__current="3\n",
    )

    expected = Usage(cpu_ns=7000, memory_bytes=700, memory_peak_bytes=1500, pids=3)
    assert Group(group, {}).usage() == expected


def test_a_v2_group_without_controllers_tells_its_cpu_time_only(tmp_path: Path) -> None:
    assert Group(files(tmp_path, cpu__stat="usage_usec 7\n"), {}).usage() == Usage(cpu_ns=7000)


def test_a_v1_group_is_read_from_its_hierarchies(tmp_path: Path) -> None:
    one = files(
        tmp_path,
        memory__usage_in_bytes="1000",
        memory__max_usage_in_bytes="1500",
        memory__stat="inactive_file 1\ntotal_inactive_file 300\n",
        cpuacct__usage="7000",
        pids__current="3",
    )

    group = Group(None, dict.fromkeys(("memory", "pids", "cpuacct"), one))

    assert group.usage() == Usage(cpu_ns=7000, memory_bytes=700, memory_peak_bytes=1500, pids=3)
    assert Group(None, {}).usage() == Usage()


def test_a_group_that_is_gone_was_not_measured(tmp_path: Path) -> None:
    gone = tmp_path / "gone"

    assert Group(gone, {}).usage() == Usage()
    assert Group(None, dict.fromkeys(("memory", "pids", "cpuacct"), gone)).usage() == Usage()


BUSY = """
import os, resource, sys, threading, time
block = bytearray(b"x") * (int(sys.argv[1]) * 2**20)
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=lambda: sys.stdin.read(), daemon=True).start()
while time.process_time() < 0.3: pass
own = resource.getrusage(resource.RUSAGE_SELF)
print(own.ru_utime + own.ru_stime, flush=True)
sys.stdin.read()
os.waitpid(child, 0)
"""


@pytest.fixture
def busy() -> Iterator[tuple[int, float]]:
    """A process with a thread, a child, 48 MiB that both share, and some cpu time."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BUSY, "48"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        yield process.pid, float(process.stdout.readline())
        process.kill()


def test_processes_are_measured_as_they_measure_themselves(busy: tuple[int, float]) -> None:
    pid, cpu_s = busy

    usage = read_processes([pid, *descendants(pid)])

    assert usage.pids == 3
    assert usage.cpu_ns is not None
    assert cpu_s - 0.05 <= usage.cpu_ns / 1e9 <= cpu_s + 0.2
    assert usage.memory_bytes is not None
    assert usage.memory_bytes > 96 * MIB, "shared pages count twice"


@linux
def test_where_it_matters_shared_memory_is_counted_once(busy: tuple[int, float]) -> None:
    usage = read_processes([busy[0], *descendants(busy[0])], exact_from_bytes=MIB)

    assert usage.memory_bytes is not None
    assert 48 * MIB < usage.memory_bytes < 80 * MIB


def test_a_process_that_is_gone_is_left_out() -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as process:
        process.wait()

    assert descendants(process.pid) == []
    assert read_processes([process.pid]) == Usage(cpu_ns=0, memory_bytes=0, pids=0)
    assert count_connections([process.pid]) is None


@linux
def test_connections_are_sockets_of_the_internet_that_do_not_only_listen() -> None:
    before = count_connections([os.getpid()])
    assert before is not None
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert count_connections([os.getpid()]) == before
        with socket.create_connection(server.getsockname()), server.accept()[0]:
            assert count_connections([os.getpid()]) == before + 2


@linux
def test_the_tables_of_the_kernel_are_not_read_for_processes_without_a_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(process: Path) -> set[str]:
        raise AssertionError(process)

    monkeypatch.setattr(usage_readers, "_connected", read)
    pipe = subprocess.PIPE
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()  # now it runs, with nothing but pipes

        assert count_connections([process.pid]) == 0


def test_a_workspace_is_counted_with_its_directories_and_links(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to("/usr")
    os.link(tmp_path / "sub" / "a", tmp_path / "same")

    size, count = count_workspace(tmp_path, later())

    assert count == 4
    blocks = [path.lstat().st_blocks for path in (tmp_path / "sub", tmp_path / "sub" / "a")]
    assert size == (sum(blocks) + (tmp_path / "link").lstat().st_blocks) * 512


def test_a_hole_takes_no_room(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(100 * MIB)

    assert count_workspace(tmp_path, later())[0] < MIB


def test_a_count_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    with pytest.raises(Uncountable):
        count_workspace(tmp_path, time.monotonic_ns() - 1)


def test_a_place_too_deep_to_look_into_is_not_skipped(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(50):
        os.mkdir("d" * 200, dir_fd=at)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(at)

    with pytest.raises(Uncountable):
        count_workspace(tmp_path, later())


def test_files_that_come_and_go_do_not_hide_the_others(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"kept{number}").touch()
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for number in range(50):
                (tmp_path / f"brief{number}").touch()
            for number in range(50):
                (tmp_path / f"brief{number}").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        counts = [count_workspace(tmp_path, later())[1] for _ in range(50)]
    finally:
        stop.set()
        thread.join()

    assert min(counts) >= 200


def test_a_workspace_is_not_counted_all_the_time(tmp_path: Path) -> None:
    now = iter([0, 100, 1_099, 1_100, 1_150])
    workspace = Workspace(tmp_path, clock=lambda: next(now))
    assert workspace.read() == (0, 0)
    (tmp_path / "new").touch()

    assert workspace.read() == (0, 0)
    assert workspace.read() == (0, 1)


def test_a_workspace_that_cannot_be_counted_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(workspace_usage, "WALK_TIMEOUT_NS", -1)

    assert Workspace(tmp_path).read() is None
    look = UsageReader(list, disk=Workspace(tmp_path).read).read()
    assert look.uncounted == {"disk", "files"}


HOLDERS = {
    "open": "held = open('f', 'wb'); held.write(data); held.flush(); os.unlink('f')",
    "without a name": "held = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(held, data)",
    "twice": "held = open('f', 'wb'); held.write(data); os.unlink('f'); os.dup(held.fileno())",
    "mapped": """
with open('f', 'w+b') as file:
    file.write(data); file.flush(); os.unlink('f'); held = mmap.mmap(file.fileno(), len(data))""",
    "by a thread with descriptors of its own": """
def hold():
    libc.unshare(0x400)  # CLONE_FILES
    held = open('f', 'wb'); held.write(data); held.flush(); os.unlink('f'); done()
    time.sleep(600)
threading.Thread(target=hold).start(); time.sleep(600)""",
    "by a thread that outlives the first": """
def hold():
    held = open('f', 'wb'); held.write(data); held.flush(); os.unlink('f')
    while ') Z ' not in open(f'/proc/{os.getpid()}/stat').read(): pass
    done(); time.sleep(600)
threading.Thread(target=hold).start(); libc.pthread_exit(None)""",
}


@linux
@pytest.mark.parametrize("how", HOLDERS)
def test_a_deleted_file_counts_as_long_as_anything_holds_it(tmp_path: Path, how: str) -> None:
    code = f"""
import ctypes, mmap, os, threading, time
libc = ctypes.CDLL(None)
data = bytes({MIB})
def done(): print(flush=True)
{HOLDERS[how]}
done(); time.sleep(600)
"""
    device = tmp_path.stat().st_dev
    with subprocess.Popen(
        [sys.executable, "-ISc", code], stdout=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        held = count_deleted([process.pid], device, later())
        with pytest.raises(Uncountable):
            count_deleted([process.pid], device, time.monotonic_ns() - 1)
        process.kill()

    assert MIB <= held < 2 * MIB
    assert count_workspace(tmp_path, later()) == (0, 0)


@linux
def test_a_deleted_file_elsewhere_is_not_of_the_workspace(tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as elsewhere:  # another device
        elsewhere.write(bytes(MIB))
        elsewhere.flush()

        assert count_deleted([os.getpid()], tmp_path.stat().st_dev, later()) == 0


@linux
def test_a_file_system_of_its_own_tells_its_use() -> None:
    shm = Path("/dev/shm")  # noqa: S108  # a tmpfs on every Linux
    if not os.access(shm, os.W_OK):
        pytest.skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shm) as directory:
        before = filesystem_use(shm)
        for number in range(64):
            (Path(directory) / str(number)).write_bytes(b"x" * (MIB // 4))
        after = filesystem_use(shm)

    # Others use it too; they are far from 16 MiB and 64 files at once.
    assert 12 * MIB < after[0] - before[0] < 20 * MIB
    assert 32 < after[1] - before[1] < 96


def test_what_the_cgroup_does_not_know_is_taken_from_the_processes() -> None:
    sampler = UsageReader(lambda: [os.getpid()], group=lambda: Usage(cpu_ns=1, pids=77))

    usage = sampler.read().usage

    assert (usage.cpu_ns, usage.pids) == (1, 77)
    assert usage.memory_bytes is not None
    assert usage.memory_bytes > MIB


def test_processes_that_make_the_containment_are_not_the_agents() -> None:
    group = Usage(cpu_ns=1, memory_bytes=2, pids=5)

    assert UsageReader(list, group=lambda: group, extra_pids=2).read().usage.pids == 3


def test_descendants_are_found_without_proc_too(
    busy: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = descendants(busy[0])
    assert len(expected) == 1

    monkeypatch.setattr(sys, "platform", "darwin")

    assert descendants(busy[0]) == expected


def test_a_look_has_the_workspace_and_the_connections_too() -> None:
    group = Usage(cpu_ns=1, memory_bytes=2, pids=3)

    look = UsageReader(list, group=lambda: group, disk=lambda: (4, 5)).read()

    assert look == Sample(
        Usage(cpu_ns=1, memory_bytes=2, pids=3, disk_bytes=4, files=5, connections=None)
    )


def test_a_workspace_that_is_gone_was_not_measured() -> None:
    look = UsageReader(list, disk=lambda: filesystem_use(Path("/nonexistent"))).read()

    assert (look.usage.disk_bytes, look.uncounted) == (None, frozenset())
