"""How the demonstration looks: live tables on a terminal, a line a claim in a pipe."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from callgate.cli import say
from callgate.cli.demo import scenes
from callgate.cli.demo.client import gate
from callgate.contract.results import CheckFailed
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Group
    from rich.table import Table

    from callgate.cli.demo.client import Answer

app = typer.Typer(
    name="demo", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

OURS = {"policy.yaml", "audit", "gate.log"}
"""All that a demonstration leaves in its folder."""
LAST_CALLS = 6
CANNOT = 2


class Claim(NamedTuple):
    """One thing that the gate promises, and what was seen of it."""

    title: str
    seen: str
    kept: bool


class Played(NamedTuple):
    """All of it: what the claims came to, and every call."""

    claims: list[Claim]
    answers: list[Answer]


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Where its policy and audit go; made anew.")
    ] = Path(".demo"),
) -> None:
    """Watch a rogue agent behind the gate: under a minute, no root, no network."""
    _make(folder)
    try:
        claims, answers = asyncio.run(play(folder))
    except CheckFailed as failed:
        say.remark(f"the gate: {failed}; it said:\n{_read(folder / 'gate.log')}")
        raise typer.Exit(1) from None
    _print_summary(answers)
    kept = sum(claim.kept for claim in claims)
    say.answer(f"\n{kept} of {len(claims)} claims kept.")
    shown = quoted(str(folder))
    say.answer(f"policy  {shown}/policy.yaml\naudit   {shown}/audit")
    say.answer(f"what the gate said  {shown}/gate.log")
    raise typer.Exit(0 if kept == len(claims) else 1)


def _make(folder: Path) -> None:
    """An empty folder; only what a former demonstration left is ever deleted."""
    try:
        if folder.exists():
            if not {entry.name for entry in folder.iterdir()} <= OURS:
                say.remark(f"{quoted(str(folder))} has files that are not the demonstration's")
                raise typer.Exit(CANNOT)
            rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        text = (
            f"{quoted(str(folder))} cannot be made: {error.strerror}; say where with --folder DIR"
        )
        say.remark(text)
        raise typer.Exit(CANNOT) from None


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


async def play(folder: Path) -> Played:
    """Play every scene; what came of them."""
    policy = scenes.write_policy(folder)
    claims: list[Claim] = []
    answers: list[Answer] = []
    with _screen() as draw:
        draw(claims, answers)
        async with gate(policy, folder / "gate.log") as client:
            answers = client.answers
            client.on_answer = lambda: draw(claims, answers)
            for scene in scenes.SCENES:
                claims.append(Claim(scene.title, *await scene.play(client)))
                draw(claims, answers)
        claims.append(Claim(scenes.AUDITED, *scenes.audited(folder)))
        draw(claims, answers)
    return Played(claims, answers)


@contextmanager
def _screen() -> Iterator[Callable[[list[Claim], list[Answer]], None]]:
    if not sys.stdout.isatty():
        printed = 0

        def print_new(claims: list[Claim], _: list[Answer]) -> None:
            nonlocal printed
            for claim in claims[printed:]:
                mark = "kept  " if claim.kept else "BROKEN"
                say.answer(f"{mark}  {claim.title}: {claim.seen}")
            printed = len(claims)

        yield print_new
        return
    from rich.live import Live  # noqa: PLC0415  # only a terminal pays for it

    with Live(refresh_per_second=8) as live:
        yield lambda claims, answers: live.update(draw_all(claims, answers))


def draw_all(claims: list[Claim], answers: Sequence[Answer]) -> Group:
    """The claims so far and, until all is over, the last calls."""
    from rich.console import Group as RichGroup  # noqa: PLC0415

    parts = [draw_claims(claims)]
    if len(claims) <= len(scenes.SCENES):
        parts.append(_draw_calls(answers[-LAST_CALLS:]))
    return RichGroup(*parts)


def draw_claims(claims: list[Claim]) -> Table:
    """The claims so far, and the one that is being tried."""
    from rich.spinner import Spinner  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = RichTable("", "claim", "seen", title="a rogue agent behind callgate run", expand=True)
    for claim in claims:
        mark = Text("✓", "green") if claim.kept else Text("✗", "bold red")
        table.add_row(mark, claim.title, Text(claim.seen, "" if claim.kept else "red"))
    titles = [*(scene.title for scene in scenes.SCENES), scenes.AUDITED]
    if len(claims) < len(titles):
        table.add_row(Spinner("dots"), titles[len(claims)], "")
    return table


def _draw_calls(answers: Sequence[Answer]) -> Table:
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = RichTable(title="the last calls", expand=True, box=None, show_header=False)
    for width in (len("delete_all"), len("resource_limit_exceeded"), None):
        table.add_column(width=width, ratio=None if width else 1, no_wrap=True)
    for answer in answers:
        good = answer.code == "ok"
        words = f"{answer.seconds * 1000:.0f} ms" if good else answer.text
        table.add_row(answer.tool, Text(answer.code, "green" if good else "yellow"), words)
    return table


def outcomes(answers: Sequence[Answer]) -> list[tuple[str, int, str]]:
    """Each outcome, how many calls had it, and the words of the first of them."""
    found: dict[str, tuple[int, str]] = {}
    for answer in answers:
        count, words = found.get(answer.code, (0, "" if answer.code == "ok" else answer.text))
        found[answer.code] = count + 1, words
    return [(code, count, words) for code, (count, words) in found.items()]


def draw_outcomes(answers: Sequence[Answer]) -> Table:
    """What became of the calls, and what a model was told."""
    from rich.table import Table as RichTable  # noqa: PLC0415

    table = RichTable("outcome", "calls", "what the model reads, of one of them", expand=True)
    table.title = f"{len(answers)} calls"
    for code, count, words in outcomes(answers):
        table.add_row(code, str(count), words)
    return table


def _print_summary(answers: Sequence[Answer]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415

        Console().print(draw_outcomes(answers))
        return
    say.answer(f"\n{len(answers)} calls")
    for code, count, words in outcomes(answers):
        say.answer(f"{count:4}  {code:24}  {words}".rstrip())
