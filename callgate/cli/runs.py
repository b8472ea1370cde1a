"""`callgate runs`: the runs of agents, told from the audit: how each ended and what it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from callgate.cli import past, say, table
from callgate.text import quoted

if TYPE_CHECKING:
    from callgate.past.reading import PastLog
    from callgate.past.runs import RunRow

app = typer.Typer(name="runs", add_completion=False, rich_markup_mode=None)

_COLUMNS = (
    *("started", "agent", "state", "reason", "lasted", "exit"),
    *("cpu", "peak memory", "limit", "run"),
)
_SPARE = ("run", "cpu", "peak memory", "exit")
_COLOURS = {
    "running": "green",
    "stopped": "dim",
    "paused": "yellow",
    "crashed": "red",
    "lost": "yellow",
}


@app.command()
def runs(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Tell all of this run; a part will do.")
    ] = None,
    *,
    agent: past.Agent = None,
    state: Annotated[
        str | None, typer.Option(metavar="S", help="running, stopped, crashed, paused or lost.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="T", help="15m, 2h, 7d, or a time: 2026-11-20T08:00.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many.")] = 20,
    log: past.LogDir = None,
    as_json: past.AsJson = False,
) -> None:
    """Show the last runs, the newest first, or all that is known of one."""
    from callgate.past.runs import STATES  # noqa: PLC0415

    if state is not None and state not in STATES:
        expected = ", ".join(STATES)
        raise typer.BadParameter(f"{quoted(state)}: expected {expected}", param_hint="--state")
    begin = past.parse_since(since)
    root, found = past.open_log(log)
    rows = [
        run
        for run in _collect(found, begin)
        if (agent is None or run.agent == agent)
        and (state is None or run.state == state)
        and (begin is None or run.started >= begin)
        and (run_id is None or run.run_id.startswith(run_id))
    ][:limit]
    if as_json:
        say.print_json(rows)
    elif not rows:
        say.remark("no such runs; `callgate runs` shows the last of all")
    elif run_id is not None:
        for run in rows:
            _detail(run)
    else:
        cells = [_cells(run) for run in rows]
        numbers = ("lasted", "exit", "cpu", "peak memory")
        table.show(_COLUMNS, cells, colours=_COLOURS, right=numbers, spare=_SPARE)
    past.conclude(root, found.coverage, None)


def _collect(found: PastLog, since: str | None) -> list[RunRow]:
    from callgate.past.rows import Query  # noqa: PLC0415
    from callgate.past.runs import EVENTS, Runs  # noqa: PLC0415

    query = Query(events=EVENTS | {"audit.started"}, signs=EVENTS, since=since)
    collected = Runs()
    for live, rows in found.by_writer(query):
        for row in rows:
            collected.add(row)
        collected.writer_ended(live=live)
    return collected.newest()


def _cells(run: RunRow) -> tuple[str, ...]:
    from callgate.launcher.limit_message import size  # noqa: PLC0415

    peak = run.memory_peak_bytes
    return (
        past.local_time(run.started)[:-4],
        run.agent,
        run.state,
        run.reason or "",
        past.milliseconds(run.lasted_ms),
        _exit(run),
        past.milliseconds(run.cpu_ms),
        "" if peak is None else size(peak),
        run.limit or "",
        run.run_id,
    )


def _exit(run: RunRow) -> str:
    if run.signal is not None:
        return f"signal {run.signal}"
    return "" if run.exit_code is None else str(run.exit_code)


def _detail(run: RunRow) -> None:
    """Print one run, a member a line."""
    cells = dict(zip(_COLUMNS, _cells(run), strict=True))
    cells["ended"] = "" if run.ended is None else past.local_time(run.ended)[:-4]
    if run.usage is not None:
        cells["used of its limit"] = f"{run.usage:,} of {run.usage_limit or 0:,}"
    cells["came close to"] = ", ".join(run.warnings)
    cells["does not hold"] = ", ".join(run.degraded)
    for name, value in cells.items():
        if value:
            say.answer(f"{name:<18} {quoted(value)}")
    say.answer("")
