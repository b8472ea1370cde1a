"""What a process in a sandbox cannot see, reach or change."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest

from callgate.launcher import LaunchRefused, LocalLauncher
from callgate.launcher.plan.bwrap import TCP_ABI
from callgate.launcher.plan.capabilities import Capability
from callgate.launcher.warden import landlock
from callgate.launcher.warden.tree import descendants
from callgate.model import EnvSpec, Level, MountSpec
from tests.containment.agents import MIB, close, next_id, read_line, run, spec
from tests.containment.capabilities import is_of_an_agent, need, this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("sandbox")

SANDBOXED: tuple[Level, ...] = ("strict", "standard", "network")

TRY = """
import os, socket, sys
def attempt(act):
    try:
        print(act())
    except OSError as error:
        print(type(error).__name__)
"""
NAMESPACES = ("user", "pid", "mnt", "ipc", "uts", "cgroup", "net")


def owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def all_arguments() -> bytes:
    """Of every process there is."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += path.read_bytes()
    return found


async def namespaces(launcher: LocalLauncher, level: Level) -> dict[str, str]:
    code = f"import os\nfor n in {NAMESPACES}: print(n, os.readlink('/proc/self/ns/' + n))"
    said = await run(launcher, spec(code, level=level))
    return dict(line.split() for line in said.out.splitlines())


@pytest.mark.parametrize(
    ("level", "own"),
    [
        ("strict", {"user", "pid", "mnt", "ipc", "uts", "cgroup", "net"}),
        ("standard", {"user", "pid", "mnt", "ipc", "uts", "cgroup", "net"}),
        ("network", {"user", "pid", "mnt", "ipc", "uts", "cgroup"}),
        ("privileged", set()),
    ],
)
async def test_each_level_has_its_own_namespaces(
    launcher: LocalLauncher, level: Level, own: set[str]
) -> None:
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES}  # noqa: PTH115

    theirs = await namespaces(launcher, level)

    assert {name for name in NAMESPACES if theirs[name] != ours[name]} == own


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_cannot_see_the_hosts_processes(
    launcher: LocalLauncher, level: Level
) -> None:
    code = "import os; print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))"

    said = await run(launcher, spec(code, level=level))

    assert said.out == "[1, 2]\n"


@pytest.fixture
def listening() -> Iterator[int]:
    """A TCP port of the host that answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            # Closed under it where nobody gets through.
            with suppress(OSError), server.accept()[0] as peer:
                peer.sendall(b"hello")

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("level", "answer"),
    [
        ("strict", "PermissionError"),
        ("standard", "ConnectionRefusedError"),
        ("network", "b'hello'"),
        ("privileged", "b'hello'"),
    ],
)
async def test_a_child_reaches_the_hosts_network_only_from_level_network_on(
    launcher: LocalLauncher, listening: int, level: Level, answer: str
) -> None:
    code = TRY + f"attempt(lambda: socket.create_connection(('127.0.0.1', {listening}), 5).recv(9))"

    said = await run(launcher, spec(code, level=level))

    assert said.out == f"{answer}\n"


@pytest.mark.parametrize("level", ["strict", "standard"])
async def test_a_child_cannot_open_a_tcp_connection_to_the_outside(
    launcher: LocalLauncher, level: Level
) -> None:
    code = TRY + "attempt(lambda: socket.create_connection(('192.0.2.1', 80), 5))"

    said = await run(launcher, spec(code, level=level))

    # The filter refuses before the network can; a namespace without routes has no way out.
    assert said.out == ("PermissionError\n" if level == "strict" else "OSError\n")


async def test_a_child_of_level_network_cannot_listen_on_a_port_of_its_choice(
    launcher: LocalLauncher,
) -> None:
    need("landlock")
    code = TRY + (
        "s = socket.socket(); attempt(lambda: s.bind(('127.0.0.1', 34567)))\n"
        "s = socket.socket(); attempt(lambda: s.bind(('127.0.0.1', 0)))\n"
    )

    said = await run(launcher, spec(code, level="network"))

    assert said.out == "PermissionError\nNone\n"


OLDEST_OF_SOME = 2
"""Debian 12's landlock; on a kernel with a newer one only this much of it is used."""
ABSTRACT = """
name = chr(0) + %r
attempt(lambda: socket.socket(socket.AF_UNIX).connect(name))
attempt(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", name + "d"))
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    attempt(lambda: socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"x", name + "d"))
    attempt(lambda: socket.socketpair(socket.AF_UNIX, kind)[0].connect(name))
    attempt(lambda: socket.socketpair(socket.AF_UNIX, kind)[0].connect(name + "d"))
"""


