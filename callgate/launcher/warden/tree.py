"""Who descends from whom, from /proc; and the end of all of them.

Stdlib only: the warden loads this. A subreaper's descendants cannot leave it, whatever
sessions and groups they make, so to kill until no child is left is to kill everything.
"""

from __future__ import annotations

import os
import sys

from callgate.launcher.warden.warden_stdlib import ignore_os_error

MARK_LOOKS = 50
"""A process may fork between two looks; one that always does outruns any number of them."""
MARK_BYTES = 1 << 20
"""Of an environment: the kernel allows 128 KiB for a variable, and more for all."""


def descendants(root: int) -> list[int]:
    """Return every process below `root`, parents first. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def parents() -> list[tuple[int, int]]:
    """Return (pid, parent) of every process that is more than a zombie."""
    found: list[tuple[int, int]] = []
    with ignore_os_error:
        for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib is an import too many
            if name.isdigit():
                parent = parent_of(int(name))
                if parent is not None:
                    found.append((int(name), parent))
    return found


def session(leader: int) -> list[int]:
    """Return every process of a session."""
    found = [pid for pid, _ in parents()]
    return [pid for pid in found if _session_of(pid) == leader]


def kill_marked(variable: bytes) -> None:
    """Kill every process that was executed with a variable, until there is none.

    One that was executed without it, and is of no session or group of ours, is not found.
    """
    for _ in range(MARK_LOOKS):
        found = [pid for pid, _ in parents() if variable in _environment_of(pid)]
        for pid in found:
            with ignore_os_error:
                os.kill(pid, 9)
        if not found:
            return


def _environment_of(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  # no pathlib here
            return file.read(MARK_BYTES).split(b"\0")
    except OSError:
        return []


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def parent_of(pid: int) -> int | None:
    """Return the parent's pid, or None for a process that is gone or a zombie."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(fd, 1024)
    except OSError:
        return None
    finally:
        os.close(fd)
    # The name may hold blanks and brackets; the last bracket ends it.
    state, parent = data[data.rindex(b")") + 2 :].split(None, 2)[:2]
    return None if state in (b"Z", b"X") else int(parent)


_GET_INFO = 0xC040FF0B
"""PIDFD_GET_INFO of <linux/pidfd.h>, with the first size that it had."""
_INFO_BYTES = 64
_INFO_EXIT = 1 << 3
_EXIT_AT = 60
"""Where the first structure has its last member, the exit status."""


def status_of(pidfd: int) -> int | None:
    """Return how a process ended that another has reaped; None where the kernel does not tell.

    Linux has kept it for whoever holds the descriptor since 6.15.
    """
    import fcntl  # noqa: PLC0415  # only some ends need it

    info = bytearray(_INFO_EXIT.to_bytes(8, sys.byteorder) + bytes(_INFO_BYTES - 8))
    with ignore_os_error:
        fcntl.ioctl(pidfd, _GET_INFO, info)
        if int.from_bytes(info[:8], sys.byteorder) & _INFO_EXIT:
            return int.from_bytes(info[_EXIT_AT:], sys.byteorder, signed=True)
    return None
