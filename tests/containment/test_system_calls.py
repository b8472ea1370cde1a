"""What a program in a sandbox is answered when it makes a system call by number, for real.

What the filter says to each number there can be is in tests/launcher/test_seccomp.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from callgate.launcher import LocalLauncher
from callgate.launcher.host import seccomp, syscalls
from callgate.launcher.plan.capabilities import Capability
from tests.containment.agents import run, spec
from tests.containment.capabilities import this_host

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.model import Level

pytestmark = pytest.mark.usefixtures("sandbox")

SANDBOXED: tuple[Level, ...] = ("strict", "standard", "network")

HIGH = 1 << 32
"""A bit that the kernel does not look at where it takes 32."""
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK = 1, 2, 10, 16, 17, 38, 40
STREAM, DGRAM, RAW, SEQPACKET, CLOEXEC, NONBLOCK = 1, 2, 3, 5, 0o2000000, 0o4000
SCTP, SMC, MPTCP = 132, 256, 262
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
NEW_USER, NEW_NET, NEW_NS = 0x1000_0000, 0x4000_0000, 0x2_0000
READ_IMPLIES_EXEC, NO_RANDOMIZE = 0x40_0000, 0x4_0000
HERE = -100

Call = tuple[str | int, *tuple[int, ...]]

REFUSED: tuple[Call, ...] = (
    # W4: bits above those that the kernel looks at.
    ("socket", VSOCK, STREAM, 0),
    ("socket", HIGH | VSOCK, STREAM, 0),
    ("socket", 0x7FFF_FFFF << 32 | VSOCK, STREAM, 0),
    ("socket", VSOCK, STREAM | CLOEXEC | NONBLOCK, 0),
    ("socket", HIGH | VSOCK, HIGH | STREAM | CLOEXEC, HIGH),
    ("socketpair", VSOCK, STREAM, 0, 0),
    ("socketpair", HIGH | VSOCK, STREAM, 0, 0),
    ("ioctl", 0, TIOCSTI, 0),
    ("ioctl", 0, HIGH | TIOCSTI, 0),
    ("ioctl", 0, 0xFFFF_FFFF << 32 | TIOCSTI, 0),
    ("ioctl", HIGH, TIOCLINUX, 0),
    ("ioctl", 0, HIGH | TIOCLINUX, 0),
    # W5: what listens where TCP may not.
    ("socket", INET, STREAM, MPTCP),
    ("socket", INET6, STREAM, MPTCP),
    ("socket", INET, STREAM | CLOEXEC | NONBLOCK, MPTCP),
    ("socket", HIGH | INET, HIGH | STREAM, HIGH | MPTCP),
    ("socket", INET, STREAM, SCTP),
    ("socket", INET, SEQPACKET, 0),
    ("socket", INET, STREAM, SMC),
    # Sockets that reach into the kernel or around the network's rules.
    *(
        ("socket", family, kind, 0)
        for family in (PACKET, ALG, 0, 15, 21, 29, 31, 42, 44, 45)
        for kind in (STREAM, DGRAM, RAW, SEQPACKET)
    ),
    ("socket", INET, RAW, 1),
    ("socket", INET, RAW, 255),
    ("socket", INET, 10, 0x300),  # the old way to AF_PACKET
    *(("socket", NETLINK, RAW, family) for family in range(1, 25)),
    ("socket", NETLINK, RAW | CLOEXEC, HIGH | 12),
    # N15: what Docker refuses, too.
    ("personality", READ_IMPLIES_EXEC),
    ("personality", HIGH | READ_IMPLIES_EXEC),
    ("personality", READ_IMPLIES_EXEC | 0x8),
    ("personality", NO_RANDOMIZE),
    (450, 0, 0, 0, 0),  # set_mempolicy_home_node
    ("get_mempolicy", 0, 0, 0, 0, 0),
    ("set_mempolicy", 0, 0, 0),
    ("mbind", 0, 0, 0, 0, 0, 0),
    ("sysfs", 3),
    ("ustat", 0, 0),
    (459, 100, 0, 0, 0),  # lsm_get_self_attr
    (460, 100, 0, 0, 0),  # lsm_set_self_attr
    (461, 0, 0, 0),  # lsm_list_modules
    # Into other processes.
    ("ptrace", 0, 0, 0, 0),
    ("process_vm_readv", 1, 0, 0, 0, 0, 0),
    ("process_vm_writev", 1, 0, 0, 0, 0, 0),
    ("process_madvise", -1, 0, 0, 0, 0),
    ("pidfd_getfd", -1, 0, 0),
    ("kcmp", 1, 1, 0, 0, 0),
    ("move_pages", 0, 0, 0, 0, 0, 0),
    ("migrate_pages", 0, 0, 0, 0),
    # Into the kernel.
    ("bpf", 0, 0, 0),
    ("perf_event_open", 0, 0, -1, -1, 0),
    ("userfaultfd", 0),
    ("userfaultfd", 1),  # for user mode only, which needs no privilege
    ("add_key", 0, 0, 0, 0, -3),
    ("request_key", 0, 0, 0, -3),
    ("keyctl", 0, -3, 0, 0, 0),
    ("modify_ldt", 0, 0, 0),
    ("vmsplice", -1, 0, 0, 0),
    ("init_module", 0, 0, 0),
    ("finit_module", -1, 0, 0),
    ("kexec_load", 0, 0, 0, 0),
    ("kexec_file_load", -1, -1, 0, 0, 0),
    ("reboot", 0, 0, 0, 0),
    ("syslog", 10, 0, 0),
    ("iopl", 3),
    ("ioperm", 0, 1, 1),
    ("swapon", 0, 0),
    ("quotactl_fd", -1, 0, 0, 0),
    ("settimeofday", 0, 0),
    ("adjtimex", 0),
    ("vhangup",),
    # Around the mounts and namespaces.
    ("mount", 0, 0, 0, 0, 0),
    ("umount2", 0, 0),
    ("pivot_root", 0, 0),
    ("chroot", 0),
    ("open_tree", HERE, 0, 0),
    ("move_mount", HERE, 0, HERE, 0, 0),
    ("fsopen", 0, 0),
    ("fsconfig", -1, 0, 0, 0, 0),
    ("fsmount", -1, 0, 0),
    ("fspick", HERE, 0, 0),
    ("mount_setattr", HERE, 0, 0, 0, 0),
    ("setns", -1, 0),
    ("unshare", NEW_USER),
    ("unshare", 0),
    ("clone", NEW_USER | signal.SIGCHLD, 0, 0, 0, 0),
    ("clone", NEW_NET | signal.SIGCHLD, 0, 0, 0, 0),
    ("clone", HIGH | NEW_NS | signal.SIGCHLD, 0, 0, 0, 0),
    ("name_to_handle_at", HERE, 0, 0, 0, 0),
    ("open_by_handle_at", HERE, 0, 0),
    ("fanotify_init", 0, 0),
    ("fanotify_mark", -1, 0, 0, HERE, 0),
)
MISSING: tuple[Call, ...] = (
    ("clone3", 0, 0),
    ("io_uring_setup", 1, 0),
    ("io_uring_enter", -1, 0, 0, 0, 0, 0),
    ("io_uring_register", -1, 0, 0, 0),
    ("io_setup", 1, 0),  # takes of what the whole machine has
    ("io_submit", 0, 0, 0),
    ("io_getevents", 0, 0, 0, 0, 0),
    (467, HERE, 0, 1, 0, 0),  # open_tree_attr, with OPEN_TREE_CLONE
    (468, HERE, 0, 0, 0, 0),  # file_getattr
    (469, HERE, 0, 0, 0, 0),  # file_setattr
    (470, 0, 0, 0, 0),  # listns
    (471, 0),
    (600, 0),
    (0x7FFF_FFFF, 0),
)
X86_64_ONLY = {"sysfs", "ustat", "modify_ldt", "iopl", "ioperm"}

PAYLOAD = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
answers = []
for call in json.loads({calls!r}):
    ctypes.set_errno(0)
    answer = libc.syscall(*(ctypes.c_long(word) for word in call))
    answers.append(errno.errorcode[ctypes.get_errno()] if answer == -1 else answer)
print(json.dumps(answers))
"""


