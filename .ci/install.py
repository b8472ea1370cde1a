"""Install callgate into `.venv` for a make target, and show what happens from the first second.

python3 .ci/install.py EXTRAS TEXT  (EXTRAS may be empty). On a terminal the last line is live;
in a pipe each package gets a line. What pip warns of is shown if pip fails.
"""

# ruff: noqa: INP001  # a script, not a package

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts" if sys.platform == "win32" else "bin") / "python"
STARTED = time.monotonic()
TICK_S = 0.5


class Line:
    """What is being done now, and for how long; drawn anew while it lasts on a terminal."""

    def __init__(self) -> None:
        self._text = ""
        self._over = threading.Event()
        self._live = sys.stdout.isatty()
        if self._live:
            threading.Thread(target=self._tick, daemon=True).start()

    def show(self, text: str) -> None:
        """Say what is being done now."""
        self._text = text
        if self._live:
            self._draw()
        else:
            print(f"  {text}", flush=True)  # noqa: T201

    def end(self) -> None:
        """Leave the line as it is."""
        self._over.set()
        print(f"{chr(13) if self._live else ''}  done in {_seconds()}", flush=True)  # noqa: T201

    def _draw(self) -> None:
        sys.stdout.write(f"\r  {_seconds()}  {self._text}\x1b[K")
        sys.stdout.flush()

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            self._draw()


def _seconds() -> str:
    return f"{time.monotonic() - STARTED:.0f} s"


def main(extras: str, text: str) -> int:
    """Make `.venv` if it is not there and install into it; return pip's exit code."""
    print(f"installing {text} into .venv", flush=True)  # noqa: T201
    line = Line()
    if not PYTHON.exists():
        line.show("making an environment")
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)  # noqa: S603
    line.show("asking for packages")
    what = f".[{extras}]" if extras else "."
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-color", "install"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603
            [*pip, "--progress-bar", "off", "-c", "constraints.txt", "-e", what],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        code = _follow(process, line)
        line.end()
        if code != 0:
            errors.seek(0)
            print(errors.read(), file=sys.stderr)  # noqa: T201
    return code


def _follow(process: subprocess.Popen[str], line: Line) -> int:
    found = 0
    for said in process.stdout or ():
        first, _, rest = said.strip().partition(" ")
        if first == "Collecting":
            found += 1
            line.show(f"{found:3}  {rest.split()[0]}")
        elif said.startswith("Installing collected"):
            line.show(f"unpacking all ({rest.count(',') + 1})")
    return process.wait()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