@pytest.fixture(params=[OLDEST_OF_SOME, TCP_ABI, None], ids=["landlock-2", "landlock-4", "own"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Use no more of landlock than an older kernel has."""
    own = this_host().landlock_abi
    if (request.param or 0) > own:
        pytest.skip(f"landlock: this kernel has {own} only")
    found: int = request.param or own
    monkeypatch.setattr(landlock, "abi", lambda: found)
    return found


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_cannot_reach_an_abstract_socket_of_the_host(
    launcher: LocalLauncher, level: Level, version: int
) -> None:
    name = f"callgate-test-{os.getpid()}"
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with socket.socket(socket.AF_UNIX) as server, datagrams:
        server.bind("\0" + name)
        server.listen()
        server.setblocking(False)
        datagrams.bind("\0" + name + "d")
        datagrams.setblocking(False)

        said = await run(launcher, spec(TRY + ABSTRACT % name, level=level))

        assert said.err == ""
        assert len(said.out.splitlines()) == 11, version
        for reached in (server.accept, lambda: datagrams.recv(9)):
            with pytest.raises(BlockingIOError):
                reached()


async def test_level_network_listens_only_where_landlock_keeps_it_from_ports(
    launcher: LocalLauncher, listening: int, version: int
) -> None:
    code = (
        TRY
        + f"""
s = socket.socket(); s.bind(("127.0.0.1", 0)); attempt(s.listen)
attempt(lambda: socket.create_connection(("127.0.0.1", {listening}), 5).recv(9))
import asyncio
async def main(): return await asyncio.to_thread(int, "7")
print(asyncio.run(main()))
"""
    )
    said = await run(launcher, spec(code, level="network"))

    listened = "None" if version >= TCP_ABI else "PermissionError"
    assert said.out.splitlines() == [listened, "b'hello'", "7"]


async def test_level_strict_has_no_internet_socket_on_any_kernel(
    launcher: LocalLauncher, version: int
) -> None:
    kinds = "(socket.AF_INET, socket.AF_INET6), (socket.SOCK_STREAM, socket.SOCK_DGRAM)"
    code = TRY + (
        f"import itertools\nfor each in itertools.product({kinds}):\n"
        "    attempt(lambda: socket.socket(*each))"
    )

    said = await run(launcher, spec(code, level="strict"))

    assert said.out.split() == ["PermissionError"] * 4, version


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_cannot_read_etc_shadow(launcher: LocalLauncher, level: Level) -> None:
    code = TRY + "attempt(lambda: open('/etc/shadow').read())"

    said = await run(launcher, spec(code, level=level))

    assert said.out == "FileNotFoundError\n"


async def test_a_child_cannot_read_etc_shadow_even_if_the_whole_of_etc_is_mounted(
    launcher: LocalLauncher,
) -> None:
    need("root")
    code = TRY + "attempt(lambda: open('/etc/shadow').read())"
    mounts = (MountSpec("/etc", read_only=True),)

    said = await run(launcher, spec(code, level="standard", mounts=mounts))

    assert said.out == "PermissionError\n"


@pytest.mark.parametrize("level", SANDBOXED)
async def test_no_process_of_a_sandbox_is_root_for_the_host(
    launcher: LocalLauncher, level: Level
) -> None:
    started = await launcher.launch(spec("input()", level=level), run_id=next_id())
    # A directory of /proc belongs to whom its process is, as the host sees it.
    users = {owner(pid) for pid in (started.pid, *descendants(started.pid))}
    await started.stop("stop_requested", 0)
    close(started)

    (user,) = users
    assert is_of_an_agent(user)


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_cannot_write_outside_its_workspace(
    launcher: LocalLauncher, level: Level
) -> None:
    code = """
import os
written = []
for folder, names, _ in os.walk("/"):
    deep = folder.count("/") > 2 or folder == "/tmp"  # a checkout may be mounted below it
    names[:] = [name for name in names if not deep and os.path.join(folder, name) != "/proc"]
    try:
        with open(os.path.join(folder, "callgate-was-here"), "w"): pass
        written.append(folder)
    except OSError: pass
print(sorted(written))
"""
    said = await run(launcher, spec(code, level=level, limits={"disk_bytes": MIB}))

    assert said.out == "['/dev/shm', '/tmp', '/workspace']\n"


async def test_the_root_of_level_strict_holds_no_more_than_is_needed(
    launcher: LocalLauncher,
) -> None:
    code = "import os; print(*sorted(os.listdir('/'))); print(*sorted(os.listdir('/etc')))"
    prefixes = {Path(path).parts[1] for path in (sys.prefix, sys.base_prefix)}
    usual = {"bin", "dev", "etc", "lib", "proc", "sbin", "tmp", "usr", "workspace"}

    said = await run(launcher, spec(code, level="strict"))

    root, etc = said.out.splitlines()
    assert set(root.split()) - {"lib32", "lib64", "libx32"} == usual | prefixes
    assert set(etc.split()) <= {"alternatives", "group", "hosts", "ld.so.cache", "passwd"}


@pytest.mark.parametrize(
    ("level", "mount", "answer"),
    [
        ("strict", "writable", "OSError"),
        ("standard", "read-only", "OSError"),
        ("standard", "writable", "1"),
        ("network", "writable", "1"),
    ],
)
async def test_a_mount_is_writable_only_if_both_the_policy_and_the_level_say_so(
    launcher: LocalLauncher, tmp_path: Path, level: Level, mount: str, answer: str
) -> None:
    os.chmod(tmp_path, 0o777)  # noqa: PTH101, S103  # the agent is another user
    mounts = (MountSpec(str(tmp_path), read_only=mount == "read-only"),)
    code = TRY + f"attempt(lambda: open({str(tmp_path / 'file')!r}, 'w').write('x'))"

    said = await run(launcher, spec(code, level=level, mounts=mounts))

    assert said.out == f"{answer}\n"
    assert (tmp_path / "file").exists() == (answer == "1")


async def test_a_workspace_holds_no_more_bytes_than_it_may(launcher: LocalLauncher) -> None:
    code = TRY + "attempt(lambda: open('/workspace/f', 'wb', 0).write(bytes(2 << 20)))"
    code += "\nattempt(lambda: open('/tmp/g', 'wb', 0).write(bytes(1 << 16)))"

    said = await run(launcher, spec(code, level="standard", limits={"disk_bytes": MIB}))

    assert said.out == f"{MIB}\nOSError\n"


@pytest.mark.parametrize("places", [(), ("a/b", "a/c")])
async def test_a_workspace_holds_no_more_files_than_it_may(
    launcher: LocalLauncher, places: tuple[str, ...]
) -> None:
    """Of its own: what mounts below /tmp need there does not count."""
    code = """
count = 0
try:
    while count < 100:
        open(f"/workspace/{count}", "w").close()
        count += 1
except OSError as error:
    print(count, error.strerror)
"""
    with tempfile.TemporaryDirectory(prefix="callgate-test-") as folder:
        mounts = tuple(MountSpec(f"{folder}/{place}") for place in places)
        for mount in mounts:
            os.makedirs(mount.path)  # noqa: PTH103
        agent = spec(code, level="standard", limits={"files": 20}, mounts=mounts)
        said = await run(launcher, agent)

    assert said.out == "20 No space left on device\n"


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_runs_under_a_filter_and_without_any_capability(
    launcher: LocalLauncher, level: Level
) -> None:
    code = "print(open('/proc/self/status').read())"

    said = await run(launcher, spec(code, level=level))

    status = dict(line.split(":\t", 1) for line in said.out.splitlines() if ":\t" in line)
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_could_make_no_user_namespace_even_without_a_filter(
    root: Path, level: Level
) -> None:
    code = (
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.unshare(0x10000000), errno.errorcode[ctypes.get_errno()])"
    )
    async with LocalLauncher(root=root) as launcher:
        launcher._tried |= {"groups", "sandbox"}
        no_filter = Capability(False, "not loaded, for this test")
        launcher._host = msgspec.structs.replace(this_host(), seccomp=no_filter)

        said = await run(launcher, spec(code, level=level, allow_degraded=True))

    assert said.out == "-1 ENOSPC\n"


@pytest.mark.parametrize("level", get_args(Level))
async def test_a_child_has_no_descriptors_but_its_three(
    launcher: LocalLauncher, level: Level
) -> None:
    code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"

    said = await run(launcher, spec(code, level=level))

    # The fourth is the directory that it lists.
    assert said.out == "[0, 1, 2, 3]\n"


EXECUTES = """
import os, shutil, subprocess
shutil.copyfile("/usr/bin/id", "/workspace/id"); os.chmod("/workspace/id", 0o755)
attempt(lambda: subprocess.run(["/usr/bin/git", "--version"], stdout=-1).returncode)
attempt(lambda: subprocess.run(["/usr/bin/id"], stdout=-1).returncode)
attempt(lambda: subprocess.run(["/workspace/id"], stdout=-1).returncode)
attempt(lambda: os.memfd_create("id"))
"""


@pytest.mark.parametrize("level", ["standard", "privileged"])
async def test_files_are_counted_without_the_directories_that_are_ours(
    launcher: LocalLauncher, level: Level
) -> None:
    code = (
        "import os\nos.chdir(os.environ['CALLGATE_WORKSPACE'])\nfor n in range(7): os.mkdir(str(n))"
    )

    said = await run(launcher, spec(code, level=level, limits={"files": 100}))

    assert said.stopped.usage.files == 7


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_with_a_list_of_programs_executes_no_other_file(
    launcher: LocalLauncher, level: Level
) -> None:
    if shutil.which("git") is None:
        pytest.skip("no such program: git")

    said = await run(launcher, spec(TRY + EXECUTES, level=level, programs=("git",)))
    free = await run(launcher, spec(TRY + EXECUTES, level=level))

    assert (said.out.split(), said.err) == (["0", *["PermissionError"] * 3], "")
    assert free.out.split()[:3] == ["0", "0", "0"]


async def test_a_program_of_the_list_that_is_not_there_is_refused_by_name(
    launcher: LocalLauncher,
) -> None:
    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(spec("", level="strict", programs=("gti",)), run_id=next_id())

    assert refused.value.gaps == {"exec": "gti is not a program that can be run"}


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_gets_only_the_variables_that_are_named(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch, level: Level
) -> None:
    monkeypatch.setenv("NAMED", "yes")
    monkeypatch.setenv("KEY", "secret")
    monkeypatch.setenv("UNNAMED", "no")
    for name in ("LC_ALL", "LC_CTYPE", "TZ"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("TERM", "dumb")
    env = EnvSpec(pass_all=False, names=("NAMED",), secret=("KEY",))
    code = "import os; print(*sorted(os.environ))"

    said = await run(launcher, spec(code, level=level, env=env))

    given = {"CALLGATE_WORKSPACE", "HOME", "KEY", "NAMED", "PATH", "PWD", "TMPDIR"}
    given |= set() if level == "strict" else {"LANG", "TERM"}
    assert set(said.out.split()) - {"LC_CTYPE"} == given


async def test_a_secret_stands_in_no_argument_of_any_process(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "canary-3b9f1c")
    env = EnvSpec(pass_all=False, secret=("KEY",))
    agent = spec("print('up', flush=True); input()", level="standard", env=env)
    started = await launcher.launch(agent, run_id=next_id())
    assert await read_line(started.stdout) == "up\n"
    arguments = all_arguments()
    await started.stop("stop_requested", 0)
    close(started)

    assert b"input()" in arguments
    assert b"canary-3b9f1c" not in arguments


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_child_can_still_do_what_programs_do(launcher: LocalLauncher, level: Level) -> None:
    code = """
import getpass, multiprocessing, os, socket, subprocess, tempfile, threading
worker = threading.Thread(target=print, args=("thread", ))
worker.start(); worker.join()
print(subprocess.run(["/bin/sh", "-c", "echo process > /dev/null && echo process"],
                     capture_output=True, text=True).stdout, end="")
with multiprocessing.Lock(), tempfile.TemporaryFile() as file:
    print("lock and file", file.write(os.urandom(4)))
left, right = socket.socketpair()
print("pair", left.send(b"x"), getpass.getuser())
print(socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)[0][4][0])
"""
    agent = spec("", level=level)
    command = (sys.executable, "-c", code)

    said = await run(launcher, msgspec.structs.replace(agent, command=command))

    address = said.out.splitlines()[-1]
    assert said.out.splitlines()[:-1] == ["thread", "process", "lock and file 4", "pair 1 agent"]
    assert address in ("127.0.0.1", "::1")


@pytest.mark.parametrize("level", SANDBOXED)
async def test_node_runs_in_a_sandbox(launcher: LocalLauncher, level: Level) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    code = """
const { Worker } = require("worker_threads");
console.log(require("os").userInfo().username, typeof WebAssembly);
require("child_process").execSync("echo process", { stdio: "inherit" });
require("fs").writeFileSync("/tmp/file", "x");
new Worker("console.log('thread')", { eval: true });
"""
    agent = spec("", level=level, limits={"disk_bytes": MIB})

    said = await run(launcher, msgspec.structs.replace(agent, command=(node, "-e", code)))

    assert said.out == "agent object\nprocess\nthread\n"


@pytest.mark.parametrize("level", ["standard", "network"])
async def test_a_child_can_talk_to_itself_over_tcp(launcher: LocalLauncher, level: Level) -> None:
    if level == "network":
        need("landlock")  # else the filter refuses to listen
    code = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
        one.sendall(b"hello")
        print(other.recv(9))
"""
    said = await run(launcher, spec(code, level=level))

    assert said.out == "b'hello'\n"


async def test_a_policy_may_bring_its_own_files_of_etc(launcher: LocalLauncher) -> None:
    mounts = (MountSpec("/etc/passwd"), MountSpec("/etc/hosts"))
    code = "print(open('/etc/passwd').read())"

    said = await run(launcher, spec(code, level="standard", mounts=mounts))

    assert said.out.startswith("root:")


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="not in a virtual environment")
async def test_a_virtual_environment_runs_in_a_sandbox(launcher: LocalLauncher) -> None:
    agent = spec("", level="strict")
    command = (sys.executable, "-c", "import sys, msgspec; print(sys.prefix)")

    said = await run(launcher, msgspec.structs.replace(agent, command=command))

    assert said.out == f"{sys.prefix}\n"
