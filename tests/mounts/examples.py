"""Runs a program of `examples/` as a reader would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
HOUR_S = 3600.0
_RETRY = re.compile(r"\b(3[56]\d\d\.\d) s\b")


def output_of(example: str, *, strict: bool = True) -> list[str]:
    """The lines that it prints; fails with what it said if it fails, or if anything warns.

    What is left of an hour is told as the hour: how much of it is gone is the machine's speed.
    """
    options = ["-W", "error"] if strict else []
    done = subprocess.run(
        [sys.executable, *options, f"examples/{example}.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [_RETRY.sub(_as_at_once, line) for line in done.stdout.splitlines()]


def _as_at_once(retry: re.Match[str]) -> str:
    """Round the rest of an hour up to the hour, if the example was no slower than we wait."""
    rest_s = float(retry[1])
    return "3600.0 s" if HOUR_S - PATIENCE_S <= rest_s <= HOUR_S else retry[0]
