"""The processes below one, and their end: /proc on Linux, psutil elsewhere.

Blocking: call it from a thread. Who leaves the tree while it is being killed is not found;
a warden does not have that gap.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Final

import psutil

from callgate.launcher.warden import tree

LOOKS: Final = 100
LOOK_S: Final = 0.02
"""Two seconds in all: what still forks then has won."""
MAX_PIDS: Final = 4_096
"""Processes looked at, at most: a fork bomb must not stop the one who counts."""


_PROC: Final[bool] = sys.platform == "linux"


def descendants(pid: int) -> list[int]:
    """Return every process below one, parents first where the system tells."""
    return (tree.descendants(pid) if _PROC else _children(pid))[:MAX_PIDS]


def count_of_user() -> int:
    """Return the processes of our user, threads included, as the kernel counts for a limit."""
    own = psutil.Process()
    count = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.username() == own.username():
                count += process.num_threads()
    return count


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def kill_tree(root: int, *, itself: bool = True) -> bool:
    """Kill a process and its descendants. Return True if none is left."""
    for _ in range(LOOKS):
        pids = descendants(root) + ([root] if itself else [])
        killed = [process for pid in pids if (process := _kill(pid)) is not None]
        if not killed:
            return True
        psutil.wait_procs(killed, timeout=LOOK_S)
    return False


def _kill(pid: int) -> psutil.Process | None:
    """Return the process, if it was there to be killed."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        process.kill()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        time.sleep(LOOK_S)
    return process
