"""Large audits, and how long `calls` and `stats` take over them.

    python -m benchmarks.past make DIR --records 10000000
    python -m benchmarks.past measure DIR

`make` writes a real chain with the module that the gate uses, in segments of 64 MiB; `measure`
runs the commands as a person does, and prints time, processor time and memory of each. It fails
if one request id takes more than 2 s, the calls of a day more than 10 s for 500,000, or either
200 MB.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from callgate.audit import AuditLog
from callgate.audit.events import admitted, call_fragment, ended, limit_fragment, refused
from callgate.model import AuditSpec, RequestIds

DAY_CALLS = 500_000
STEP_NS = 86_400 * 1_000_000_000 // (2 * DAY_CALLS)
"""Between two records: a day has 500,000 calls of two records each."""
MAX_BYTES = 200 * 1000 * 1000
LOOKUP_S, STATS_S = 2.0, 10.0
PASS = 64
"""Calls that are recorded with one write, as in a busy gate."""


def make(path: Path, records: int, end_ns: int) -> str:
    """Write a log whose last record is of now; return a request id out of its middle."""
    now_ns = end_ns - records * STEP_NS
    clock = [now_ns]
    spec = AuditSpec(path=str(path), keep_ns=None, max_bytes=None)
    log = AuditLog.open(spec, policy="benchmark000", clock=lambda: clock[0])
    ids = RequestIds(now_ns // 1_000_000, b"\0\0\0\0")
    lanes = [
        call_fragment(f"caller{number % 20}", f"agent{number % 8}", f"tool{number % 50}", "rev1")
        for number in range(200)
    ]
    limit = limit_fragment("rate agent:agent1 60/minute")
    rng = random.Random(1)  # noqa: S311
    middle = ""
    for start in range(0, records // 2, PASS):
        for number in range(start, min(start + PASS, records // 2)):
            call, lane = ids.next(), lanes[rng.randrange(200)]
            clock[0] += 2 * STEP_NS
            if number == records // 4:
                middle = call
            if number % 50 == 0:
                log.stage(refused("tool.call.would_deny", lane, call, "", "limit.rate", limit))
                log.stage(refused("tool.call.denied", lane, call, "", "limit.rate", limit, 900))
                continue
            log.stage(admitted(lane, call, "", 0, clock[0] // 1000), 1)
            took = int(rng.expovariate(1 / 40))
            log.stage(ended("tool.call.completed", lane, call, "", took, None, 120, 900), -1)
        log.flush()
    log.close()
    return middle


def measure(name: str, command: list[str], most_s: float) -> bool:
    """Run one command; print what it took, and return whether that is within the bounds."""
    started = time.monotonic()
    child = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "callgate", *command], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - started
    peak = usage.ru_maxrss * 1024
    good = took <= most_s and peak <= MAX_BYTES and child.returncode == 0
    verdict = "ok" if good else "TOO MUCH"
    cpu = usage.ru_utime + usage.ru_stime
    print(
        f"{name:<40} {took:6.2f} s  (processor {cpu:5.2f} s)  {peak / 1e6:6.1f} MB  {verdict}",
        flush=True,
    )
    return good


def main() -> int:
    """Make a log, or measure the commands over one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["make", "measure"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--records", type=int, default=10_000_000)
    options = parser.parse_args()
    note = options.path.with_suffix(".id")
    if options.what == "make":
        note.write_text(make(options.path, options.records, time.time_ns()))
        return 0
    log = ["--log", str(options.path)]
    middle = note.read_text()
    found = [
        measure("one request id", ["calls", "--request-id", middle, *log], LOOKUP_S),
        measure("the last 50 calls", ["calls", *log], LOOKUP_S),
        measure("stats of a day", ["stats", "--since", "24h", *log], STATS_S),
    ]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
