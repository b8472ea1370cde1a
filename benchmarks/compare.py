"""Two checkouts, measured in one interleaved run: `python -m benchmarks wire --against DIR`.

Theory of operation. A machine drifts by more than what a change costs, so one cannot measure
today and compare with yesterday. The benchmark is the same for both, this checkout's own; only
the `callgate` under it differs: a folder of links puts the one's benchmarks beside the other's
package, and stands before everything else on the path. Each round measures both, in turns, in
processes of its own (a process that was lucky with its memory is lucky for its whole life), and
a ratio is taken within a round before the median over all of them.

Below 1 this checkout is the quicker one. The quartiles say how much of that is noise: where they
stand on both sides of 1, nothing was shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from benchmarks import report
from benchmarks.harness import Progress, Spread, machine

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

HERE = Path(__file__).resolve().parent.parent
ROUNDS = 20
QUICK_ROUNDS = 4
INNER_ROUNDS = 3
"""Of the benchmark itself, in each process; the least that a median needs."""
PROCESS_S = 600
"""A round that takes longer hangs."""

Measures = dict[str, float]
"""µs a call, by what was measured."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """One of the two: where the benchmarks beside its package are."""

    name: str
    path: Path

    @property
    def env(self) -> dict[str, str]:
        """Of a process that is to import this one's `callgate`, and leave no cache behind."""
        return {**os.environ, "PYTHONPATH": str(self.path), "PYTHONSAFEPATH": "1"}


@dataclass(slots=True)
class Comparison:
    """What was measured of both, a value for each round."""

    name: str
    here: list[Measures] = field(default_factory=list)
    there: list[Measures] = field(default_factory=list)

    def rows(self) -> list[tuple[str, Spread, Spread, Spread]]:
        """By measure: this checkout's µs, the other's, and the ratio of them."""
        keys = [key for key in self.here[0] if key in self.there[0]]
        return [(key, *self._spreads(key)) for key in keys]

    def _spreads(self, key: str) -> tuple[Spread, Spread, Spread]:
        mine, theirs = ([each[key] for each in one] for one in (self.here, self.there))
        ratios = [mine / theirs for mine, theirs in zip(mine, theirs, strict=True)]
        return Spread.of(mine), Spread.of(theirs), Spread.of(ratios)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a benchmark that can compare checkouts."""
    parser.add_argument("--against", type=Path, metavar="DIR", help="compare with this checkout")
    parser.add_argument("--rounds", type=int, help="how many, in place of those of the size")
    parser.add_argument("--only", default="", metavar="KEYS", help="only these, by their keys")


def run(
    module: str,
    options: argparse.Namespace,
    measure: Callable[[Checkout], Measures] | None = None,
    more: tuple[str, ...] = (),
) -> int:
    """Compare this checkout with `options.against` and print it; the exit code.

    Without `measure` a round is a process that runs `benchmarks.<module>` for a moment.
    """
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    keys = ("--only", options.only) if options.only else ()

    def in_process(checkout: Checkout) -> Measures:
        return _measured(checkout, module, (*more, *keys))

    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder:
        pair = [
            _beside(Path(folder), "here", HERE),
            _beside(Path(folder), "there", options.against.resolve(strict=True)),
        ]
        found = interleave(module, pair, measure or in_process, rounds)
    if options.json:
        sys.stdout.buffer.write(orjson.dumps(as_dict(found), option=orjson.OPT_INDENT_2) + b"\n")
    else:
        print(table(found))
    return 0


def interleave(
    name: str, pair: list[Checkout], measure: Callable[[Checkout], Measures], rounds: int
) -> Comparison:
    """Measure both in each round; who begins alternates."""
    found = Comparison(name)
    progress = Progress(f"{name}: {rounds} rounds of two checkouts", rounds)
    for number in range(rounds):
        for one in pair if number % 2 else pair[::-1]:
            (found.here if one is pair[0] else found.there).append(measure(one))
        progress.at(number + 1)
    return found


def table(found: Comparison) -> str:
    """Aligned text: medians and quartiles."""
    rows = [("µs a call", "this checkout", "the other", "ratio (below 1: this is quicker)")]
    for key, mine, theirs, ratio in found.rows():
        shown = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        rows.append((key, f"{mine.median:.2f}", f"{theirs.median:.2f}", shown))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    title = f"{found.name}, {len(found.here)} interleaved rounds [{', '.join(machine().values())}]"
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([title, *lines])


def as_dict(found: Comparison) -> Mapping[str, object]:
    """For JSON: the spreads, and every round."""
    return {
        "name": found.name,
        "machine": machine(),
        "rounds": len(found.here),
        "measures": {
            key: {"here": mine, "there": theirs, "ratio": ratio}
            for key, mine, theirs, ratio in found.rows()
        },
        "here": found.here,
        "there": found.there,
    }


def _beside(folder: Path, name: str, checkout: Path) -> Checkout:
    """Put this checkout's benchmarks beside a checkout's package."""
    package = checkout / "callgate"
    if not (package / "__init__.py").is_file():
        raise SystemExit(f"{checkout} is no checkout of callgate")
    path = folder / name
    path.mkdir()
    (path / "callgate").symlink_to(package)
    (path / "benchmarks").symlink_to(HERE / "benchmarks")
    made = Checkout(name, path)
    command = [sys.executable, "-c", "import callgate; print(callgate.__file__)"]
    found = subprocess.run(  # noqa: S603  # our own
        command, env=made.env, stdout=subprocess.PIPE, check=True, timeout=PROCESS_S
    ).stdout.decode()
    if Path(found.strip()).parent.resolve() != package.resolve():
        raise SystemExit(f"another callgate stands before {package}: {found}")
    return made


def _measured(checkout: Checkout, module: str, more: tuple[str, ...]) -> Measures:
    """The medians of a short run of a benchmark over one checkout's package."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json"]
    command += ["--rounds", str(INNER_ROUNDS), *more]
    done = subprocess.run(  # noqa: S603  # our own
        command, env=checkout.env, stdout=subprocess.PIPE, check=False, timeout=PROCESS_S
    )
    if not done.stdout:
        raise SystemExit(f"benchmarks.{module} over {checkout.name} ended with {done.returncode}")
    return {line.key: line.us.median for line in report.from_json(done.stdout).lines}
