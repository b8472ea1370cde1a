"""What `calls`, `stats` and `runs` share: where the log is, since when, and what was verified."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from callgate.cli import say
from callgate.text import quoted

if TYPE_CHECKING:
    from callgate.audit.verify import Report
    from callgate.past.reading import Coverage, PastLog


_SECOND_MS = 1000
_MINUTE_MS = 60_000


class Verify(StrEnum):
    """How much is verified: what the answer needs, or everything."""

    READ = "read"
    ALL = "all"


LogDir = Annotated[
    Path | None,
    typer.Option("--log", metavar="DIR", help="An audit's path; else where `run` writes."),
]
Agent = Annotated[str | None, typer.Option(metavar="A", help="Of this agent only.")]
Tool = Annotated[str | None, typer.Option(metavar="T", help="Of this tool only.")]
Caller = Annotated[str | None, typer.Option(metavar="C", help="Of this caller only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
VerifyOption = Annotated[
    Verify, typer.Option(help="Verify what the answer needs (read), or the whole log (all).")
]


def fail(message: str) -> NoReturn:
    """Say why there is no answer, and end with exit code 1."""
    say.remark(f"callgate: {message}")
    raise typer.Exit(1)


def open_log(directory: Path | None) -> tuple[Path, PastLog]:
    """List the segments of a log; without one, say how to get one."""
    from callgate.past.reading import PastLog  # noqa: PLC0415
    from callgate.stores.place import state_dir  # noqa: PLC0415

    root = state_dir() / "audit" if directory is None else directory
    shown = quoted(str(root))
    try:
        log = PastLog(root)
    except FileNotFoundError:
        fail(
            f"{shown} is not there: nothing was recorded yet. `callgate run` writes there; if a "
            "policy says another place with `audit: {path: DIR}`, add --log DIR"
        )
    except OSError as error:
        fail(f"{shown} cannot be read: {quoted(error.strerror or str(error))}")
    if not log.sources:
        fail(f"{shown} holds no audit; say which directory does with --log DIR")
    return root, log


def parse_since(text: str | None) -> str | None:
    """Return the time stamp that `--since` means; None for no bound."""
    from callgate.past.rows import since_stamp  # noqa: PLC0415

    if text is None or text == "all":
        return None
    try:
        return since_stamp(text, time.time_ns())
    except ValueError as error:
        raise typer.BadParameter(f"{quoted(text)}: {error}", param_hint="--since") from None


def verify_all(root: Path, how: Verify) -> Report | None:
    """Verify the whole log, if that is asked for."""
    if how is Verify.READ:
        return None
    from callgate.audit.verify import verify  # noqa: PLC0415

    return verify(root)


def conclude(root: Path, coverage: Coverage, report: Report | None) -> None:
    """Say on stderr how much was verified; exit 1 if anything was wrong."""
    say.remark(coverage_text(coverage, report))
    problems = [*coverage.faults]
    if report is not None:
        problems += [f"{one.where}: {one.message}" for one in report.problems[:5]]
    for problem in problems:
        say.remark(f"  {quoted(problem)}")
    if coverage.fault_count or (report is not None and not report.ok):
        say.remark(f"for all of it: callgate audit verify {quoted(str(root))}")
        raise typer.Exit(1)


def coverage_text(coverage: Coverage, report: Report | None) -> str:
    """Return one line: how much there is, was read, and was verified."""
    if report is not None:
        count = sum(one.segments for one in report.writers)
        state = "nothing is wrong" if report.ok else f"{report.problem_count} problems"
        return f"verified {count} of {count} segments: {state}"
    text = f"verified {coverage.verified} of {_segments(coverage.segments)}"
    skipped = coverage.segments - coverage.read - coverage.vanished
    if coverage.read > coverage.verified or coverage.fault_count:
        text += f"; {coverage.fault_count} faults in the {coverage.read} that were read"
    if coverage.vanished:
        text += f"; {coverage.vanished} deleted while it was read"
    if skipped > 0:
        text += f"; the other {skipped} have nothing that was asked for: --verify all"
    return text


def coverage_json(coverage: Coverage, report: Report | None) -> dict[str, object]:
    """Return the same for scripts."""
    found: dict[str, object] = {
        "segments": coverage.segments,
        "read": coverage.read,
        "verified": coverage.verified,
        "vanished": coverage.vanished,
        "faults": coverage.fault_count,
    }
    if report is not None:
        found["verified"] = sum(one.segments for one in report.writers) if report.ok else 0
        found["problems"] = report.problem_count
    return found


def _segments(count: int) -> str:
    return f"{count} segment" if count == 1 else f"{count} segments"


def local_time(ts: str) -> str:
    """Return a record's time stamp in the reader's zone, to milliseconds."""
    from datetime import datetime  # noqa: PLC0415

    try:
        moment = datetime.fromisoformat(ts).astimezone()
    except (ValueError, OverflowError, OSError):
        return ts
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"


def milliseconds(ms: int | None) -> str:
    """Return a duration in the unit that people use for it."""
    if ms is None:
        return ""
    if ms < _SECOND_MS:
        return f"{ms} ms"
    if ms < _MINUTE_MS:
        return f"{ms / 1000:.3g} s"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m" if hours else f"{minutes} m {seconds} s"
