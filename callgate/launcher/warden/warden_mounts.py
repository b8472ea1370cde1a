"""What the warden mounts for itself alone, before the sandbox is made.

In a mount namespace of its own, so that nothing of it is seen outside and all of it goes
with the warden: the workspace as a tmpfs with a size and a number of files, which bwrap
cannot limit; and, when callgate is root, a *stage*: a copy, by bind mounts, of everything
that the sandbox is made from, in a place that the uid it drops to can reach. Without the
stage an interpreter below /root could not be bound by anybody but root.

Without root the namespace comes with a user namespace that maps the user to itself. Stdlib
only: the warden loads this.
"""

# A warden does not need pathlib, which costs it an import.
# ruff: noqa: PTH102, PTH116, PTH118

from __future__ import annotations

import os
import stat

from callgate.launcher.warden import libc
from callgate.launcher.warden.warden_stdlib import ignore_os_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

STAGE = "/tmp"  # noqa: S108  # a mount of ours covers it, in our own namespace
"""Where the stage is put at the end: there on every system, open to everybody."""
COUNTED_BY_USER = (
    "max_inotify_instances",
    "max_inotify_watches",
    "max_fanotify_groups",
    "max_fanotify_marks",
)
"""Files of /proc/sys/user: a namespace has limits of its own, and counts for those above it too."""
SHARE = 8
"""A run may take so small a part of what its user may: 16 of 128 inotify instances."""


def prepare(mounts: Mapping[str, Any]) -> int | None:
    """Make the namespace and everything in it.

    Returns the open workspace if it is a mount: callgate can measure by that what it does
    not see, and its path may be covered in the end.
    """
    if os.geteuid() == 0:
        libc.unshare(libc.CLONE_NEWNS)
    else:
        _own_counts()
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    workspace = mounts["workspace"]
    opened = None
    if workspace is not None:
        flags = libc.MS_NOSUID | libc.MS_NODEV
        libc.mount("tmpfs", workspace, "tmpfs", flags, mounts["options"])
        for name in mounts["directories"]:
            path = os.path.join(workspace, name)
            os.mkdir(path, 0o700)
            if mounts["owner"] is not None:
                os.chown(path, *mounts["owner"])
        opened = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    stage = mounts["stage"]
    if stage is not None:
        _stage(stage, mounts["sources"])
    return opened


def _own_counts() -> None:
    """Enter a user namespace in which this run may take a share of what the kernel counts by user.

    Without that, one run could take all inotify instances of its user, who is ours. In most
    containers /proc/sys is read-only: there nothing is shared out.
    """
    shares = {}
    for name in COUNTED_BY_USER:
        with ignore_os_error, open(f"/proc/sys/user/{name}", encoding="ascii") as file:  # noqa: PTH123
            shares[name] = max(1, int(file.read()) // SHARE)
    own_user_namespace()
    for name, most in shares.items():
        with ignore_os_error:
            fd = os.open(f"/proc/sys/user/{name}", os.O_WRONLY)
            try:
                os.write(fd, str(most).encode())
            finally:
                os.close(fd)


def own_user_namespace() -> None:
    """Enter a user namespace that maps this user to itself, with a mount namespace."""
    uid, gid = os.geteuid(), os.getegid()
    libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def _stage(stage: str, sources: list[str]) -> None:
    """Source N becomes `/tmp/N`, as a bind mount with everything that is mounted below it."""
    libc.mount("tmpfs", stage, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=755")
    for number, source in enumerate(sources):
        target = os.path.join(stage, str(number))
        if stat.S_ISDIR(os.stat(source).st_mode):  # raises with the name of what is missing
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
        libc.mount(source, target, flags=libc.MS_BIND | libc.MS_REC)
    libc.mount(stage, STAGE, flags=libc.MS_BIND | libc.MS_REC)
