"""`python -m benchmarks`: run all, each in a process of its own, and keep the results."""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING

import orjson

from benchmarks import report

if TYPE_CHECKING:
    from benchmarks.harness import Result

BENCHMARKS = (
    "inprocess",
    "codec",
    "wire",
    "memory",
    "deadlines",
    "launch",
    "mounts",
    "mounts_agents",
    "stdio",
)

COMPARABLE = ("inprocess", "wire", "stdio")
"""Those that can compare two checkouts; see `compare.py`."""


def main(argv: list[str] | None = None) -> int:
    """Run the benchmarks and write `results/`; 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="about half a minute; nothing is kept")
    size.add_argument("--full", action="store_true", help="some minutes; the default")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--against",
        metavar="DIR",
        help=f"compare with this checkout, interleaved ({', '.join(COMPARABLE)}); nothing is kept",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no benchmark {min(unknown)}")
    if options.against is not None:
        wanted = options.names or COMPARABLE
        if set(wanted) - set(COMPARABLE):
            parser.error(f"checkouts are compared by {', '.join(COMPARABLE)} only")
        return max(
            _compare(name, options.against, quick=options.quick, as_json=options.json)
            for name in wanted
        )
    results = [_run(name, quick=options.quick) for name in options.names or BENCHMARKS]
    if options.json:
        sys.stdout.buffer.write(orjson.dumps([result.as_dict() for result in results]) + b"\n")
    else:
        for result in results:
            report.emit(result, as_json=False)
            print()
    if not options.quick:
        _keep(results)
    return 0 if all(result.passed for result in results) else 1


def _run(name: str, *, quick: bool) -> Result:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
    command.append("--quick" if quick else "--full")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603  # our own
    if not done.stdout:
        raise SystemExit(f"benchmarks.{name} ended with {done.returncode} and no result")
    return report.from_json(done.stdout)


def _compare(name: str, against: str, *, quick: bool, as_json: bool) -> int:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--against", against]
    command.append("--quick" if quick else "--full")
    command += ["--json"] if as_json else []
    return subprocess.run(command, check=False).returncode  # noqa: S603  # our own


def _keep(new: list[Result]) -> None:
    """Write down what was measured now; the page has the rest from before."""
    report.RESULTS.mkdir(exist_ok=True)
    for result in new:
        data = orjson.dumps(result.as_dict(), option=orjson.OPT_INDENT_2)
        (report.RESULTS / f"{result.name}.json").write_bytes(data + b"\n")
        print(report.plot(result, report.RESULTS), file=sys.stderr)
        if result.name == "stdio":
            print(report.plot(_busiest(result), report.RESULTS), file=sys.stderr)
    files = [report.RESULTS / f"{name}.json" for name in BENCHMARKS]
    kept = [report.from_json(file.read_bytes()) for file in files if file.exists()]
    (report.RESULTS / "README.md").write_text(report.markdown(kept), encoding="utf-8")


def _busiest(result: Result) -> Result:
    """The one workload of `stdio` that the project's front page shows."""
    lines = [line for line in result.lines if line.key.endswith("@window 64")]
    shown = [dataclasses.replace(one, title=one.title.partition(": ")[2]) for one in lines]
    title = f"{result.title}, 64 calls in flight"
    return dataclasses.replace(
        result, name="stdio-busiest", title=title, base="direct", lines=shown
    )


if __name__ == "__main__":
    sys.exit(main())
