"""`callgate run` of two checkouts: `python -m benchmarks stdio --against DIR`.

Each round starts both gates anew, one after the other, and runs every workload through each for a
slice, so that neither keeps the luck of one start. Beside the time on the wall, which the whole
machine has a part in, stands the processor time of the gate's own process, where the system tells
it to the nanosecond: that is what a change of the gate changes.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import compare
from benchmarks.placement import apart
from benchmarks.stdio import GATE, WORKLOADS, Running, start
from benchmarks.stdio_load import Pipes
from benchmarks.stdio_peers import ECHO, POLICY, Peer, Place

if TYPE_CHECKING:
    import argparse

    from benchmarks.compare import Checkout, Measures
    from benchmarks.stdio import Workload
    from benchmarks.stdio_load import Link

SETTLE_CALLS = 512
"""Before the first slice of a gate: its caches and its lanes, outside of the clock."""


@dataclass(slots=True)
class _Rounds:
    """Measures a checkout's gate for one round; remembers how many calls fill a slice."""

    folder: Path
    counts: dict[Workload, int] = field(default_factory=dict)

    def measure(self, checkout: Checkout) -> Measures:
        found: Measures = {}
        home = self.folder / checkout.name
        home.mkdir(exist_ok=True)
        with ExitStack() as stack:
            gate = start(_peer(checkout), Place(home, ()), stack)
            with apart([gate.server_pid]):
                gate.slice(WORKLOADS[-1], 32)
                gate.slice(WORKLOADS[2], SETTLE_CALLS)
                for workload in WORKLOADS:
                    self._slice(gate, workload, found)
        return found

    def _slice(self, gate: Running, workload: Workload, found: Measures) -> None:
        count = self.counts.get(workload)
        if count is None:  # of the first round's first gate: both make the same number of calls
            count = self.counts[workload] = gate.calibrate(workload)
        before_ns = _processor_ns(gate.link.pid)
        burst = gate.slice(workload, count)
        used_ns = _processor_ns(gate.link.pid) - before_ns
        found[workload.title] = burst.elapsed_ns / count / 1000
        if used_ns:
            found[f"{workload.title}, processor"] = used_ns / count / 1000


def run(options: argparse.Namespace) -> int:
    """Compare and print; the exit code."""
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder:
        return compare.run("stdio", options, _Rounds(Path(folder)).measure)


def _peer(checkout: Checkout) -> Peer:
    def begin(place: Place) -> Link:
        policy = place.folder / "policy.yaml"
        policy.write_text(POLICY, encoding="utf-8")
        command = [sys.executable, "-m", "callgate", "run", "--policy", str(policy), "--", *ECHO]
        env = {**place.env, "PYTHONPATH": str(checkout.path), "PYTHONSAFEPATH": "1"}
        return Pipes(command, env=env, log=place.log)

    return Peer(GATE, f"callgate run, {checkout.name}", "", "", begin)


def _processor_ns(pid: int) -> int:
    """Of all threads of a process, where the system has it to the nanosecond; else 0."""
    total = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return total
