"""System calls that a process in a sandbox may make. Data; `seccomp.py` compiles it.

The list is what Docker's default profile allows a container without capabilities, less what
reads other processes (ptrace and the like), what finds files by handle, and what changes the
machine or only serves 32-bit programs. `tests/launcher/test_seccomp.py` names each difference
and its reason.

A name is looked up when the filter is compiled, so that the list serves each architecture; a
call that an architecture does not have (`open` on aarch64) is left out there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Comparison = tuple[int, int, int]
"""An argument's index, a mask, and what the argument must be under that mask."""

ALLOWED: Final = (
    # Processes, threads and their scheduling.
    *("execve", "execveat", "exit", "exit_group", "fork", "vfork", "wait4", "waitid"),
    *("getpid", "getppid", "gettid", "getpgid", "getpgrp", "getsid", "setpgid", "setsid"),
    *("arch_prctl", "prctl", "seccomp", "set_tid_address", "rseq", "membarrier"),
    *("set_robust_list", "get_robust_list", "futex", "futex_waitv", "futex_wake", "futex_wait"),
    *("futex_requeue", "pidfd_open", "pidfd_send_signal", "process_mrelease", "restart_syscall"),
    *("sched_yield", "sched_getaffinity", "sched_setaffinity", "sched_getattr", "sched_setattr"),
    *("sched_getparam", "sched_setparam", "sched_getscheduler", "sched_setscheduler"),
    *("sched_get_priority_max", "sched_get_priority_min", "sched_rr_get_interval", "getcpu"),
    *("getpriority", "setpriority", "ioprio_get", "ioprio_set", "getrlimit", "setrlimit"),
    *("prlimit64", "getrusage", "times", "sysinfo", "uname"),
    *("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
    # Signals.
    *("kill", "tkill", "tgkill", "pause", "rt_sigaction", "rt_sigpending", "rt_sigprocmask"),
    *("rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "sigaltstack"),
    *("rt_tgsigqueueinfo", "signalfd", "signalfd4"),
    # Users and capabilities, of which there are none to gain.
    *("getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups"),
    *("setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups"),
    *("setfsuid", "setfsgid", "capget", "capset"),
    # Memory.
    *("brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "mincore", "msync", "mseal"),
    *("mlock", "mlock2", "mlockall", "munlock", "munlockall", "remap_file_pages", "memfd_create"),
    *("memfd_secret", "map_shadow_stack", "pkey_alloc", "pkey_free", "pkey_mprotect"),
    # Time.
    *("time", "gettimeofday", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep"),
    *("alarm", "getitimer", "setitimer", "timer_create", "timer_delete", "timer_getoverrun"),
    *("timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime"),
    # Descriptors.
    *("read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2"),
    *("pwritev2", "lseek", "close", "close_range", "dup", "dup2", "dup3", "fcntl", "flock"),
    *("ioctl", "pipe", "pipe2", "eventfd", "eventfd2", "sendfile", "splice", "tee"),
    *("copy_file_range", "readahead", "fadvise64", "fallocate", "sync_file_range", "cachestat"),
    *("fsync", "fdatasync", "sync", "syncfs", "truncate", "ftruncate"),
    *("poll", "ppoll", "select", "pselect6", "epoll_create", "epoll_create1", "epoll_ctl"),
    *("epoll_wait", "epoll_pwait", "epoll_pwait2", "inotify_init", "inotify_init1"),
    *("inotify_add_watch", "inotify_rm_watch", "getrandom"),
    # Files. The kernel wants capabilities for devices; a FIFO is made with mknod, too.
    *("open", "openat", "openat2", "creat", "access", "faccessat", "faccessat2", "umask"),
    *("stat", "fstat", "lstat", "newfstatat", "statx", "statfs", "fstatfs", "statmount"),
    *("listmount", "getcwd", "chdir", "fchdir", "getdents", "getdents64", "mkdir", "mkdirat"),
    *("rmdir", "mknod", "mknodat", "link", "linkat", "symlink", "symlinkat", "unlink"),
    *("unlinkat", "rename", "renameat", "renameat2", "readlink", "readlinkat", "chmod"),
    *("fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime"),
    *("utimes", "futimesat", "utimensat", "getxattr", "lgetxattr", "fgetxattr", "getxattrat"),
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat", "listxattr", "llistxattr"),
    *("flistxattr", "listxattrat", "removexattr", "lremovexattr", "fremovexattr"),
    "removexattrat",
    # Sockets; which ones there may be, `ALLOWED_IF` says.
    *("bind", "connect", "listen", "accept", "accept4", "shutdown", "getsockname", "getpeername"),
    *("getsockopt", "setsockopt", "sendto", "sendmsg", "sendmmsg", "recvfrom", "recvmsg"),
    "recvmmsg",
    # System V and POSIX IPC, in a namespace of the sandbox's own.
    *("shmget", "shmat", "shmdt", "shmctl", "semget", "semop", "semctl", "semtimedop"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend"),
    *("mq_timedreceive", "mq_notify", "mq_getsetattr"),
)

_LOW: Final = 0xFFFF_FFFF
"""The kernel takes these arguments as 32-bit numbers, so more must not be compared."""
_KIND: Final = 0xF
"""Of a socket's type; the rest are flags."""
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5
_TCP, _UDP, _ICMP, _ICMPV6 = 6, 17, 1, 58
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_INTERNET: Final = (
    # 0 is the type's usual protocol. MPTCP, SMC and SCTP would go around landlock's rule for TCP.
    *((family, _STREAM, protocol) for family in (_INET, _INET6) for protocol in (0, _TCP)),
    *((family, _DGRAM, protocol) for family in (_INET, _INET6) for protocol in (0, _UDP)),
    (_INET, _DGRAM, _ICMP),
    (_INET6, _DGRAM, _ICMPV6),
)
NAMESPACES: Final = 0x7E02_0000
"""clone's flags for new mount, cgroup, uts, ipc, user, pid and network namespaces."""
PERSONALITIES: Final = (0, 0x8, 0x2_0000, 0x2_0008, _LOW)
"""Linux, and the machine's or the kernel's name as old programs want it; all bits: only ask."""

ALLOWED_IF: Final[tuple[tuple[str, tuple[Comparison, ...]], ...]] = (
    ("clone", ((0, NAMESPACES, 0),)),
    *(("personality", ((0, _LOW, persona),)) for persona in PERSONALITIES),
    ("socketpair", ((0, _LOW, _UNIX),)),
    ("socket", ((0, _LOW, _UNIX),)),
    # libc lists addresses over netlink's protocol 0 (route).
    ("socket", ((0, _LOW, _NETLINK), (2, _LOW, 0))),
    *(
        ("socket", ((0, _LOW, family), (1, _KIND, kind), (2, _LOW, protocol)))
        for family, kind, protocol in _INTERNET
    ),
)
"""A call that stands here several times is allowed if all comparisons of one entry hold."""


def allowed_if(
    refused: Collection[str] = (),
) -> Iterator[tuple[str, tuple[Comparison, ...]]]:
    """Yield `ALLOWED_IF` without what is refused: `internet` sockets, `unix` sockets.

    A pair of Unix sockets stays, if it is of a kind that cannot be connected to another one:
    a datagram of a pair can be sent to any socket.
    """
    for name, given in ALLOWED_IF:
        family = given[0][2]
        if name == "socket" and "internet" in refused and family in (_INET, _INET6):
            continue
        if name == "socket" and "unix" in refused and family == _UNIX:
            continue
        if name == "socketpair" and "unix" in refused:
            yield name, (*given, (1, _KIND, _STREAM))
            yield name, (*given, (1, _KIND, _SEQPACKET))
            continue
        yield name, given


TERMINAL_IOCTLS: Final = (
    0x5412,  # TIOCSTI: types into a terminal as if it were the user
    0x541C,  # TIOCLINUX: pastes into the console
)
"""The two requests of `ioctl` that are refused."""

MISSING: Final = (
    *("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents"),
)
"""Answered as if the kernel had been made without them. A filter cannot look into clone3's
arguments, nor into io_uring's queue; and the queues of `io_setup` are counted for the whole
machine, so that one sandbox could take all (`fs.aio-max-nr`). Programs go on without them."""

NEWEST: Final = 466
"""The last call that this list has judged; what is newer is answered as an older kernel would."""

UNASSIGNED: Final = {
    0xC000_003E: (range(337, 424),),
    0xC000_00B7: (range(244, 260), range(295, 424)),
}
"""Numbers up to `NEWEST` that no call has, by architecture (x86_64, aarch64) as libseccomp and
the kernel's audit number them; a call that will get one is new, too."""

NUMBERS: Final = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "pidfd_open": 434,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "faccessat2": 439,
    "epoll_pwait2": 441,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "futex_waitv": 449,
    "cachestat": 451,
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "statmount": 457,
    "listmount": 458,
    "mseal": 462,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
}
"""Calls that a libseccomp of some age does not know by name. Both architectures number alike
from 424 on."""
