"""How the demonstration looks: a live table on a terminal, a line a claim in a pipe."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated

import typer

from callgate.cli.demo import scenes
from callgate.cli.demo.client import gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from callgate.cli.demo.scenes import Claim

app = typer.Typer(name="demo", add_completion=False, pretty_exceptions_enable=False)


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Where its policy and audit go; made anew.")
    ] = Path(".demo"),
) -> None:
    """Watch a rogue agent behind the gate: under a minute, no root, no network."""
    if folder.exists():
        rmtree(folder)
    folder.mkdir(parents=True)
    claims = asyncio.run(play(folder))
    kept = sum(claim.kept for claim in claims)
    typer.echo(f"\n{kept} of {len(claims)} claims kept.")
    typer.echo(f"policy  {folder / 'policy.yaml'}\naudit   {folder / 'audit'}")
    typer.echo(f"what the gate said  {folder / 'gate.log'}")
    raise typer.Exit(0 if kept == len(claims) else 1)


async def play(folder: Path) -> list[Claim]:
    """Play every scene; what came of them."""
    policy = scenes.write_policy(folder)
    claims: list[Claim] = []
    with _screen() as draw:
        draw(claims)
        async with gate(policy, folder / "gate.log") as client:
            async for claim in scenes.play(client):
                claims.append(claim)
                draw(claims)
        claims.append(scenes.audited(folder))
        draw(claims)
    return claims


@contextmanager
def _screen() -> Iterator[Callable[[list[Claim]], None]]:
    if not sys.stdout.isatty():
        yield _print_last
        return
    from rich.live import Live  # noqa: PLC0415  # only a terminal pays for it

    with Live(refresh_per_second=8) as live:
        yield lambda claims: live.update(draw_table(claims))


def _print_last(claims: list[Claim]) -> None:
    if claims:
        claim = claims[-1]
        mark = "kept  " if claim.kept else "BROKEN"
        typer.echo(f"{mark}  {claim.title}: {claim.seen}")


def draw_table(claims: list[Claim]) -> Table:
    """The claims so far."""
    from rich.spinner import Spinner  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = RichTable("", "claim", "seen", title="a rogue agent behind callgate run", expand=True)
    for claim in claims:
        mark = Text("✓", "green") if claim.kept else Text("✗", "bold red")
        table.add_row(mark, claim.title, Text(claim.seen, "" if claim.kept else "red"))
    if len(claims) <= len(scenes.SCENES):
        title = "the audit is read" if len(claims) == len(scenes.SCENES) else "playing …"
        table.add_row(Spinner("dots"), title, "")
    return table
