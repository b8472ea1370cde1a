"""Try one thing in a process of its own, and say how it went: the child's half of `trial`.

Most of these acts cannot be undone in the process that does them. Wherever a run has a step
for it (`shim`, `mounts`, `landlock`), the act is that very step, followed by running into
what it set. With a uid the process first becomes that user, as an agent of a root callgate
does. It exits with 0 and prints a number, if the act has one; else with 1 and the reason.

Standard library only, and light: the survey starts it before the first sandbox.
"""

# Like a warden, this does not pay for pathlib.
# ruff: noqa: PTH118, PTH123

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums
import ctypes
import errno
import os
import resource
import sys
import time

from callgate.launcher.warden import landlock, libc, shim, warden_mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
NO_DESCRIPTOR = -1
"""setns(2) answers EBADF to it without a filter, EPERM with ours."""

GROUP_MEMORY_BYTES = 32 * 1024 * 1024
GROUP_PIDS = 8
BURN_S = 0.3
"""Three periods of the usual quota."""
STAY_S = 60
"""Longer than any trial waits, so that only one that was killed is ended by it."""
SMALL = 16
"""Open files, inodes and pages of a trial: small enough to run into at once."""


def rlimits() -> None:
    """Set a limit of open files; fail if more can be opened."""
    shim.limit([("RLIMIT_NOFILE", SMALL)])
    _refused("exceed RLIMIT_NOFILE", errno.EMFILE, lambda: [os.dup(0) for _ in range(SMALL)])


def user_namespace() -> None:
    """Make a user namespace."""
    warden_mounts.own_user_namespace()


def tmpfs() -> None:
    """Mount a tmpfs; fail if it holds more bytes or files than it may."""
    root, size = warden_mounts.STAGE, SMALL * resource.getpagesize()
    warden_mounts.prepare(
        {
            "namespace": True,
            "workspace": root,
            "options": f"size={size},nr_inodes={SMALL}",
            "directories": [],
            "owner": None,
            "stage": None,
            "searched": [],
            "places": [],
        }
    )
    with open(os.path.join(root, "big"), "wb", buffering=0) as file:
        # A write that goes over is cut short; the next one is refused.
        full = errno.ENOSPC
        _refused("exceed the size", full, lambda: [file.write(bytes(size)) for _ in range(2)])
    names = [os.path.join(root, str(number)) for number in range(SMALL)]
    # Nodes, because they stay without being held open.
    _refused("exceed the file count", full, lambda: [*map(os.mknod, names)])


def seccomp() -> None:
    """Load the filter that came on standard input; fail if a call that it refuses is made."""
    program = os.read(0, 1 << 20)
    code = ctypes.create_string_buffer(program)
    header = _Program(len(program) // 8, ctypes.addressof(code))
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))
    _refused("filter a call", errno.EPERM, lambda: libc.setns(NO_DESCRIPTOR))


class _Program(ctypes.Structure):
    """`struct sock_fprog` of <linux/filter.h>."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def wall() -> int:
    """Build landlock around this process; return its version once a write was refused."""
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    version = landlock.abi()
    landlock.restrict(version, (), "free", scoped=False)
    _refused("refuse a write", errno.EACCES, lambda: os.open(os.devnull, os.O_WRONLY))
    return version


def orphans() -> None:
    """Fail if an orphan does not come to its subreaper, killed by its parent-death signal."""
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    read_end, write_end = os.pipe()
    parent = os.fork()
    if parent == 0:
        if os.fork() == 0:
            libc.prctl(libc.PR_SET_PDEATHSIG, _signal.SIGKILL)
            os.write(write_end, b"ready")
            _signal.pause()
        os.read(read_end, 16)
        os._exit(0)
    os.waitpid(parent, 0)
    _, status = os.waitpid(-1, 0)
    if os.waitstatus_to_exitcode(status) != -_signal.SIGKILL:
        raise shim.Failed("", "parent-death signal")


def pidfd() -> None:
    """Fail if a process cannot be signalled and awaited by a descriptor."""
    child = os.fork()
    if child == 0:
        _signal.pause()
    fd = os.pidfd_open(child)
    _signal.pidfd_send_signal(fd, _signal.SIGKILL)
    ended = os.waitid(os.P_PIDFD, fd, os.WEXITED)
    if ended is None or ended.si_status != _signal.SIGKILL:
        raise shim.Failed("", "wait by pidfd")


def terminal() -> None:
    """Fail if a process cannot have a terminal of its own."""
    master, slave = os.openpty()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.dup2(slave, 0)
            shim.take_terminal()
            os.write(os.open("/dev/tty", os.O_RDWR), b"mine")
        finally:  # the parent says what it did not read
            os._exit(0)
    os.waitpid(child, 0)
    os.close(slave)
    if os.read(master, 16) != b"mine":
        raise shim.Failed("", "write to /dev/tty")


def grow() -> None:
    """Take more memory than a group of `GROUP_MEMORY_BYTES` has; the kernel kills us before."""
    block = bytearray(2 * GROUP_MEMORY_BYTES)
    for at in range(0, len(block), resource.getpagesize()):
        block[at] = 1


def fork() -> int:
    """Return how many processes there can be, up to twice `GROUP_PIDS`."""
    children: list[int] = []
    try:
        while len(children) < 2 * GROUP_PIDS:
            child = os.fork()
            if child == 0:
                _signal.pause()
            children.append(child)
    except BlockingIOError:
        pass
    for child in children:
        os.kill(child, _signal.SIGKILL)
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
    _signal.alarm(STAY_S)  # each its own: a fork has none
    _signal.pause()


ACTS: dict[str, Callable[[], int | None]] = {
    act.__name__: act
    for act in (
        *(rlimits, user_namespace, tmpfs, seccomp, wall, orphans, pidfd, terminal),
        *(grow, fork, burn, stay),
    )
}


def _refused(step: str, number: int, act: Callable[[], object]) -> None:
    """Fail with the step's name unless the act ends with this error."""
    try:
        act()
    except OSError as error:
        if error.errno == number:
            return
        raise
    raise shim.Failed("", step)


def main() -> None:
    """`NAME UID JOIN`: do one act. `JOIN` are descriptors of `cgroup.procs`; both may be empty."""
    name, uid, join = sys.argv[1:]
    try:
        for fd in join.split():
            os.write(int(fd), b"0")
        if uid:
            shim.drop((int(uid), int(uid)))
            # Without an exec /proc/self stays root's, and a namespace's maps are there.
            libc.prctl(PR_SET_DUMPABLE, 1)
        value = ACTS[name]()
        os.write(1, b"" if value is None else b"%d" % value)
        code = 0
    except (OSError, shim.Failed) as error:
        why = error.error if isinstance(error, shim.Failed) else shim.describe(error)
        os.write(1, why.encode("utf-8", "replace"))
        code = 1
    os._exit(code)
