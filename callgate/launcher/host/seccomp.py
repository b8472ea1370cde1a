"""System calls that no agent needs, as a filter that bwrap loads.

A list of refusals, not of permissions: agents are interpreters with whole ecosystems below
them, and a list of permissions breaks with each new libc. What is refused reaches into the
kernel (modules, bpf, perf, keyrings), into other processes (ptrace and the like), around
the mounts and namespaces that the sandbox is made of, around the network namespace (vsock
has none), or types into a terminal as if it were the user (TIOCSTI).

libseccomp compiles it, through pyseccomp; the program is exported once in a process.
"""

from __future__ import annotations

import errno
import os
from functools import cache
from typing import Any, Final

REFUSED: Final = (
    # Into the kernel.
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("bpf", "perf_event_open", "syslog", "acct", "swapon", "swapoff", "quotactl", "quotactl_fd"),
    *("add_key", "request_key", "keyctl", "lookup_dcookie", "userfaultfd", "vmsplice"),
    *("iopl", "ioperm", "modify_ldt", "uselib", "nfsservctl", "_sysctl"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname"),
    # Into other processes.
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp"),
    *("pidfd_getfd", "move_pages", "migrate_pages", "mbind", "set_mempolicy"),
    # Around the sandbox.
    *("mount", "umount", "umount2", "pivot_root", "chroot", "unshare", "setns"),
    *("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    *("open_by_handle_at", "name_to_handle_at", "fanotify_init"),
)
MISSING: Final = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""Answered as if the kernel were older: a filter cannot look into clone3's arguments, nor
into io_uring's queue, and libc and libuv go on without them."""

NAMESPACE_FLAGS: Final = (
    0x0002_0000,  # mount
    0x0200_0000,  # cgroup
    0x0400_0000,  # uts
    0x0800_0000,  # ipc
    0x1000_0000,  # user
    0x2000_0000,  # pid
    0x4000_0000,  # net
)
TERMINAL_IOCTLS: Final = (
    0x5412,  # TIOCSTI
    0x541C,  # TIOCLINUX
)
FAMILIES: Final = (1, 2, 10, 16)
"""Sockets that exist: unix, inet, inet6, netlink (libc lists addresses with it)."""
_HIGHEST_FAMILY: Final = 45
"""AF_MCTP, the newest; the kernel itself refuses what is above."""
_IOCTL_MASK: Final = 0xFFFF_FFFF
"""The kernel looks at 32 bits of the request, so a filter must not look at more."""


class Unavailable(Exception):  # a capability's state
    """There is no filter on this host; the text says what is missing."""


@cache
def program() -> bytes:
    """Return the filter as BPF; raises `Unavailable`."""
    try:
        # An extra, without types; it loads a library.
        import pyseccomp  # type: ignore[import-untyped]  # noqa: PLC0415
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(f"pyseccomp or libseccomp cannot be loaded ({error})") from None
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)
    for name in REFUSED:
        _rule(rules, refuse, name)
    for name in MISSING:
        _rule(rules, pyseccomp.ERRNO(errno.ENOSYS), name)
    for flag in NAMESPACE_FLAGS:
        _rule(rules, refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for request in TERMINAL_IOCTLS:
        low = pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _IOCTL_MASK, request)
        _rule(rules, refuse, "ioctl", low)
    for family in range(_HIGHEST_FAMILY + 1):
        if family not in FAMILIES:
            _rule(rules, refuse, "socket", pyseccomp.Arg(0, pyseccomp.EQ, family))
    return _exported(rules)


def _rule(rules: Any, action: int, name: str, *args: Any) -> None:
    """A name that libseccomp does not know would leave a hole, so there is no filter then."""
    try:
        rules.add_rule(action, name, *args)
    except OSError as error:
        raise Unavailable(f"libseccomp does not take a rule for {name} ({error})") from None


def _exported(rules: Any) -> bytes:
    with os.fdopen(os.memfd_create("seccomp"), "r+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
