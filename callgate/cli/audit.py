"""`callgate audit`: check the audit log."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from callgate.audit.files import segment_path, segments, writers
from callgate.audit.reader import Anchor  # noqa: TC001 - typer reads the annotations
from callgate.audit.verify import Report, WriterReport, load_anchors, verify
from callgate.cli import say
from callgate.text import quoted

app = typer.Typer(name="audit", no_args_is_help=True, add_completion=False, rich_markup_mode=None)

_STYLES = {"live": "cyan", "closed": "green", "crashed": "yellow"}
_PROGRESS_FROM_BYTES = 32 * 1024 * 1024
"""Less than this is read in about a second."""


@app.callback()
def _group() -> None:
    """The audit log."""


@app.command("verify")
def verify_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The audit path.")
    ],
    anchor: Annotated[
        Path | None,
        typer.Option(
            metavar="F",
            exists=True,
            dir_okay=False,
            help="Compare with checkpoints kept elsewhere.",
        ),
    ] = None,
    write_anchor: Annotated[
        Path | None,
        typer.Option(
            metavar="F", dir_okay=False, help="Write checkpoints to this file, unless tampered."
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Check every line of every writer; exit 1 if something is wrong."""
    try:
        anchors = load_anchors(anchor.read_bytes()) if anchor else None
    except (OSError, msgspec.DecodeError) as error:
        raise typer.BadParameter(f"not an anchor: {error}", param_hint="--anchor") from error
    report = _verify(directory, anchors)
    if as_json:
        say.print_json(_json(report))
    elif sys.stdout.isatty():
        _show(report)
    else:
        _print(report)
    if write_anchor and report.writers and not report.tampered:
        try:
            write_anchor.write_bytes(msgspec.json.encode(report.anchors()) + b"\n")
        except OSError as error:
            hint = "--write-anchor"
            raise typer.BadParameter(error.strerror or str(error), param_hint=hint) from None
    raise typer.Exit(0 if _is_well(report) else 1)


def _is_well(report: Report) -> bool:
    """Where nothing was found nothing was checked: the path may be wrong, or all was removed."""
    return report.ok and bool(report.writers)


def _size(segment: Path) -> int:
    try:
        return segment.stat().st_size
    except OSError:  # deleted by its writer's retention in this very moment
        return 0


def _verify(directory: Path, anchors: dict[str, Anchor] | None) -> Report:
    total = sum(
        _size(segment_path(writer, number))
        for writer in writers(directory)
        for number in segments(writer)
    )
    if total < _PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        return verify(directory, anchors)
    columns = BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verify", total=total)
        return verify(directory, anchors, progress=lambda n: progress.advance(task, n))


def _json(report: Report) -> dict[str, Any]:
    return {
        "ok": _is_well(report),
        "tampered": report.tampered,
        "writers": [
            {name: value for name, value in msgspec.to_builtins(one).items() if name != "problems"}
            for one in report.writers
        ],
        "problems": report.problems,
        "problem_count": report.problem_count,
    }


def _summary(report: Report) -> str:
    lines = sum(one.lines for one in report.writers)
    noun = "writer" if len(report.writers) == 1 else "writers"
    text = f"{lines} lines of {len(report.writers)} {noun}: "
    if report.ok and not report.writers:
        return text + "there is no log here"
    if report.ok:
        return text + "ok"
    more = report.problem_count - len(report.problems)
    text += f"{report.problem_count} problem" + ("s" if report.problem_count > 1 else "")
    if more:
        text += f" ({more} not shown)"
    return text if report.tampered else text + ", none of them tampering"


def _before(one: WriterReport) -> str:
    """Return what is said of calls from before the oldest segment, where there are any."""
    counts = ("carried", one.carried), ("unknown", one.unknown)
    return "".join(f"{name}={count} " for name, count in counts if count)


def _print(report: Report) -> None:
    for one in report.writers:
        say.answer(
            f"{quoted(one.writer)} {one.state} segments={one.segments} lines={one.lines} "
            f"open={one.open_calls} {_before(one)}seq={one.seq} hash={one.hash}"
        )
    for problem in report.problems:
        say.answer(quoted(f"{problem.where}: {problem.kind}: {problem.message}"))
    say.answer(_summary(report))


def _show(report: Report) -> None:
    console = Console()
    table = Table("writer", "state", box=None, header_style="bold")
    for title in ("segments", "lines", "open calls", "bytes", "problems"):
        table.add_column(title, justify="right")
    for one in report.writers:
        table.add_row(
            say.rich_text(one.writer),
            Text(one.state, _STYLES[one.state]),
            f"{one.segments:,}",
            f"{one.lines:,}",
            f"{one.open_calls:,}",
            f"{one.bytes:,}",
            Text(f"{one.problem_count:,}", "red" if one.problem_count else "green"),
        )
    console.print(table)
    for problem in report.problems:
        style = "yellow" if problem.kind == "recovery" else "red"
        console.print(Text.assemble((quoted(problem.where), style), f": {quoted(problem.message)}"))
    console.print(Text(_summary(report), "bold green" if _is_well(report) else "bold red"))
