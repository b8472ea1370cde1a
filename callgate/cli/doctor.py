"""`callgate doctor`: what this host can enforce, tried out, with what would help.

Exit codes: 0 if agents can be contained at level standard here, 1 if not.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callgate.cli import say, table
from callgate.launcher.doctor import Finding, find, try_levels
from callgate.launcher.host import survey
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

app = typer.Typer(
    name="doctor", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

NEEDED = "level standard"
_COLUMNS = ("feature", "status", "why", "fix")
_COLOURS = {"enforced": "green", "degraded": "yellow", "absent": "red"}


@app.command()
def doctor(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False
) -> None:
    """Try what this host can enforce, and say what would help."""
    findings = _find()
    ok = any(each.feature == NEEDED and each.status == "enforced" for each in findings)
    if as_json:
        answer = {"ok": ok, "findings": findings}
        say.print_json(answer)
    else:
        can = "can" if ok else "cannot"
        say.answer(f"agents {can} be contained at level standard here")
        if not ok:
            say.answer(f"first: {_first_fix(findings)}")
        say.answer("")
        rows = [(each.feature, each.status, each.why, each.fix) for each in findings]
        table.show(_COLUMNS, rows, colours=_COLOURS)
    raise typer.Exit(0 if ok else 1)


def _first_fix(findings: list[Finding]) -> str:
    """Return what to do next: the fixes stand in the order in which they build on each other."""
    fixes = (each.fix for each in findings if each.status == "absent" and each.fix)
    return next(fixes, "see the reasons below")


def _find() -> list[Finding]:
    """Try everything, saying on a terminal what is being tried."""
    with _progress() as progress:
        progress("the host")
        host = survey.with_sandbox(survey.with_groups(survey.survey()))
        findings = list(find(host, progress))
        progress("levels")
        findings += asyncio.run(try_levels())
        progress("clients")
        findings += find_clients()
    return findings


def find_clients() -> list[Finding]:
    """Return a finding for each server of a client that names a callgate which is gone."""
    from callgate.setup.work import find_gone, this_home  # noqa: PLC0415  # and tomlkit

    return [
        Finding(
            f"{each.client}: {quoted(each.server)}",
            "absent",
            f"it cannot start: there is no {quoted(each.program)}",
            quoted(f"callgate unwrap {shlex.quote(each.file)}, then wrap it again"),
        )
        for each in find_gone(this_home(), str(Path.cwd()))
    ]


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    if not sys.stderr.isatty():
        yield lambda _feature: None
        return
    from rich.console import Console  # noqa: PLC0415  # only a terminal pays for it

    with Console(stderr=True).status("looking") as status:
        yield lambda feature: status.update(f"trying: {feature}")