def numbered(calls: tuple[Call, ...]) -> list[tuple[int, ...]]:
    """Calls by number, with arguments as the C library takes them."""
    library = seccomp.load()

    def number(name: str | int) -> int:
        if isinstance(name, int):
            return name
        known = syscalls.NUMBERS.get(name)
        return known or library.seccomp_syscall_resolve_name(name.encode())

    return [
        (number(name), *(word if word < 2**63 else word - 2**64 for word in words))
        for name, *words in calls
    ]


def here(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    if os.uname().machine == "x86_64":
        return calls
    return tuple(call for call in calls if call[0] not in X86_64_ONLY)


async def answers(
    launcher: LocalLauncher, level: Level, calls: tuple[Call, ...], **more: Any
) -> dict[Call, str | int]:
    """What each call was answered: an error's name, or a number."""
    code = PAYLOAD.format(calls=json.dumps(numbered(calls)))

    said = await run(launcher, spec(code, level=level, **more))

    assert said.err == ""
    return dict(zip(calls, json.loads(said.out), strict=True))


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_call_that_is_not_listed_is_refused(launcher: LocalLauncher, level: Level) -> None:
    calls = here(REFUSED)

    assert await answers(launcher, level, calls) == dict.fromkeys(calls, "EPERM")


@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_call_that_libc_can_do_without_is_missing(
    launcher: LocalLauncher, level: Level
) -> None:
    assert await answers(launcher, level, MISSING) == dict.fromkeys(MISSING, "ENOSYS")


async def test_without_the_filter_many_of_these_would_pass(root: Path) -> None:
    """So that the tests above fail without it, on a kernel that knows the calls."""
    calls = here(REFUSED)
    async with LocalLauncher(root=root) as launcher:
        launcher._tried |= {"groups", "sandbox"}
        no_filter = Capability(False, "not loaded, for this test")
        launcher._host = msgspec.structs.replace(this_host(), seccomp=no_filter)

        answered = await answers(launcher, "network", calls, allow_degraded=True)

    assert sum(answer != "EPERM" for answer in answered.values()) > len(calls) // 2


LISTEN = """
import socket
for family in (socket.AF_INET, socket.AF_INET6):
    for protocol in (0, 6, 262):
        try:
            with socket.socket(family, socket.SOCK_STREAM, protocol) as server:
                server.bind(("", {port}))
                server.listen()
            print("listens")
        except OSError as error:
            print(type(error).__name__)
"""


async def test_at_level_network_no_kind_of_tcp_listens_on_a_port_of_its_choice(
    launcher: LocalLauncher,
) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]

    said = await run(launcher, spec(LISTEN.format(port=port), level="network"))

    assert said.out.split() == ["PermissionError"] * 6


