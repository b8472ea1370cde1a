"""Ctrl-C at any moment of a start ends it with 130, without a traceback, and leaves no process."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.conftest import FULL
from tests.gate.helpers import environment, is_gone, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

TIMES = 150 if FULL else 20
LONGEST_S = 1.2
"""By then a gate has started here; each moment before and a few after are tried."""
SHORT_S = 0.15
"""A check that nobody interrupts takes little longer."""

# What Python does before our first line cannot be ours; from there on everything is.
HEEDED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Tests may run where interrupts are ignored, as what a shell starts beside itself does."""
MARKED = """
import sys
from callgate.cli import main
sys.stderr.write("begun\\n")
sys.stderr.flush()
main()
"""
COMMANDS = {
    "run": ["run", "--", sys.executable, "-c", "import sys\nfor line in sys.stdin: pass"],
    "run --policy": ["run", "--policy", "p.yaml", "--agent", "web", "--", "cat"],
    "check": ["check", "p.yaml"],
    "exec": ["exec", "--", "sleep", "60"],
}


def interrupted(place: Path, words: list[str], after_s: float) -> tuple[int, str]:
    """Return how a command ended that was interrupted, and what it said after its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDED + MARKED, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=place,
        env=environment(place),
    )
    assert process.stdin is not None
    assert process.stderr is not None
    with process, process.stdin, process.stderr:
        assert process.stderr.readline() == b"begun\n"
        time.sleep(after_s)  # a moment of the start, no state that is waited for
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
        said = process.stderr.read().decode()
    until(lambda: all(is_gone(each) for each in below))
    return code, said


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_at_any_moment_of_the_start_is_130_and_no_traceback(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "p.yaml").write_text("agents: {web: {}}\naudit: {path: audit}\n")
    rng = random.Random(name)  # noqa: S311  # moments that can be tried again
    times = TIMES if name == "run" else TIMES // 2
    codes = set()
    for _ in range(times):
        after_s = rng.uniform(0.002, LONGEST_S if name != "check" else SHORT_S)
        code, said = interrupted(tmp_path, COMMANDS[name], after_s)
        assert "Traceback" not in said, (after_s, said)
        assert "ignored" not in said, (after_s, said)
        # `check` may have finished; while Python itself ends, a signal is the kernel's again.
        assert code == 130 or (name == "check" and code in {0, -2}), (after_s, code, said)
        codes.add(code)
    assert 130 in codes


def test_a_start_that_ignores_interrupts_goes_on_ignoring_them(tmp_path: Path) -> None:
    words = "import signal, os, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)" + MARKED
    words = words.replace("main()", "os.kill(os.getpid(), signal.SIGINT); main()")
    (tmp_path / "p.yaml").write_text("agents: {web: {}}\n")
    done = subprocess.run(
        [sys.executable, "-c", words, "check", "p.yaml"],
        check=False,
        capture_output=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
