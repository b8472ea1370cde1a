"""`callgate stats`: what a span of time adds up to, from the audit.

On a terminal with small plots, in a pipe as plain columns, for scripts as JSON.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callgate.cli import past, plots, say, table
from callgate.text import quoted

if TYPE_CHECKING:
    from collections import Counter

    from callgate.past.tally import Line, Tally

app = typer.Typer(name="stats", add_completion=False)

_TOP = 10


@app.command()
def stats(
    *,
    since: Annotated[
        str,
        typer.Option(metavar="T", help="15m, 2h, 7d, a time such as 2026-11-20T08:00, or all."),
    ] = "24h",
    agent: past.Agent = None,
    tool: past.Tool = None,
    caller: past.Caller = None,
    log: past.LogDir = None,
    as_json: past.AsJson = False,
    verify: past.VerifyOption = past.Verify.READ,
) -> None:
    """Show how many calls there were, what limits refused, and how long calls took."""
    from callgate.past.rows import Query  # noqa: PLC0415
    from callgate.past.tally import COUNTED, Tally  # noqa: PLC0415

    query = Query(
        events=COUNTED, since=past.parse_since(since), agent=agent, tool=tool, caller=caller
    )
    root, found = past.open_log(log)
    report = past.verify_all(root, verify)
    tally = Tally()
    for row in found.unordered(query):
        tally.add(row)
    if as_json:
        say.print_json(_json(tally, past.coverage_json(found.coverage, report)))
    else:
        _show(tally, since)
    past.conclude(root, found.coverage, report)


def _show(tally: Tally, since: str) -> None:
    drawn = plots.can_draw(sys.stdout)
    when = "in all" if since == "all" else f"since {quoted(since)}"
    if since[-1:] in "smhd" and since[:1].isdigit():
        when = f"in the last {quoted(since)}"
    say.answer(f"{tally.calls:,} calls {when}{_results(tally)}")
    if not tally.calls and not tally.would_refuse:
        return
    p50, p99 = (past.milliseconds(tally.durations.percentile(one)) for one in (50, 99))
    if tally.durations.count:
        say.answer(f"half of them took up to {p50} (p50), 99 of 100 up to {p99} (p99)")
    hours = tally.hourly()
    if drawn and len(hours) > 1:
        say.answer(f"by the hour  {plots.sparkline(hours)}  most: {max(hours):,}")
    _counted("refused", tally.refused, drawn=drawn)
    _counted("would have been refused", tally.would_refuse, drawn=drawn)
    _counted("ended otherwise", tally.codes, drawn=drawn)
    _lines("tool", tally.tools)
    _lines("caller", tally.callers)


def _results(tally: Tally) -> str:
    words = {"ok": "ok", "error": "failed", "denied": "refused", "cancelled": "cancelled"}
    parts = [
        f"{count:,} {quoted(words.get(result, result))}"
        for result, count in tally.results.most_common(6)
    ]
    if would := sum(tally.would_refuse.values()):
        parts.append(f"{would:,} would have been refused")
    return ": " + ", ".join(parts) if parts else ""


def _counted(title: str, counter: Counter[str], *, drawn: bool) -> None:
    if not counter:
        return
    say.answer("")
    top = counter.most_common(_TOP)
    rows = [[name, f"{count:,}"] for name, count in top]
    columns = [f"{title} (by limit)" if "refused" in title else title, "calls"]
    if drawn:
        columns.append("")
        for row, (_, count) in zip(rows, top, strict=True):
            row.append(plots.bar(count, top[0][1]))
    table.show(columns, rows, colours={}, right=["calls"])
    _rest(len(counter) - len(top))


def _lines(title: str, lines: dict[str, Line]) -> None:
    from callgate.past.tally import busiest  # noqa: PLC0415

    if not lines:
        return
    top = busiest(lines, _TOP)
    rows = [
        (
            name,
            f"{line.calls:,}",
            f"{line.refused:,}",
            f"{line.failed:,}",
            past.milliseconds(line.durations.percentile(50)),
            past.milliseconds(line.durations.percentile(99)),
        )
        for name, line in top
    ]
    columns = (f"busiest {title}", "calls", "refused", "failed", "p50", "p99")
    say.answer("")
    table.show(columns, rows, colours={}, right=columns[1:], spare=("p50", "failed"))
    _rest(len(lines) - len(top))


def _rest(count: int) -> None:
    if count > 0:
        say.answer(f"… and {count:,} more: --json has all")


def _json(tally: Tally, read: dict[str, object]) -> dict[str, Any]:
    return {
        "calls": tally.calls,
        "first": tally.first,
        "last": tally.last,
        "outcomes": dict(tally.results),
        "refused": dict(tally.refused),
        "would_have_been_refused": dict(tally.would_refuse),
        "codes": dict(tally.codes),
        "p50_ms": tally.durations.percentile(50),
        "p99_ms": tally.durations.percentile(99),
        "by_hour": dict(sorted(tally.hours.items())),
        "tools": {name: _line_json(line) for name, line in tally.tools.items()},
        "callers": {name: _line_json(line) for name, line in tally.callers.items()},
        "read": read,
    }


def _line_json(line: Line) -> dict[str, int | None]:
    return {
        "calls": line.calls,
        "refused": line.refused,
        "failed": line.failed,
        "p50_ms": line.durations.percentile(50),
        "p99_ms": line.durations.percentile(99),
    }