INTERRUPT = """
import ctypes, mmap, os
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes((0xB8, {number}, 0, 0, 0, 0xCD, 0x80, 0xC3)))  # eax = number; int 0x80; return
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
pid = os.fork()
if pid == 0:
    call()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other machines have no int 0x80")
@pytest.mark.parametrize("level", SANDBOXED)
@pytest.mark.parametrize("number", [20, 102])  # getpid, socketcall
async def test_a_32_bit_call_ends_its_process(
    launcher: LocalLauncher, level: Level, number: int
) -> None:
    code = INTERRUPT.format(number=number)
    outside = await run(launcher, spec(code))
    # A kernel without 32-bit programs ends the process itself, inside as outside.
    known = outside.out != f"{-signal.SIGSEGV}\n"

    said = await run(launcher, spec(code, level=level))

    assert said.out == f"{-signal.SIGSYS if known else -signal.SIGSEGV}\n"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other machines have no x32")
@pytest.mark.parametrize("level", SANDBOXED)
async def test_a_call_by_x32s_numbers_is_missing(launcher: LocalLauncher, level: Level) -> None:
    x32 = 0x4000_0000
    calls: tuple[Call, ...] = tuple((x32 | number, 0) for number in (0, 1, 39, 41, 101, 520, 547))

    assert await answers(launcher, level, calls) == dict.fromkeys(calls, "ENOSYS")


GOES_ON = """
import asyncio, ctypes, fcntl, mmap, multiprocessing, os, socket, subprocess, sys, tempfile
import termios, threading
def sockets():
    for family, kind, protocol in (
        (1, 1, 0), (1, 2, 0), (1, 5, 0), (2, 1, 0), (2, 1, 6), (2, 2, 0), (2, 2, 17), (10, 1, 0),
        (10, 1, 6), (10, 2, 0), (10, 2, 17), (16, 3, 0),
    ):
        if not (STRICT and family in (2, 10)):
            socket.socket(family, kind, protocol).close()
