"""The part of a probe that runs in a process of its own: it does the thing and says how it went.

Most of these acts cannot be undone in the process that does them. With a uid it first becomes
that user, as an agent of a root callgate does. It prints one JSON object: `ok` with a `value`,
or the `step` that failed with its `errno`. Standard library only: it runs without
site-packages, like a warden.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

from callgate.launcher import libc

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

NO_SUCH_CALL = 10_000
"""A number that no system call has: ENOSYS without a filter, EPERM with ours."""

# The same on every architecture, as for all system calls since 5.1.
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_RESTRICT_SELF = 446
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_ACCESS_FS_WRITE_FILE = 2

GROUP_MEMORY_BYTES = 32 * 1024 * 1024
GROUP_PIDS = 8
GROUP_MILLICORES = 100
BURN_S = 0.3
"""Three periods of the usual quota."""
STAY_S = 60
"""Longer than any trial waits, so that only one that was killed is ended by it."""
_SMALL = 16
"""Open files, inodes and pages of a probe: small enough to run into at once."""

_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):  # says a state, as everywhere in this package
    """A step that did not work, and the kernel's reason."""

    def __init__(self, step: str, number: int = 0) -> None:
        super().__init__(step)
        self.step = step
        self.number = number


def check(step: str, result: int) -> int:
    """A system call's result, unless it failed."""
    if result < 0:
        raise Failed(step, ctypes.get_errno())
    return result


def rlimit() -> None:
    """A process that may open few files cannot open more."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_SMALL, _SMALL))
    if resource.getrlimit(resource.RLIMIT_NOFILE) != (_SMALL, _SMALL):
        raise Failed("read back RLIMIT_NOFILE")
    try:
        for _ in range(_SMALL):
            os.dup(0)
    except OSError as error:
        if error.errno == errno.EMFILE:
            return
        raise
    raise Failed("exceed RLIMIT_NOFILE")


def user_namespace(flags: int = 0) -> None:
    """A process can make a user namespace and be root in it."""
    uid, gid = os.geteuid(), os.getegid()
    libc.unshare(libc.CLONE_NEWUSER | flags)
    Path("/proc/self/setgroups").write_bytes(b"deny")
    Path("/proc/self/uid_map").write_bytes(b"0 %d 1" % uid)
    Path("/proc/self/gid_map").write_bytes(b"0 %d 1" % gid)
    if os.geteuid() != 0:
        raise Failed("map the user")


def tmpfs() -> None:
    """A tmpfs of one's own holds no more bytes and files than it may."""
    if os.geteuid() == 0:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    else:
        user_namespace(libc.CLONE_NEWNS)
    root = Path("/tmp")  # noqa: S108  # in a namespace of our own
    size = _SMALL * resource.getpagesize()
    libc.mount("tmpfs", str(root), "tmpfs", data=f"size={size},nr_inodes={_SMALL}")
    _until_full("exceed the size", root / "big", size)
    for number in range(_SMALL):
        try:
            (root / str(number)).touch()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return
            raise
    raise Failed("exceed the file count")


def _until_full(step: str, path: Path, size: int) -> None:
    try:
        path.write_bytes(b"\0" * 2 * size)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return
        raise
    raise Failed(step)


def seccomp() -> None:
    """A filter turns a system call into EPERM."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the call's number
            (0x15, 0, 1, NO_SUCH_CALL),  # if it is ours
            (0x06, 0, 0, 0x00050000 | errno.EPERM),  # fail with EPERM
            (0x06, 0, 0, 0x7FFF0000),  # else allow
        )
    )
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    )
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
    check("load the filter", _libc.prctl(PR_SET_SECCOMP, mode, header, None, None))
    _libc.syscall(NO_SUCH_CALL)
    if ctypes.get_errno() != errno.EPERM:
        raise Failed("filter a call", ctypes.get_errno())


def landlock() -> int:
    """Landlock's version, once a write outside of every rule was refused."""
    abi = check(
        "create a ruleset",
        _libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION),
    )
    handled = ctypes.c_uint64(LANDLOCK_ACCESS_FS_WRITE_FILE)
    ruleset = check(
        "create a ruleset",
        _libc.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0),
    )
    with tempfile.NamedTemporaryFile() as file:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        check("restrict", _libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0))
        try:
            os.close(os.open(file.name, os.O_WRONLY))
        except PermissionError:
            return abi
    raise Failed("refuse a write")


def orphans() -> None:
    """An orphan comes to its subreaper, killed by its parent-death signal."""
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    read_end, write_end = os.pipe()
    parent = os.fork()
    if parent == 0:
        if os.fork() == 0:
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.write(write_end, b"%d" % os.getpid())
            signal.pause()
        os.read(read_end, 16)
        os._exit(0)
    os.waitpid(parent, 0)
    _, status = os.waitpid(-1, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise Failed("parent-death signal")


def pidfd() -> None:
    """A process can be signalled and awaited by a descriptor that is never reused."""
    child = os.fork()
    if child == 0:
        signal.pause()
    fd = os.pidfd_open(child)
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    ended = os.waitid(os.P_PIDFD, fd, os.WEXITED)
    if ended is None or ended.si_status != signal.SIGKILL:
        raise Failed("wait by pidfd")


def terminal() -> None:
    """A process can have a terminal of its own."""
    master, slave = os.openpty()
    child = os.fork()
    if child == 0:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        os.write(os.open("/dev/tty", os.O_RDWR), b"mine")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(slave)
    if os.read(master, 16) != b"mine":
        raise Failed("write to /dev/tty")


def grow() -> None:
    """Take more memory than a group of `GROUP_MEMORY_BYTES` has; the kernel ends us before."""
    block = bytearray(2 * GROUP_MEMORY_BYTES)
    for at in range(0, len(block), resource.getpagesize()):
        block[at] = 1


def fork() -> int:
    """How many processes there can be, up to twice `GROUP_PIDS`."""
    children: list[int] = []
    try:
        while len(children) < 2 * GROUP_PIDS:
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    except BlockingIOError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children) + 1


def burn() -> None:
    """Keep a processor busy for some periods of its quota."""
    end = time.monotonic() + BURN_S
    while time.monotonic() < end:
        pass


def stay() -> None:
    """Leave a process behind in a session of its own, and wait to be killed.

    If nobody does, because whoever tries this was killed first, both end by themselves.
    """
    if os.fork() == 0:
        os.setsid()
    signal.alarm(STAY_S)  # each its own: a fork has none
    signal.pause()


PROBES = {
    probe.__name__: probe
    for probe in (
        *(rlimit, user_namespace, tmpfs, seccomp, landlock, orphans, pidfd, terminal),
        *(grow, fork, burn, stay),
    )
}


def become(uid: int) -> None:
    """Drop root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # Without an exec the kernel keeps /proc/self root's, and the maps of a namespace are there.
    libc.prctl(PR_SET_DUMPABLE, 1)


def main() -> None:
    """`NAME UID JOIN`: run one probe and print what came of it.

    `JOIN` are descriptors of `cgroup.procs`; it and `UID` may be empty.
    """
    name, uid, join = sys.argv[1:]
    try:
        for fd in join.split():
            os.write(int(fd), b"0")
        if uid:
            become(int(uid))
        value = PROBES[name]()
        answer: dict[str, object] = {"ok": True, "value": value}
    except Failed as error:
        answer = {"ok": False, "step": error.step, "errno": error.number}
    except OSError as error:
        answer = {"ok": False, "step": str(error.filename or name), "errno": error.errno}
    sys.stdout.write(json.dumps(answer))
