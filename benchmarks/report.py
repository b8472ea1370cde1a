"""Showing results: a table for people, JSON for scripts, a picture and a page for the project."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Line, Result, Spread, Verdict

RESULTS = Path(__file__).parent / "results"


def arguments(description: str) -> argparse.ArgumentParser:
    """The flags that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    size.add_argument("--full", action="store_true", help="many rounds: for numbers to quote")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def emit(result: Result, *, as_json: bool) -> int:
    """Print the result; the exit code says whether every promise was kept."""
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(result.as_dict(), option=orjson.OPT_INDENT_2) + b"\n")
    elif sys.stdout.isatty():
        _emit_rich(result)
    else:
        print(plain(result))
    return 0 if result.passed else 1


def from_json(data: bytes) -> Result:
    """A result that another process printed with `--json`."""
    raw: dict[str, Any] = orjson.loads(data)
    raw["lines"] = [
        Line(**{**line, "us": Spread(**line["us"]), "ratio": Spread(**line["ratio"])})
        for line in raw["lines"]
    ]
    raw["verdicts"] = [Verdict(**verdict) for verdict in raw["verdicts"]]
    return Result(**raw)


def plain(result: Result) -> str:
    """Aligned text, for pipes and logs."""
    out = [f"{result.title} [{', '.join(result.machine.values())}]"]
    if result.lines:
        width = max(len(line.title) for line in result.lines)
        out.append(f"{'':{width}}  {'µs a call':>26}  ratio to {result.base}")
        out += [
            f"{line.title:{width}}  {_spread(line.us, 2):>26}  {_spread(line.ratio, 3)}"
            for line in result.lines
        ]
    out += [f"{what}: {value}" for what, value in result.facts.items()]
    out += [f"left out: {title}: {why}" for title, why in result.absent.items()]
    out += [
        f"{'PASS' if v.passed else 'FAIL'}  {v.title}: {v.measured}, required {v.required}"
        for v in result.verdicts
    ]
    return "\n".join(out)


def _emit_rich(result: Result) -> None:
    console = Console()
    if result.lines:
        table = Table(title=result.title, caption=", ".join(result.machine.values()))
        table.add_column("contender")
        table.add_column("µs a call (quartiles)", justify="right")
        table.add_column(f"ratio to {result.base}", justify="right")
        table.add_column("work", overflow="fold")
        for line in result.lines:
            work = f"{line.does} [dim]Not: {line.lacks}[/]" if line.lacks else line.does
            table.add_row(line.title, _spread(line.us, 2), _spread(line.ratio, 3), work)
        console.print(table)
    if result.facts:
        table = Table(title=None if result.lines else result.title, show_header=False)
        for what, value in result.facts.items():
            table.add_row(what, value)
        console.print(table)
    for title, why in result.absent.items():
        console.print(f"left out: {title}: {why}", style="yellow")
    for verdict in result.verdicts:
        mark = "[green]PASS[/]" if verdict.passed else "[red]FAIL[/]"
        console.print(f"{mark} {verdict.title}: {verdict.measured}, required {verdict.required}")


def markdown(results: list[Result]) -> str:
    """The page that keeps the last full run."""
    first = results[0]
    machine = ", ".join(first.machine.values())
    out = [
        "# Results",
        "",
        "Written by `python -m benchmarks`; do not edit.",
        f"Machine: {machine}. Absolute values drift with the machine; ratios of one run hold.",
    ]
    for result in results:
        out += ["", f"## {result.title}", ""]
        if result.lines:
            out += _markdown_lines(result)
        if result.facts:
            out += ["| measured | |", "|---|---|"]
            out += [f"| {what} | {value} |" for what, value in result.facts.items()]
        out += [f"\nLeft out: {title}: {why}." for title, why in result.absent.items()]
        if result.verdicts:
            out += ["", "| promise | measured | required | |", "|---|---|---|---|"]
            out += [
                f"| {v.title} | {v.measured} | {v.required} | {_mark(passed=v.passed)} |"
                for v in result.verdicts
            ]
    return "\n".join(out) + "\n"


def _markdown_lines(result: Result) -> list[str]:
    base = next((one.title for one in result.lines if one.key == result.base), result.base)
    out = [
        f"Medians (quartiles) of {result.rounds} interleaved rounds in one process.",
        f"Ratios are against *{base}*, taken per round.",
        "",
        f"![{result.title}]({result.name}.png)",
        "",
        "| contender | µs a call | ratio |",
        "|---|---:|---:|",
    ]
    out += [
        f"| {line.title} | {_spread(line.us, 2)} | {_spread(line.ratio, 3)} |"
        for line in result.lines
    ]
    out += ["", "What each does for its number:", ""]
    for line in result.lines:
        lacks = f" Not: {line.lacks}" if line.lacks else ""
        evidence = f" (Checked: {line.evidence}.)" if line.evidence else ""
        out.append(f"- **{line.title}**: {line.does}{lacks}{evidence}")
    return [*out, ""]


def plot(result: Result, folder: Path) -> str:
    """Draw the comparison; say what was written, or why nothing was."""
    if not result.lines:
        return f"{result.name}: nothing to draw"
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return f"{result.name}: no picture, matplotlib is not installed"
    lines = result.lines[::-1]
    medians = [line.us.median for line in lines]
    below = [line.us.median - line.us.low for line in lines]
    above = [line.us.high - line.us.median for line in lines]
    colors = ["#2a7f62" if line.key.startswith("callgate") else "#9aa5b1" for line in lines]
    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(lines) + 1.4))
    for row, color in enumerate(colors):  # points: a bar's length means nothing on a log scale
        spread = [[below[row]], [above[row]]]
        axes.errorbar(medians[row], row, xerr=spread, fmt="o", color=color, capsize=3)
    axes.set_yticks(range(len(lines)), [line.title for line in lines])
    axes.grid(axis="x", alpha=0.3)
    axes.set_xscale("log")
    axes.set_xlabel(
        f"µs a call (log scale; median and quartiles; in brackets: ratio to {result.base})"
    )
    axes.set_title(result.title)
    for row, line in enumerate(lines):
        label = f"   {line.us.median:.1f} µs ({line.ratio.median:.2f})"
        axes.text(line.us.high, row, label, va="center", fontsize=8)
    axes.set_xlim(right=max(medians) * 8)
    figure.tight_layout()
    figure.savefig(folder / f"{result.name}.png", dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return f"{result.name}: {result.name}.png"


def _mark(*, passed: bool) -> str:
    return "pass" if passed else "**FAIL**"


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"
