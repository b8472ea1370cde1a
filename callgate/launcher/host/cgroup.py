"""A run's control group: made below callgate's own, written, read back, counted, removed.

IO, blocking but short. Every value goes out with one write(2) on a raw descriptor and is
read back: the kernel's refusal of a value arrives at the write, and a buffered file object
would swallow it at close. Files that the agent's process and the warden need are opened
here and handed over as descriptors, because the kernel checks who *opened* them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from callgate.launcher.plan.cgroup_plan import Counters
from callgate.launcher.warden import leftovers
from callgate.model import Usage

if TYPE_CHECKING:
    from callgate.launcher.plan.capabilities import Cgroups
    from callgate.launcher.plan.cgroup_plan import CgroupPlan, Setting

PREFIX = "callgate-"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class CgroupError(OSError):
    """A group could not be made as planned; `filename` says which file."""


class Group:
    """One run's directories in all hierarchies that it is in."""

    def __init__(self, v2: Path | None, v1: dict[str, Path]) -> None:
        self.v2 = v2
        self.v1 = v1

    @property
    def paths(self) -> list[Path]:
        """The group's directory in each hierarchy."""
        own = [] if self.v2 is None else [self.v2]
        # Several controllers can share one v1 hierarchy.
        return list(dict.fromkeys([*own, *self.v1.values()]))

    def make(self, plan: CgroupPlan) -> None:
        """Make and fill the directories; raises `CgroupError`, having left nothing."""
        try:
            for path in self.paths:
                path.mkdir()
            for setting in plan.settings:
                self._write(setting)
        except OSError as error:
            self.remove()
            raise CgroupError(error.errno, error.strerror, error.filename) from None

    def join_handles(self) -> tuple[dict[str, int], dict[str, str]]:
        """Return descriptors to join by, and under which name the kernel will then show each."""
        join: dict[str, int] = {}
        shown: dict[str, str] = {}
        for number, path in enumerate(self.paths):
            name = f"join{number}"
            join[name] = os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            shown[name] = path.name
        return join, shown

    def kill_handles(self) -> dict[str, int]:
        """Return the descriptors that `leftovers.kill_cgroup` kills by."""
        if self.v2 is not None:
            return {"kill": os.open(self.v2 / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)}
        frozen = self.v1.get("freezer")
        if frozen is None:
            return {}
        return {
            "freezer": os.open(frozen / "freezer.state", os.O_RDWR | os.O_CLOEXEC),
            "procs": os.open(frozen / "cgroup.procs", os.O_RDONLY | os.O_CLOEXEC),
        }

    def counters(self) -> Counters:
        """Return the kernel's counters; they go with the group."""
        oom = forks = throttled = 0
        if self.v2 is not None:
            oom += keyed(self.v2 / "memory.events", "oom_kill") or 0
            forks += keyed(self.v2 / "pids.events", "max") or 0
            throttled += keyed(self.v2 / "cpu.stat", "nr_throttled") or 0
        if "memory" in self.v1:
            oom += keyed(self.v1["memory"] / "memory.oom_control", "oom_kill") or 0
        if "pids" in self.v1:
            forks += keyed(self.v1["pids"] / "pids.events", "max") or 0
        if "cpu" in self.v1:
            throttled += keyed(self.v1["cpu"] / "cpu.stat", "nr_throttled") or 0
        used = self.usage()
        cpu_ns, peak = used.cpu_ns or 0, used.memory_peak_bytes or 0
        return Counters(oom, forks, throttled, cpu_ns, peak)

    def usage(self) -> Usage:
        """Return what all hierarchies know together, v2 first; without a controller it is None.

        Memory is counted without the file cache that the kernel would give back first, so
        that reading files does not look like a leak.
        """
        known = Usage()
        if "memory" in self.v1:
            folder = self.v1["memory"]
            memory = number(folder / "memory.usage_in_bytes")
            memory = _without(memory, folder, "total_inactive_file")
            peak = number(folder / "memory.max_usage_in_bytes")
            known = replace(known, memory_bytes=memory, memory_peak_bytes=peak)
        if "pids" in self.v1:
            known = replace(known, pids=number(self.v1["pids"] / "pids.current"))
        if "cpuacct" in self.v1:
            known = replace(known, cpu_ns=number(self.v1["cpuacct"] / "cpuacct.usage"))
        if self.v2 is None:
            return known
        cpu_us = keyed(self.v2 / "cpu.stat", "usage_usec")
        newer = {
            "cpu_ns": None if cpu_us is None else cpu_us * 1000,
            "memory_bytes": _without(number(self.v2 / "memory.current"), self.v2, "inactive_file"),
            "memory_peak_bytes": number(self.v2 / "memory.peak"),  # from Linux 5.19 on
            "pids": number(self.v2 / "pids.current"),
        }
        return replace(known, **{name: each for name, each in newer.items() if each is not None})

    def processes(self) -> list[int]:
        """Return the processes of the group."""
        found: set[int] = set()
        for path in self.paths:
            with suppress(OSError):
                found.update(int(pid) for pid in (path / "cgroup.procs").read_text().split())
        return sorted(found)

    def kill(self) -> None:
        """Kill all processes of the group, if it is still there; the warden does it otherwise."""
        with suppress(FileNotFoundError):
            handles = self.kill_handles()
            leftovers.kill_cgroup(handles)
            for fd in handles.values():
                os.close(fd)

    def remove(self) -> None:
        """Remove the directories; a process that is still inside is not ended by this."""
        for path in self.paths:
            leftovers.remove_cgroup(str(path))

    def _write(self, setting: Setting) -> None:
        folder = self.v2 if setting.version == "v2" else self.v1[setting.controller]
        assert folder is not None  # noqa: S101  # the plan has it only with a v2 group
        path = folder / setting.file
        if not setting.needed and not path.exists():
            return
        write(path, setting.value)
        found = path.read_text().strip()
        if setting.listed:
            wanted = setting.value.split()
            lines = [line.split() for line in found.splitlines()]
            rows = [" ".join(row) for row in lines if row[:1] == wanted[:1]]
            if any(set(wanted) <= set(row.split()) for row in rows):
                return
            raise CgroupError(0, f"wrote {setting.value}, reads {rows}", str(path))
        if not _same(setting, found):
            raise CgroupError(0, f"wrote {setting.value}, reads {found}", str(path))


def group_for(cgroups: Cgroups, plan: CgroupPlan, name: str) -> Group:
    """Return the group that a run of this name has; nothing is made yet."""
    parent = plan.parent or cgroups.v2
    v2 = Path(parent) / (PREFIX + name) if plan.v2 and parent is not None else None
    v1 = {each: Path(cgroups.v1[each]) / (PREFIX + name) for each in plan.v1}
    return Group(v2, v1)


def write(path: Path, value: str) -> None:
    """Write at once and unbuffered, so that the kernel's answer is seen."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise CgroupError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(fd)


def keyed(path: Path, key: str) -> int | None:
    """Return the number after `key` in a file of `key number` lines."""
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return None


def number(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _without(memory: int | None, folder: Path, cache: str) -> int | None:
    return None if memory is None else max(0, memory - (keyed(folder / "memory.stat", cache) or 0))


def _same(setting: Setting, found: str) -> bool:
    if not setting.rounded:
        return found == setting.value
    return 0 <= int(setting.value) - int(found) < _PAGE_BYTES
