"""`callgate runs`: the last runs of agents, with how each ended and what it used."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from callgate.cli import say, table
from callgate.launcher.history import History, RunRecord, default_path
from callgate.launcher.limit_message import duration, limit_text, size
from callgate.text import quoted

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(name="runs", add_completion=False)

_COLUMNS = (
    "started",
    "agent",
    "state",
    "reason",
    "lasted",
    "exit",
    "cpu",
    "peak memory",
    "limit",
    "run",
)
_SPARE = ("run", "cpu", "peak memory", "exit")
_COLOURS = {
    "running": "green",
    "starting": "green",
    "stopped": "dim",
    "paused": "yellow",
    "crashed": "red",
}
_MS_NS = 1_000_000


@app.command()
def runs(
    *,
    agent: Annotated[str | None, typer.Option(metavar="A", help="Of this agent only.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show the last runs, the newest first."""
    records = _read(default_path(), limit, agent)
    if as_json:
        say.print_json(records)
    elif records:
        rows = [_row(record) for record in records]
        numbers = ("lasted", "exit", "cpu", "peak memory")
        table.show(_COLUMNS, rows, colours=_COLOURS, right=numbers, spare=_SPARE)
    else:
        say.remark("no runs yet" if agent is None else f"no runs of agent {quoted(agent)}")


def _read(path: Path, limit: int, agent: str | None) -> list[RunRecord]:
    if not path.exists():
        return []
    try:
        history = History(path)
        try:
            return history.recent(limit, agent)
        finally:
            history.close()
    except UnicodeEncodeError:  # bytes that are no text: no agent has such a name
        return []
    except (sqlite3.Error, OSError) as error:
        say.remark(f"{quoted(str(path))}: {quoted(str(error))}")
        raise typer.Exit(1) from None


def _row(record: RunRecord) -> tuple[str, ...]:
    started = datetime.fromtimestamp(record.started_ms / 1000).astimezone()
    lasted = ""
    if record.ended_ms is not None:
        lasted = duration((record.ended_ms - record.started_ms) * _MS_NS)
    cpu_ns, peak = record.usage.get("cpu_ns"), record.usage.get("memory_peak_bytes")
    limit = record.limit
    return (
        f"{started:%Y-%m-%d %H:%M:%S}",
        record.agent,
        record.state,
        record.stop_reason or "",
        lasted,
        _exit(record),
        "" if cpu_ns is None else duration(cpu_ns),
        "" if peak is None else size(peak),
        "" if limit is None else limit_text(limit["type"], limit["limit"]),
        record.run_id,
    )


def _exit(record: RunRecord) -> str:
    if record.signal is not None:
        return f"signal {record.signal}"
    return "" if record.exit_code is None else str(record.exit_code)
