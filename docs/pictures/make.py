"""Take the README's picture: play the demonstration and draw what it showed.

python docs/pictures/make.py
"""
# ruff: noqa: INP001  # a script, not a package

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from rich.console import Console

from callgate.cli.demo.show import draw_claims, draw_outcomes, play

PICTURE = Path(__file__).parent / "demo.svg"
WIDTH = 118


def main() -> None:
    """Write `demo.svg` beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        played = asyncio.run(play(Path(folder)))
    console = Console(record=True, width=WIDTH, force_terminal=True)
    console.print(draw_claims(played.claims))
    console.print(draw_outcomes(played.answers))
    console.save_svg(str(PICTURE), title="callgate demo")


if __name__ == "__main__":
    main()
