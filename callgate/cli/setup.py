"""`callgate init`, `wrap` and `unwrap`: put the gate in front of a client's servers.

Exit codes: 0 if all is as you asked, 1 if something was refused or nothing was found, 2 usage.
"""
# ruff: noqa: PLC0415  # `callgate --help` imports this module, and none of what it works with

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

init = typer.Typer(
    name="init", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
wrap = typer.Typer(
    name="wrap", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
unwrap = typer.Typer(
    name="unwrap", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Change without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and stop.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; with --yes or --dry-run.")]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", metavar="F", help="A policy of yours instead of the first policy."),
]
Enforce = Annotated[
    bool, typer.Option("--enforce", help="Let the first policy enforce the guarded figures.")
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A client's configuration.")]


@init.command()
def init_command(
    *,
    client: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this client; may be repeated.")
    ] = None,
    at_once: Annotated[bool, typer.Option("--all", help="Ask once for all files.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take all changes of ours back.")] = False,
    policy: PolicyFile = None,
    enforce: Enforce = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Find the MCP clients of this user and project, and put the gate before their servers."""
    from callgate.cli.setup_session import Session
    from callgate.setup import records, work
    from callgate.setup.clients import CLIENTS

    session = Session(yes=yes, dry_run=dry_run, as_json=as_json, at_once=at_once)
    wanted = client or []
    unknown = set(wanted) - {each.name for each in CLIENTS}
    if unknown:
        known = ", ".join(each.name for each in CLIENTS)
        session.usage(f"no client {min(unknown)!r} is known; known are {known}")
    with session.guarded():
        if undo:
            found = [r for r in records.load_all() if not wanted or r.client in wanted]
            session.undo([work.prepare_undo(record) for record in found])
            return
        places = list(work.find_places(work.this_home(), os.getcwd(), wanted))  # noqa: PTH109
        session.wrap(places, policy, enforce=enforce)


@wrap.command()
def wrap_command(
    file: File,
    *,
    policy: PolicyFile = None,
    enforce: Enforce = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put the gate before the servers of one configuration file."""
    from callgate.cli.setup_session import Session
    from callgate.setup import work
    from callgate.setup.clients import place_of

    session = Session(yes=yes, dry_run=dry_run, as_json=as_json)
    with session.guarded():
        place = place_of(str(file.absolute()), work.this_home())
        session.wrap([place], policy, enforce=enforce)


@unwrap.command()
def unwrap_command(
    file: File, *, yes: Yes = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Take the gate away from the servers of one configuration file."""
    from callgate.cli.setup_session import Session
    from callgate.setup import work
    from callgate.setup.clients import place_of

    session = Session(yes=yes, dry_run=dry_run, as_json=as_json)
    with session.guarded():
        place = place_of(str(file.absolute()), work.this_home())
        session.undo([work.prepare_unwrap(place)])
