"""Give each run of a root callgate a user of its own.

The kernel counts inotify instances, pending signals, message queues, pages of pipes, watches of
epoll and more by user: runs that share one could take them all from each other.

A uid is one byte of a file, locked for as long as callgate or the run's warden lives: the lock
belongs to the open file, which they share, and it needs no cleaning up. Where the file is not
shared (two containers with one user namespace) the choice by chance makes it unlikely that two
runs meet. IO, blocking but short.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from callgate import files

if TYPE_CHECKING:
    from callgate.launcher.plan.launch_plan import Drop

UIDS: Final = Path("/run/callgate/uids")
"""Of this boot, whatever the roots of launchers are."""
TRIES: Final = 256
"""Fail for one in 10**77 launches while half of all uids are taken."""
_WHENCE_START: Final = 0


class RunUser(NamedTuple):
    """Who a run is, and the lock that keeps others from being that."""

    uid: int
    gid: int
    lock: int | None
    """An open descriptor, for the warden too; None for a user that runs share."""


def take(drop: Drop) -> RunUser:
    """Lock a uid that no other run has; raises `OSError` if none can be found."""
    first, count = drop.uids
    if drop.shared:
        return RunUser(first, drop.gid, None)
    files.secure_directory(UIDS.parent, make=True)
    lock = files.open_file(UIDS, os.O_RDWR, make=True)
    for _ in range(TRIES):
        uid = first + secrets.randbelow(count)
        if _locked(lock, uid):
            return RunUser(uid, drop.gid, lock)
    os.close(lock)
    raise OSError(errno.EAGAIN, "no uid is free for a run", str(UIDS))


def _locked(lock: int, uid: int) -> bool:
    # As `struct flock` of fcntl(2): type, whence, start, length, pid.
    wanted = struct.pack("hhqqixxxx", fcntl.F_WRLCK, _WHENCE_START, uid, 1, 0)
    try:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, wanted)
    except (BlockingIOError, PermissionError):  # both are allowed answers
        return False
    return True
