from __future__ import annotations

import os
import subprocess
import sys

NO_BWRAP = """
from callgate.launcher.host import helper_program
helper_program.DIRECTORIES = ()
"""
"""Put before a program whose PATH has no bwrap: callgate looks where every system has it first."""


def on_a_terminal(module: str, *args: str) -> tuple[int, str]:
    """Run a command's `app` with a real terminal as its output: exit code, and what it shows."""
    master, slave = os.openpty()
    code = f"from callgate.cli.{module} import app; app()"
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=slave, stderr=slave, env=env
    ) as process:
        os.close(slave)
        shown = b""
        while data := _read(master):
            shown += data
        os.close(master)
        return process.wait(timeout=60), shown.decode()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # EIO: nobody has the other end any more
        return b""
