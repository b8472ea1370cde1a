"""`callgate run` in front of a stdio server, beside the bare server and whatever else can be.

One echo server (`stdio_echo.py`), one raw pipelined client (`stdio_load.py`), and between them
each contender (`stdio_peers.py`), whose processes live for the whole run. For each workload all
contenders run a slice in every round, in rotating order, and ratios are taken within a round:
a shared machine drifts, neighbouring moments do not. Who needs a quarter of a second and more
for a slice runs in every fourth round only.

Client and server run on a processor each (`placement.py`). Shares are calls a second against
the bare server's. Memory is what stands in front of the
server, all processes, without the server. A start is timed from the spawn to the answer of the
first call, in rounds of their own. `--against DIR` compares two checkouts (`stdio_against.py`).
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import orjson
import psutil

from benchmarks import compare as checkouts
from benchmarks import report
from benchmarks.harness import Absent, Line, Progress, Result, Spread, Verdict, machine
from benchmarks.placement import apart
from benchmarks.stdio_load import Broken, Calls, call, check, patience, shake_hands
from benchmarks.stdio_peers import PEERS, REAL, REAL_GATED, ZERO, Peer, Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.stdio_load import Burst, Link

SLICE_MS = 100.0
SLOW_MS = 250.0
SLOW_EVERY = 4
BASE = "direct"
GATE = "callgate"
PUMP = "pump"
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Workload:
    """Frames of one size, so many in flight; and the promise of it."""

    title: str
    frame_bytes: int
    window: int
    share: float | None
    """Of the bare server's rate, at least; None where nothing is promised yet."""
    is_mixed: bool = False
    """Whether it is the mix of tools and sizes (`mix.py`), and not one tool with one size."""


WORKLOADS = (
    Workload("window 1", 200, 1, 0.50),
    Workload("window 16", 200, 16, 0.40),
    Workload("window 64", 200, 64, 0.30),
    Workload("mixed tools, window 64", 0, 64, None, is_mixed=True),
    Workload("100 KB, window 16", 100_000, 16, 0.70),
)
REAL_WORKLOADS = WORKLOADS[:2]
"""Their server has no tools but two."""
BUSIEST = WORKLOADS[2]
AGAINST_FASTMCP = 100.0
START_MS = 300.0
RESIDENT_MIB = 60.0
GROWTH_MIB = 5.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much to do."""

    rounds: int
    starts: int
    calls: int
    """For the growth."""


QUICK = Size(rounds=8, starts=2, calls=50_000)
FULL = Size(rounds=60, starts=10, calls=1_000_000)


@dataclass(slots=True)
class Running:
    """A contender that runs, and what was measured of it."""

    peer: Peer
    title: str
    link: Link
    tools: dict[str, str]
    server_pid: int
    calls: Calls
    made: int = 0
    us: dict[tuple[Workload, int], float] = field(default_factory=dict)
    """A call, by workload and round."""
    latencies_ns: list[int] = field(default_factory=list)
    """At window 1."""

    def slice(self, workload: Workload, count: int) -> Burst:
        """A burst whose answers are right."""
        if workload.is_mixed:
            frames = self.calls.mix(self.tools, count)
        else:
            frames = self.calls.make(self.tools["echo"], workload.frame_bytes, count)
        with patience():
            burst = self.link.burst(frames, workload.window)
        check(frames, burst.answers)
        self.made += count
        return burst

    def calibrate(self, workload: Workload) -> int:
        """How many calls fill a slice."""
        least = 2 * workload.window if workload.window > 1 else 8
        count = least
        while True:
            elapsed_ms = self.slice(workload, count).elapsed_ns / 1e6
            if elapsed_ms > SLICE_MS / 4:
                break
            count *= 4
        return max(least, round(count * SLICE_MS / elapsed_ms))

    def resident_mib(self) -> float:
        """What all its processes hold, without the server."""
        pids = getattr(self.link, "pids", [self.link.pid])
        found = {process for pid in pids for process in _tree(pid)}
        sizes = [one.memory_info().rss for one in found if one.pid != self.server_pid]
        return sum(sizes) / MIB


def _tree(pid: int) -> Iterator[psutil.Process]:
    process = psutil.Process(pid)
    yield process
    yield from process.children(recursive=True)


def start(peer: Peer, place: Place, stack: ExitStack) -> Running:
    """Start a contender; it has answered a call when this returns."""
    calls = Calls()
    version = peer.version(place)
    with patience():
        link = peer.start(place)
        stack.callback(link.close)
        tools = shake_hands(link, calls)
        server_pid = int(call(link, calls, tools["pid"], {}))
    title = f"{peer.title} {version}".strip()
    return Running(peer, title, link, tools, server_pid, calls, made=1)


def time_start(peer: Peer, place: Place) -> float:
    """Milliseconds from the spawn to the first call's answer."""
    calls = Calls()
    began = perf_counter()
    with patience():
        link = peer.start(place)
        try:
            tools = shake_hands(link, calls)
            call(link, calls, tools["pid"], {})
            return (perf_counter() - began) * 1000
        finally:
            link.close()


