"""A trial in a process of its own: can this user mount a tmpfs, and make a sandbox?

The first is done in a fork, because it cannot be undone; the second by becoming bwrap.
Stdlib only: it is started like a warden.
"""

from __future__ import annotations

import os
import sys

from callgate.launcher import mounts, shim


def main() -> None:
    """`<uid> bwrap …`: say on standard output whether a tmpfs can be had, then be bwrap."""
    uid, command = int(sys.argv[1]), sys.argv[2:]
    child = os.fork()
    if child == 0:
        _mount()
    os.waitpid(child, 0)
    if os.geteuid() == 0:
        shim.drop((uid, uid))
    os.chdir("/")
    os.execv(command[0], command)  # noqa: S606  # an argument vector, no shell


def _mount() -> None:
    wanted: dict[str, object] = {
        "workspace": mounts.STAGE,
        "options": "size=65536,nr_inodes=16",
        "directories": [],
        "owner": None,
        "stage": None,
    }
    try:
        mounts.prepare(wanted)
        os.write(1, b"tmpfs\n")
    except OSError as error:
        os.write(1, f"no tmpfs of one's own: {shim.describe(error)}\n".encode())
    os._exit(0)
