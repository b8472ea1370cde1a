"""The end of a tree of processes, through psutil: for systems without subreapers.

Blocking: call it from a thread. Who leaves the tree while it is being killed is not found.
"""

from __future__ import annotations

import time
from typing import Final

import psutil

LOOKS: Final = 100
LOOK_S: Final = 0.02
"""Two seconds in all: what still forks then has won."""


def kill_tree(root: int, *, itself: bool = True) -> bool:
    """Kill everybody below a process, and the process; whether nobody was found in the end."""
    for _ in range(LOOKS):
        try:
            process = psutil.Process(root)
            found = process.children(recursive=True) + ([process] if itself else [])
        except psutil.NoSuchProcess:
            return True
        living = [each for each in found if _kill(each)]
        if not living:
            return True
        psutil.wait_procs(living, timeout=LOOK_S)
    return False


def _kill(process: psutil.Process) -> bool:
    """Whether it was there to be killed."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.kill()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        time.sleep(LOOK_S)
    return True
