"""`python -m benchmarks`: run all, each in a process of its own, and keep the results."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

import orjson

from benchmarks import report

if TYPE_CHECKING:
    from benchmarks.harness import Result

BENCHMARKS = ("inprocess", "codec", "memory", "deadlines", "launch", "mounts", "stdio")


def main(argv: list[str] | None = None) -> int:
    """Run the benchmarks and write `results/`; 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="about half a minute; nothing is kept")
    size.add_argument("--full", action="store_true", help="some minutes; the default")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(argv)
    results = [_run(name, quick=options.quick) for name in BENCHMARKS]
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


def _keep(results: list[Result]) -> None:
    report.RESULTS.mkdir(exist_ok=True)
    for result in results:
        data = orjson.dumps(result.as_dict(), option=orjson.OPT_INDENT_2)
        (report.RESULTS / f"{result.name}.json").write_bytes(data + b"\n")
        print(report.plot(result, report.RESULTS), file=sys.stderr)
    (report.RESULTS / "README.md").write_text(report.markdown(results), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