def pair():
    a, b = socket.socketpair()
    a.send(b"x")
    assert b.recv(1) == b"x"
def thread():
    heard = []
    one = threading.Thread(target=heard.append, args=(1,))
    one.start()
    one.join()
    assert heard == [1]
def child():
    assert subprocess.check_output([sys.executable, "-S", "-c", "print(7)"]) == b"7\\n"
def loop():
    async def main():
        process = await asyncio.create_subprocess_exec("/bin/true")
        assert await process.wait() == 0
        assert await asyncio.to_thread(os.getpid) == os.getpid()
    asyncio.run(main())
def processes():
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
def shared():
    from multiprocessing.shared_memory import SharedMemory
    memory = SharedMemory(create=True, size=100)
    memory.close()
    memory.unlink()
def server():
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as one:
        one.bind(place + "/s")
        one.listen()
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(place + "/s")
def pidfd():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    fd = os.pidfd_open(pid)
    assert os.waitid(os.P_PIDFD, fd, os.WEXITED).si_pid == pid
def names():
    assert "lo" in [name for _, name in socket.if_nameindex()]
    socket.getaddrinfo("localhost", 80)
def files():
    fd = os.memfd_create("x")
    os.posix_fallocate(fd, 0, 100)
    os.mkfifo("/tmp/fifo")
    os.chmod("/tmp/fifo", 0o600)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    mmap.mmap(fd, 100).close()
    os.sendfile(1, fd, 0, 0)
    os.eventfd(0)
    os.copy_file_range(fd, fd, 1, 0, 50)
def terminal():
    ours, theirs = os.openpty()
    assert os.isatty(theirs)
    termios.tcgetattr(theirs)
def landlock():
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(444, None, 0, 1) > 0
def persona():
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.personality(0xFFFFFFFF) == 0
if __name__ == "__main__":
    for act in (sockets, pair, thread, child, loop, processes, shared, server, pidfd, names, files,
                terminal, landlock, persona):
        act()
        print(act.__name__)
"""


@pytest.mark.parametrize("level", SANDBOXED)
async def test_what_programs_do_all_day_goes_on(launcher: LocalLauncher, level: Level) -> None:
    code = f"STRICT = {level == 'strict'}\n{GOES_ON}"  # that level has no internet sockets
    boot = f"open('/workspace/a.py', 'w').write({code!r})\n"
    boot += "import runpy; runpy.run_path('/workspace/a.py', run_name='__main__')"

    said = await run(launcher, spec(boot, level=level))

    assert (said.err, said.out.split()[-1:]) == ("", ["persona"])
