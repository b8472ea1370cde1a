"""What it costs to start an agent, and how long the event loop is held meanwhile.

Each round starts one child in every way, in rotating order, and stops the clock when the
child's first byte has come back: from then on it runs, whatever was put around it. Ratios
are taken within a round, because a shared machine drifts.

The lag of the event loop is measured beside launches of this process with 2 GB of memory in
use, where a fork would have to copy the page tables of all of it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import report
from benchmarks.harness import Line, Progress, Result, Spread, Verdict, machine
from callgate.launcher import LaunchRefused, LocalLauncher
from callgate.model import EnvSpec, LaunchSpec, ResourceLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

COMMAND = ("/bin/echo", "up")
QUICK_ROUNDS = 10
FULL_ROUNDS = 60
HELD_BYTES = 2 << 30
TICK_S = 0.001
PROCESS_RATIO = 15.0
STRICT_MS = 80.0
LAG_MS = 10.0
MIB = 1024 * 1024

_ALONE = EnvSpec(pass_all=False)
_LIMITS = ResourceLimits(memory_bytes=256 * MIB, cpu_millicores=1000, pids=64)
_DISK = ResourceLimits(
    memory_bytes=256 * MIB, cpu_millicores=1000, pids=64, disk_bytes=64 * MIB, files=1000
)
LAYERS = {
    "process": (LaunchSpec("bench", COMMAND), "warden, whole-tree kill"),
    "cgroup": (
        LaunchSpec("bench", COMMAND, contained=True, limits=_LIMITS, env=_ALONE),
        "the same, in a group with limits on memory, cpu and processes",
    ),
    "standard": (
        LaunchSpec("bench", COMMAND, level="standard", contained=True, limits=_LIMITS, env=_ALONE),
        "the same, in namespaces, with a filter and landlock",
    ),
    "strict": (
        LaunchSpec("bench", COMMAND, level="strict", contained=True, limits=_DISK, env=_ALONE),
        "the same, with a workspace of limited size",
    ),
}


async def plain() -> float:
    """Milliseconds to the first byte, by asyncio alone."""
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.read(1)
    elapsed_ms = (time.perf_counter() - started) * 1000
    await process.stdout.read()
    await process.wait()
    return elapsed_ms


async def launched(launcher: LocalLauncher, spec: LaunchSpec, run_id: str) -> float:
    """Milliseconds to the first byte, by the launcher."""
    started = time.perf_counter()
    run = await launcher.launch(spec, run_id=run_id)
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(run.stdout, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(run.stdout)
    elapsed_ms = (time.perf_counter() - started) * 1000
    await run.wait()
    for fd in (run.stdin, run.stdout, run.stderr):
        os.close(fd)
    return elapsed_ms


async def measure(rounds: int, root: Path) -> Result:
    """All layers in interleaved rounds, then the lag."""
    result = Result("launch", "Starting an agent", machine(), base="plain", rounds=rounds)
    async with LocalLauncher(root=root) as launcher:
        ways: dict[str, Callable[[int], Awaitable[float]]] = {"plain": lambda _: plain()}
        for key, (spec, _) in LAYERS.items():
            try:
                await launched(launcher, spec, f"{key}-first")
            except LaunchRefused as refusal:
                result.absent[key] = str(refusal)
                continue
            ways[key] = _way(launcher, key, spec)
        times = await _rounds(ways, rounds)
        result.lines = [_line(key, times) for key in ways]
        await _lag(result, launcher, list(ways), rounds)
    result.verdicts = _verdicts(times) + result.verdicts
    return result


def _way(launcher: LocalLauncher, key: str, spec: LaunchSpec) -> Callable[[int], Awaitable[float]]:
    return lambda number: launched(launcher, spec, f"{key}-{number}")


async def _rounds(
    ways: dict[str, Callable[[int], Awaitable[float]]], rounds: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {key: [] for key in ways}
    progress = Progress(f"launch: {len(ways)} ways, {rounds} rounds", rounds)
    keys = list(ways)
    for number in range(rounds):
        turn = number % len(keys)
        for key in keys[turn:] + keys[:turn]:
            times[key].append(await ways[key](number))
        progress.at(number + 1)
    return times


def _line(key: str, times: dict[str, list[float]]) -> Line:
    ratios = [mine / base for mine, base in zip(times[key], times["plain"], strict=True)]
    does = "asyncio.create_subprocess_exec" if key == "plain" else LAYERS[key][1]
    return Line(
        key=key,
        title=key,
        us=Spread.of([each * 1000 for each in times[key]]),
        ratio=Spread.of(ratios),
        calls=len(times[key]),
        does=does,
        lacks="",
        evidence="",
    )


def _verdicts(times: dict[str, list[float]]) -> list[Verdict]:
    ratio = _line("process", times).ratio.median
    found = [
        Verdict(
            "process layer to a plain spawn",
            f"{ratio:.1f}",
            f"≤ {PROCESS_RATIO:.0f}",
            ratio <= PROCESS_RATIO,
        )
    ]
    if "strict" in times:
        median = statistics.median(times["strict"])
        ratio = _line("strict", times).ratio.median
        found.append(
            Verdict(
                "strict",
                f"{median:.1f} ms, {ratio:.0f} plain spawns",
                f"≤ {STRICT_MS:.0f} ms",
                median <= STRICT_MS,
            )
        )
    return found


async def _lag(result: Result, launcher: LocalLauncher, keys: list[str], rounds: int) -> None:
    """How late the loop is, with a large process, beside launches of each kind."""
    held = bytearray(b"x") * HELD_BYTES
    result.facts["memory held by the launching process"] = f"{len(held) >> 20} MiB"
    for key in keys[1:]:
        late_ms: list[float] = []
        ticking = asyncio.create_task(_tick(late_ms))
        for number in range(rounds):
            await launched(launcher, LAYERS[key][0], f"lag-{key}-{number}")
        ticking.cancel()
        late_ms.sort()
        p50, p99 = (late_ms[int(len(late_ms) * share)] for share in (0.5, 0.99))
        result.facts[f"loop late during {key}"] = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        passed = p99 <= LAG_MS
        result.verdicts.append(
            Verdict(f"loop lag during {key}, p99", f"{p99:.2f} ms", f"≤ {LAG_MS:.0f} ms", passed)
        )


async def _tick(late_ms: list[float]) -> None:
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        late_ms.append((time.perf_counter() - due) * 1000)


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    options = report.arguments("what it costs to start an agent").parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as root:
        Path(root).chmod(0o711)  # an agent of root's is another user
        rounds = QUICK_ROUNDS if options.quick else FULL_ROUNDS
        result = asyncio.run(measure(rounds, Path(root)))
    return report.emit(result, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
