"""`callgate calls`: which calls there were, from the audit.

The last ones, oldest first, so that the newest stand at the prompt. Exit codes: 0 if the log that
was read is whole, 1 if it is not or there is none, 2 usage.
"""

from __future__ import annotations

import csv
import io
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callgate.cli import past, say, table
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from callgate.past.reading import PastLog
    from callgate.past.rows import Query, Row

app = typer.Typer(name="calls", add_completion=False)

POLL_S = 0.25
"""How often `--follow` looks for new records: a person does not notice."""

_COLUMNS = ("time", "agent", "tool", "caller", "outcome", "took", "code", "limit", "request id")
_SPARE = ("request id", "caller", "limit", "took")
_EVENT_COLUMNS = ("time", "event", "agent", "tool", "caller", "took", "code", "limit")
_COLOURS = {
    "ok": "green",
    "error": "red",
    "denied": "yellow",
    "would_deny": "yellow",
    "cancelled": "dim",
    "unknown": "red",
}
_CSV = (
    *("ts", "outcome", "agent", "tool", "caller", "code", "limit", "duration_ms"),
    *("queue_ms", "retry_after_ms", "bytes_in", "bytes_out", "count", "request_id", "event"),
)
_FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet would compute and not show."""


@app.command()
def calls(
    *,
    since: Annotated[
        str | None, typer.Option(metavar="T", help="15m, 2h, 7d, or a time: 2026-11-20T08:00.")
    ] = None,
    agent: past.Agent = None,
    tool: past.Tool = None,
    caller: past.Caller = None,
    outcome: Annotated[
        str | None,
        typer.Option(metavar="O", help="ok, error, cancelled, denied, unknown or would_deny."),
    ] = None,
    code: Annotated[str | None, typer.Option(metavar="C", help="Such as limit.rate.")] = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="All records of this one call.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=100_000, help="The last N; 0 is all of them.")
    ] = 50,
    log: past.LogDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a header.")] = False,
    verify: past.VerifyOption = past.Verify.READ,
) -> None:
    """Show which calls there were, how each ended, and why one was refused."""
    if as_json and as_csv:
        raise typer.BadParameter("say --json or --csv, not both", param_hint="--csv")
    query = _query(
        since=past.parse_since(since),
        agent=agent,
        tool=tool,
        caller=caller,
        outcome=outcome,
        code=code,
        request_id=request_id,
    )
    root, found = past.open_log(log)
    report = past.verify_all(root, verify)
    show = _print_json if as_json else _print_csv if as_csv else None
    if as_csv:
        say.answer(_csv_line(_CSV))
    if show is None:
        _show_table(found, query, limit, follow=follow)
    else:
        for row in found.newest(query, limit) if limit else found.all(query):
            show(row)
    if follow:
        _follow(root, found, query, show or _print_row)
    past.conclude(root, found.coverage, report)


def _query(*, outcome: str | None, request_id: str | None, **members: Any) -> Query:
    from callgate.audit.events import SEVERITY, safe_uuid  # noqa: PLC0415
    from callgate.past.rows import ENDS, OUTCOMES, WOULD_DENY, Query  # noqa: PLC0415

    if outcome is not None and outcome not in OUTCOMES:
        names = ", ".join(OUTCOMES)
        raise typer.BadParameter(f"{quoted(outcome)}: expected {names}", param_hint="--outcome")
    events = frozenset({WOULD_DENY}) if outcome == "would_deny" else ENDS
    if request_id is not None:
        canonical = safe_uuid(request_id)
        if canonical is None:
            message = f"{quoted(request_id)}: expected an id as `callgate calls` shows it"
            raise typer.BadParameter(message, param_hint="--request-id")
        request_id, events = canonical, frozenset(SEVERITY)
    return Query(events=events, outcome=outcome, request_id=request_id, **members)


def _show_table(found: PastLog, query: Query, limit: int, *, follow: bool) -> None:
    rows = found.newest(query, limit) if limit else None
    if rows is None or follow:
        for row in found.all(query) if rows is None else rows:
            _print_row(row)
    elif not rows:
        say.remark("no such calls; `callgate calls` shows the last of all")
    elif query.request_id is not None:
        table.show(_EVENT_COLUMNS, [_event_cells(row) for row in rows], colours={}, right=["took"])
    else:
        cells = [_cells(row) for row in rows]
        table.show(_COLUMNS, cells, colours=_COLOURS, right=["took"], spare=_SPARE)


def _cells(row: Row) -> tuple[str, ...]:
    merged = f" ({row.count} times)" if row.times > 1 else ""
    return (
        past.local_time(row.ts),
        row.agent or "",
        row.tool or "",
        row.caller or "",
        row.result,
        past.milliseconds(row.duration_ms),
        (row.code or "") + merged,
        row.limit or "",
        row.request_id or "",
    )


def _event_cells(row: Row) -> tuple[str, ...]:
    return (
        past.local_time(row.ts),
        row.event,
        row.agent or "",
        row.tool or "",
        row.caller or "",
        past.milliseconds(row.duration_ms),
        row.code or "",
        row.limit or "",
    )


def _print_row(row: Row) -> None:
    """Print a call as one line that does not need to know how wide the next one is."""
    when, agent, tool, caller, outcome, took, *rest = (quoted(cell) for cell in _cells(row))
    who = f"{agent or '?'}/{tool or '?'} by {caller or '?'}"
    say.answer("  ".join(word for word in (when, outcome, who, took, *rest) if word))


def _print_json(row: Row) -> None:
    members = {
        name: value for name in row.__struct_fields__ if (value := getattr(row, name)) is not None
    }
    if row.result:
        members["outcome"] = row.result
    say.print_json_line(members)


def _print_csv(row: Row) -> None:
    values = {"outcome": row.result}
    say.answer(_csv_line([values.get(name, getattr(row, name, None)) for name in _CSV]))


def _csv_line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([_csv_cell(cell) for cell in cells])
    return text.getvalue()


def _csv_cell(cell: object) -> str:
    shown = "" if cell is None else quoted(str(cell))
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def _follow(root: Path, found: PastLog, query: Query, show: Callable[[Row], None]) -> None:
    """Show what is written from here on, until Ctrl-C."""
    from callgate.past.follow import Follower  # noqa: PLC0415

    follower = Follower(root, found.sources)
    try:
        while True:
            for row in follower.new(query):
                show(row)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return
    except OSError as error:
        past.fail(f"{quoted(str(root))} cannot be read any more: {quoted(error.strerror or '')}")
