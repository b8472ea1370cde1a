"""What a run uses, measured: from its cgroup and its processes.

IO, blocking: call it from a thread. Each reading takes what this host offers and leaves the
rest `None`; something that vanishes while it is read (a process, a file) is left out.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import psutil

from callgate.launcher.local.limit_check import Sample
from callgate.model import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

_INET: Final = ("tcp", "tcp6", "udp", "udp6")
_LISTEN: Final = "0A"
"""TCP_LISTEN as /proc/net/tcp has it."""


def read_processes(pids: list[int], exact_from_bytes: int | None = None) -> Usage:
    """Sum what these processes use; `pids` counts their threads too, as the kernel does.

    Resident memory counts a page once for each process that shares it. From
    `exact_from_bytes` on, where it would matter, pages are counted in proportion.
    """
    threads = memory = cpu_ns = 0
    processes = []
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                threads += process.num_threads()
                memory += process.memory_info().rss
            cpu_ns += int((times.user + times.system) * 1e9)
            processes.append(process)
    if exact_from_bytes is not None and memory >= exact_from_bytes:
        memory = min(memory, _proportional(processes))
    return Usage(cpu_ns=cpu_ns, memory_bytes=memory, pids=threads)


def _proportional(processes: list[psutil.Process]) -> int:
    memory = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            try:
                full = process.memory_full_info()
                memory += getattr(full, "pss", full.rss)
            except psutil.AccessDenied:
                memory += process.memory_info().rss
    return memory


def count_connections(pids: list[int]) -> int | None:
    """Count open internet sockets that do not only listen; None if nobody may look."""
    if sys.platform != "linux":
        return _connections_elsewhere(pids)
    # A process sees the sockets of its own network namespace: each table is read once, and only
    # if somebody there holds a socket, since to read an empty one takes the kernel 4 ms.
    held: dict[Path, set[str]] = {}
    witness: dict[Path, Path] = {}
    for pid in pids:
        process = Path("/proc") / str(pid)
        with suppress(OSError):
            namespace = (process / "ns" / "net").readlink()
            sockets = _sockets_of(process)
            held.setdefault(namespace, set()).update(sockets)
            witness[namespace] = process
    if not held:
        return None
    return sum(len(inodes & _connected(witness[name])) for name, inodes in held.items() if inodes)


def _sockets_of(process: Path) -> set[str]:
    found = set()
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found


def _connected(process: Path) -> set[str]:
    found = set()
    for protocol in _INET:
        with suppress(OSError), (process / "net" / protocol).open() as file:
            next(file, None)
            for line in file:
                _, _, _, state, _, _, _, _, _, inode, *_ = line.split()
                if state != _LISTEN:
                    found.add(inode)
    return found


def _connections_elsewhere(pids: list[int]) -> int | None:
    count, looked = 0, False
    for pid in pids:
        with suppress(psutil.Error):
            sockets = psutil.Process(pid).net_connections(kind="inet")
            count += sum(socket.status != psutil.CONN_LISTEN for socket in sockets)
            looked = True
    return count if looked else None


class UsageReader:
    """Everything that can be seen of one run.

    `group` reads its cgroup, if it has one; `pids` lists its processes; `disk` gives bytes
    and files of its workspace, or None when they cannot be counted. `extra_pids` are in the
    group to make the containment and are not the agent's.
    """

    def __init__(
        self,
        pids: Callable[[], list[int]],
        *,
        group: Callable[[], Usage] | None = None,
        disk: Callable[[], tuple[int, int] | None] | None = None,
        exact_from_bytes: int | None = None,
        extra_pids: int = 0,
    ) -> None:
        self._extra_pids = extra_pids
        self._pids = pids
        self._group = group
        self._disk = disk
        self._exact_from_bytes = exact_from_bytes

    def read(self) -> Sample:
        """Measure now. What the cgroup does not know is taken from the processes."""
        pids = self._pids()
        usage = Usage() if self._group is None else self._group()
        if usage.pids is not None:
            own = max(0, usage.pids - self._extra_pids)
            usage = msgspec.structs.replace(usage, pids=own)
        if None in (usage.cpu_ns, usage.memory_bytes, usage.pids):
            summed = read_processes(pids, self._exact_from_bytes)
            usage = _filled(usage, summed)
        usage = msgspec.structs.replace(usage, connections=count_connections(pids))
        if self._disk is None:
            return Sample(usage)
        with suppress(OSError):
            counted = self._disk()
            if counted is None:
                return Sample(usage, frozenset({"disk", "files"}))
            usage = msgspec.structs.replace(usage, disk_bytes=counted[0], files=counted[1])
        return Sample(usage)


def _filled(known: Usage, other: Usage) -> Usage:
    missing = {
        name: getattr(other, name)
        for name in Usage.__struct_fields__
        if getattr(known, name) is None
    }
    return msgspec.structs.replace(known, **missing)
