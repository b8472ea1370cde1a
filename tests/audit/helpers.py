"""Small logs to look at."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson

from callgate.audit import AuditLog
from callgate.audit.events import admitted, call_fragment, ended
from callgate.model import AuditSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_NS = 1_763_400_000_000_000_000
FRAGMENT = call_fragment("alice", "web", "search", "rev1")


def ticking(start_ns: int = START_NS, step_ns: int = 1_000_000) -> Callable[[], int]:
    """A clock that moves on by a step whenever it is read."""
    ticks = count()
    return lambda: start_ns + next(ticks) * step_ns


def call_id(number: int) -> str:
    return f"0190b2c3-d4e5-7abc-8def-{number:012x}"


def begin(log: AuditLog, number: int) -> None:
    log.record(admitted(FRAGMENT, call_id(number)), 1)


def end(log: AuditLog, number: int) -> None:
    log.record(ended("tool.call.completed", FRAGMENT, call_id(number), "", 3), -1)


def open_log(path: Path, **spec: Any) -> AuditLog:
    clock = spec.pop("clock", None) or ticking()
    sinks = spec.pop("sinks", ())
    return AuditLog.open(AuditSpec(path=str(path), **spec), policy="rev1", sinks=sinks, clock=clock)


def write_log(path: Path, calls: int = 10, **spec: Any) -> None:
    """A closed log of some calls."""
    log = open_log(path, **spec)
    for number in range(calls):
        begin(log, number)
        end(log, number)
    log.close()


def only_writer(path: Path) -> Path:
    (directory,) = (entry for entry in path.iterdir() if entry.is_dir())
    return directory


def records(path: Path) -> list[dict[str, Any]]:
    """All records of all writers, in the order of the files."""
    files = sorted(path.glob("*/*.jsonl"))
    return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


def events(path: Path) -> list[str]:
    return [record["event"] for record in records(path)]


def run_python(code: str, *args: str | Path) -> subprocess.CompletedProcess[bytes]:
    """A child with this project to import; bounded."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
    )


CRASH = """
import os, signal, sys
from pathlib import Path
from tests.audit.helpers import begin, end, open_log
log = open_log(Path(sys.argv[1]), rotate_bytes=int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    begin(log, number)
    if number % 7:
        end(log, number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def crash(path: Path, *, rotate_bytes: int = 1 << 20, calls: int = 20) -> None:
    """A process that dies by SIGKILL; every seventh of its calls is still open."""
    child = run_python(CRASH, path, str(rotate_bytes), str(calls))
    assert child.returncode == -9, child.stderr.decode()
