"""Runs a program of `examples/` as a reader would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


def output_of(example: str, *, strict: bool = True) -> list[str]:
    """The lines that it prints; fails with what it said if it fails, or if anything warns."""
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
    return done.stdout.splitlines()