def run_workload(contenders: Sequence[Running], workload: Workload, rounds: int) -> None:
    """All contenders in interleaved rounds."""
    counts = {one.peer.key: one.calibrate(workload) for one in contenders}
    slow = set()
    for one in contenders:
        took_ms = one.slice(workload, counts[one.peer.key]).elapsed_ns / 1e6
        if took_ms > SLOW_MS:
            slow.add(one.peer.key)
    progress = Progress(f"stdio: {workload.title}", rounds)
    for number in range(rounds):
        turn = number % len(contenders)
        for one in [*contenders[turn:], *contenders[:turn]]:
            key = one.peer.key
            if key in slow and number % SLOW_EVERY:
                continue
            burst = one.slice(workload, counts[key])
            one.us[workload, number] = burst.elapsed_ns / counts[key] / 1000
            one.latencies_ns += burst.latencies_ns
        progress.at(number + 1)


def ratios(mine: Running, base: Running, workload: Workload) -> list[float]:
    """Time against time, in each round that both ran in."""
    shared = [key for key in mine.us if key[0] is workload and key in base.us]
    return [mine.us[key] / base.us[key] for key in shared]


def lines(contenders: Sequence[Running], size: Size) -> Iterator[Line]:
    """A line for each contender under each workload."""
    base = contenders[0]
    for workload in WORKLOADS:
        for one in contenders:
            us = [value for key, value in one.us.items() if key[0] is workload]
            yield Line(
                key=f"{one.peer.key}@{workload.title}",
                title=f"{workload.title}: {one.title}",
                us=Spread.of(us),
                ratio=Spread.of(ratios(one, base, workload)),
                calls=one.made,
                does=one.peer.does,
                lacks=one.peer.lacks,
                evidence=f"{len(us)} of {size.rounds} rounds",
            )


def share_of(mine: Running, base: Running, workload: Workload) -> Spread:
    """What is left of the rate of `base`."""
    return Spread.of([1 / ratio for ratio in ratios(mine, base, workload)])


def judge_shares(result: Result, gate: Running, base: Running, pump: Running | None) -> None:
    """The gate's share of the bare server's rate, and of what a Python in between leaves of it."""
    for workload in WORKLOADS:
        share = share_of(gate, base, workload)
        title = f"callgate run, {workload.title}: share of direct"
        if workload.share is None:
            result.facts[title] = shown(share)
        else:
            required = f"≥ {workload.share:.2f}"
            verdict = Verdict(title, shown(share), required, share.median >= workload.share)
            result.verdicts.append(verdict)
        if pump is not None:
            bytes_only = share_of(pump, base, workload)
            title = f"{pump.title}, {workload.title}: share of direct"
            result.facts[title] = shown(bytes_only)
            title = f"callgate run, {workload.title}: share of the byte pump"
            result.facts[title] = shown(share_of(gate, pump, workload))


def shown(spread: Spread) -> str:
    """A share in words."""
    return f"{spread.median:.3f} ({spread.low:.3f} to {spread.high:.3f})"


def verdict_fastmcp(gate: Running, fastmcp: Running) -> Verdict:
    """The gate against the proxy that comes with FastMCP."""
    times = Spread.of(ratios(fastmcp, gate, BUSIEST))
    return Verdict(
        f"callgate run, {BUSIEST.title}: against {fastmcp.title}",
        f"{times.median:.0f}x ({times.low:.0f} to {times.high:.0f})",
        f"≥ {AGAINST_FASTMCP:.0f}x",
        times.median >= AGAINST_FASTMCP,
    )


def measure_rates(result: Result, place: Place, size: Size, only: Sequence[str]) -> None:
    """Rates, latencies and memory of contenders that live for the whole run."""
    with ExitStack() as stack:
        contenders: list[Running] = []
        for peer in PEERS:
            if only and peer.key not in (BASE, GATE, *only):
                continue
            try:
                contenders.append(start(peer, place, stack))
            except (Absent, Broken) as why:
                result.absent[peer.title] = str(why)
        found = {one.peer.key: one for one in contenders}
        base, gate = found[BASE], found[GATE]
        idle_mib = {key: one.resident_mib() for key, one in found.items() if key != BASE}
        with apart(one.server_pid for one in contenders) as where:
            result.facts["placement"] = where
            for workload in WORKLOADS:
                run_workload(contenders, workload, size.rounds)
        result.lines = list(lines(contenders, size))
        judge_shares(result, gate, base, found.get(PUMP))
        if "fastmcp" in found:
            result.verdicts.append(verdict_fastmcp(gate, found["fastmcp"]))
        for one in contenders:
            p50, *_, p99 = statistics.quantiles(one.latencies_ns, n=100)[49:]
            times = f"p50 {p50 / 1000:.0f} µs, p99 {p99 / 1000:.0f} µs"
            result.facts[f"latency at window 1: {one.title}"] = times
        for key, mib in idle_mib.items():
            result.facts[f"resident memory, idle: {found[key].title}"] = f"{mib:.0f} MiB"
        result.facts["audit of callgate run"] = audited(place, gate.made)


