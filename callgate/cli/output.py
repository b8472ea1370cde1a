"""How answers look: tables in colour on a terminal, aligned text in a pipe, JSON on demand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import typer

from callgate.cli import say, table
from callgate.cli.exposed import find_exposed, unexposed
from callgate.launcher.plugins import installed
from callgate.policy import Policy, PolicyError
from callgate.policy.problems import render
from callgate.policy.purpose import ROUTER, Purpose
from callgate.text import quoted

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.policy import Row

_COLUMNS = ("key", "value", "scope", "source", "enforced", "note")
_COLOURS = {"enforced": "green", "shadow": "yellow", "off": "dim", "absent": "red"}


def load_or_exit(file: Path, *, as_json: bool, purpose: Purpose = ROUTER) -> Policy:
    """Return the policy, or print its problems and exit with code 1."""
    try:
        return unexposed(Policy.load(file, purpose=purpose))
    except PolicyError as error:
        if as_json:
            say.print_json({"ok": False, **error.as_dict()})
        else:
            count = len(error.problems) + error.more
            say.remark(str(error))
            noun = "problem" if count == 1 else "problems"
            say.remark(f"{count} {noun}; fix and run `callgate check {quoted(str(file))}` again")
        raise typer.Exit(1) from None


def checked(policy: Policy, file: Path, *, as_json: bool) -> None:
    """Print that a policy is valid, and its warnings."""
    _, readable = find_exposed(policy)
    found = [*policy.warnings, *readable, *policy.unknown_launchers(installed())]
    if as_json:
        warnings = [msgspec.structs.asdict(warning) for warning in found]
        answer = {"ok": True, "revision": policy.revision, "for": policy.purpose.name}
        answer |= {"profile": policy.profile_name, "audit": _audit(policy)}
        say.print_json(answer | {"warnings": warnings})
        return
    for warning in found:
        say.remark(f"{render(warning, str(file))} [warning]")
    agents, callers = len(policy.agents), len(policy.callers)
    counts = f"agents {agents}, callers {callers}"
    say.answer(f"{quoted(str(file))}: ok, revision {policy.revision}, {counts}; {verdict(policy)}")


def verdict(policy: Policy) -> str:
    """Return which profile and which audit a policy has, and for whom."""
    audit = _audit(policy)
    where = "no audit" if audit is None else f"audit in {quoted(audit)}"
    return f"for {policy.purpose.name}: profile {policy.profile_name}, {where}"


def _audit(policy: Policy) -> str | None:
    return None if policy.audit is None else policy.audit.path


def explained(rows: list[Row], *, as_json: bool) -> None:
    """Print effective limits."""
    if as_json:
        say.print_json([msgspec.structs.asdict(row) for row in rows])
    elif sys.stdout.isatty():
        _table(rows)
    else:
        table.plain(_COLUMNS, [[getattr(row, name) for name in _COLUMNS] for row in rows])


def have_same_limits(one: list[Row], other: list[Row]) -> bool:
    """Return True if the same limits hold, whatever they are counted under."""
    return [(row.key, row.value, row.mode, row.source) for row in one] == [
        (row.key, row.value, row.mode, row.source) for row in other
    ]


def _table(rows: list[Row]) -> None:
    from rich.console import Console  # noqa: PLC0415  # only a terminal pays for it
    from rich.table import Table  # noqa: PLC0415

    shown = Table(*_COLUMNS)
    for row in rows:
        cells = [say.rich_text(getattr(row, name)) for name in _COLUMNS]
        cells[_COLUMNS.index("enforced")].stylize(_COLOURS[row.enforced])
        shown.add_row(*cells)
    Console().print(shown)
