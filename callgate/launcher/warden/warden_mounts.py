"""What the warden mounts for itself alone, before the sandbox is made.

In a mount namespace of its own, so that nothing of it is seen outside and all of it goes
with the warden: the workspace as a tmpfs with a size and a number of files, which bwrap
cannot limit; and, when callgate is root, a *stage*: a copy, by bind mounts, of everything
that the sandbox is made from, in a place that the uid it drops to can reach. Without the
stage an interpreter below /root could not be bound by anybody but root. Without root there
is a stage where the policy has mounts.

On the stage everything is mounted by descriptor (`safe_path`): what an earlier run has made
of a name in its mount, or makes of it while this goes on, is not followed. A mount inside of
another is put there before bwrap sees the whole.

Without root the namespace comes with a user namespace that maps the user to itself. Stdlib
only: the warden loads this.
"""

# A warden does not need pathlib, which costs it an import.
# ruff: noqa: PTH102, PTH115, PTH118

from __future__ import annotations

import os
import stat

from callgate.launcher.warden import libc
from callgate.launcher.warden.safe_path import UnsafePath, open_below, open_path
from callgate.launcher.warden.special_files import find_special_files
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
WORKSPACE = "workspace"
"""The name on the stage of the directory with the agent's files and its `/tmp`."""
_EMPTY = "empty"
"""An empty file that nobody may read, mounted over sockets and the like."""
_PARTS = ("files", "tmp")
"""Of the workspace; the trees of a stage begin with these two."""


def prepare(mounts: Mapping[str, Any]) -> int | None:
    """Make the namespace and everything in it.

    Returns the open workspace if it is a mount: callgate can measure by that what it does
    not see, and its path may be covered in the end.
    """
    places = {tuple(place) for place in mounts["places"]}
    if not mounts["namespace"]:
        _refuse_special_files(mounts["searched"], places)
        return None
    # First of all: what fails after it is unmounted, which must never be in the host's namespace.
    if os.geteuid() == 0:
        libc.unshare(libc.CLONE_NEWNS)
    else:
        _own_counts()
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    _refuse_special_files(mounts["searched"], places)
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
        _stage(stage, mounts, places)
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


def _stage(stage: str, mounts: Mapping[str, Any], places: set[tuple[int, int]]) -> None:
    """Tree N becomes `/tmp/N`, with everything that is mounted below it."""
    libc.mount("tmpfs", stage, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=755")
    empty = _put_empty(os.path.join(stage, _EMPTY))
    shared = os.open(mounts["shared"], os.O_RDONLY | os.O_DIRECTORY)
    workspace = _put(shared, os.path.join(stage, WORKSPACE))
    for number, tree in enumerate(mounts["trees"]):
        if number < len(_PARTS):
            root = open_below(workspace, _PARTS[number])
        else:
            source = open_path(tree["source"], places).fd
            root = _put(source, os.path.join(stage, str(number - len(_PARTS))))
            os.close(source)
        _assemble(root, tree, empty, places)
        os.close(root)
    for fd in (empty, shared, workspace):
        os.close(fd)
    libc.mount(stage, STAGE, flags=libc.MS_BIND | libc.MS_REC)


def _put_empty(path: str) -> int:
    """Make an empty file as a read-only mount, or an agent of the same user could fill it."""
    made = os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0)
    libc.bind(made, made)
    os.close(made)
    empty = os.open(path, os.O_PATH | os.O_CLOEXEC)
    libc.make_read_only(empty)
    return empty


def _put(source: int, target: str) -> int:
    """Bind an open file or directory at a new name on the stage; return it as it is there."""
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    made = os.open(target, os.O_PATH | os.O_CLOEXEC)
    libc.bind(source, made)
    os.close(made)
    return os.open(target, os.O_PATH | os.O_CLOEXEC)


def _assemble(root: int, tree: Mapping[str, Any], empty: int, places: set[tuple[int, int]]) -> None:
    """Mount the parts of a tree in it, then hide what must not be reached through a mount."""
    parts = tree["parts"]
    if parts and not tree["writable"]:
        libc.make_read_only(root)
    mounted = [(tree, root)]
    for part in parts:
        source = open_path(part["source"], places).fd
        target = _open_target(root, part["below"], source)
        libc.bind(source, target)
        os.close(source)
        os.close(target)
        there = open_below(root, part["below"])
        if not part["writable"]:
            libc.make_read_only(there)
        mounted.append((part, there))
    roots = {_key(fd) for _, fd in mounted}
    for part, fd in mounted:
        if part["searched"]:
            for special in find_special_files(fd, part["source"], roots - {_key(fd)}):
                libc.bind(empty, special)
    for _, fd in mounted[1:]:
        os.close(fd)


def _open_target(root: int, below: str, source: int) -> int:
    """Open where a part belongs; what is missing is made, as for a mount in the agent's `/tmp`."""
    is_directory = stat.S_ISDIR(os.fstat(source).st_mode)
    try:
        return open_below(root, below)
    except FileNotFoundError:
        if is_directory:
            return open_below(root, below, make=True)
    folder, _, name = below.rpartition("/")
    above = open_below(root, folder, make=True)
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o600, dir_fd=above))
        return open_below(above, name)
    finally:
        os.close(above)


def _refuse_special_files(paths: list[str], places: set[tuple[int, int]]) -> None:
    """Raise `UnsafePath` for a socket that would have to be hidden, where nothing can be."""
    for path in paths:
        root = open_path(path, places).fd
        for special in find_special_files(root, path, set()):
            found = os.readlink(f"/proc/self/fd/{special}")
            raise UnsafePath(found, "a socket, FIFO or device, which cannot be hidden here")
        os.close(root)


def _key(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