def audited(place: Place, calls: int) -> str:
    """That the gate wrote down what it let through, by the number of its last record."""
    newest = max((place.folder / "audit").glob("*/*.jsonl"), key=os.path.getmtime)
    last = orjson.loads(newest.read_bytes().splitlines()[-1])
    if last["seq"] < 2 * calls:
        raise Broken(f"{last['seq']} records of {calls} calls")
    return f"{last['seq']:,} records of {calls:,} calls"


def measure_memory(result: Result, place: Place, calls: int) -> None:
    """What the gate and its warden hold, and what many calls add."""
    with ExitStack() as stack:
        gate = start(next(peer for peer in PEERS if peer.key == GATE), place, stack)
        idle_mib = gate.resident_mib()
        step = 10_000
        progress = Progress(f"stdio: memory, {calls:,} calls", calls)
        for done in range(0, calls, step):
            gate.slice(BUSIEST, step)
            progress.at(done + step)
        grown_mib = gate.resident_mib() - idle_mib
    result.verdicts += [
        Verdict(
            "callgate run, resident memory with the warden, idle",
            f"{idle_mib:.1f} MiB",
            f"≤ {RESIDENT_MIB:.0f} MiB",
            idle_mib <= RESIDENT_MIB,
        ),
        Verdict(
            f"callgate run, resident memory, growth over {calls:,} calls",
            f"{grown_mib:.1f} MiB",
            f"≤ {GROWTH_MIB:.0f} MiB",
            grown_mib <= GROWTH_MIB,
        ),
    ]


def measure_real(result: Result, place: Place, rounds: int) -> None:
    """What the gate costs in front of a server as people write them."""
    with ExitStack() as stack:
        try:
            pair = [start(peer, place, stack) for peer in (REAL, REAL_GATED)]
        except (Absent, Broken) as why:
            result.absent[REAL.title] = str(why)
            return
        bare, gated = pair
        for workload in REAL_WORKLOADS:
            with apart(one.server_pid for one in pair):
                run_workload(pair, workload, rounds)
            share = Spread.of([1 / ratio for ratio in ratios(gated, bare, workload)])
            times = [value for key, value in bare.us.items() if key[0] is workload]
            per_second = 1e6 / statistics.median(times)
            result.facts[f"in front of a FastMCP server, {workload.title}"] = (
                f"{share.median:.2f} ({share.low:.2f} to {share.high:.2f}) "
                f"of its {per_second:,.0f} calls/s"
            )


def measure_starts(result: Result, place: Place, rounds: int, only: Sequence[str]) -> None:
    """Starts in interleaved rounds; the gate's is judged by what it adds to the bare one."""
    peers = [peer for peer in (*PEERS, ZERO) if peer.title not in result.absent]
    if only:
        peers = [peer for peer in peers if peer.key in (BASE, GATE, *only)]
    times: dict[str, list[float]] = {peer.key: [] for peer in peers}
    progress = Progress("stdio: starts", rounds)
    for number in range(rounds):
        turn = number % len(peers)
        for peer in peers[turn:] + peers[:turn]:
            times[peer.key].append(time_start(peer, place))
        progress.at(number + 1)
    for peer in peers:
        median_ms = statistics.median(times[peer.key])
        result.facts[f"start to first answer: {peer.title}"] = f"{median_ms:.0f} ms"
    for peer in peers:
        if peer.key in (GATE, ZERO.key):
            pairs = zip(times[peer.key], times[BASE], strict=True)
            added_ms = statistics.median(mine - bare for mine, bare in pairs)
            result.verdicts.append(
                Verdict(
                    f"{peer.title}: first answer after the bare server's",
                    f"+ {added_ms:.0f} ms",
                    f"≤ {START_MS:.0f} ms",
                    added_ms <= START_MS,
                )
            )


def measure(size: Size, place: Place, only: Sequence[str] = ()) -> Result:
    """Everything."""
    title = "callgate run in front of a stdio server"
    base = f"{BASE}, same workload"
    result = Result("stdio", title, machine(), base=base, rounds=size.rounds)
    measure_rates(result, place, size, only)
    measure_real(result, place, size.rounds)
    measure_memory(result, place, size.calls)
    measure_starts(result, place, size.starts, only)
    return result


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    parser = report.arguments("what `callgate run` costs, and what others do")
    parser.add_argument(
        "--peers",
        default=os.environ.get("BENCH_PEERS", ""),
        metavar="DIRS",
        help=f"where other proxies are, separated by `{os.pathsep}` (or BENCH_PEERS); "
        "python -m benchmarks.stdio_peers DIR installs them",
    )
    checkouts.add_arguments(parser)
    options = parser.parse_args(argv)
    if options.against is not None:
        from benchmarks import stdio_against  # noqa: PLC0415  # which imports this module

        return stdio_against.run(options)
    peers = tuple(Path(each) for each in options.peers.split(os.pathsep) if each)
    only = [each for each in options.only.split(",") if each]
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder:
        size = QUICK if options.quick else FULL
        if options.rounds:
            size = dataclasses.replace(size, rounds=options.rounds)
        result = measure(size, Place(Path(folder), peers), only)
    return report.emit(result, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
