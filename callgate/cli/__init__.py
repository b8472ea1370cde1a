"""The command line: `callgate`.

Each command imports what it needs when it runs, so that `callgate --version` and shell
completion do not pay for YAML and pydantic.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main"]

INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C has ended."""


def main() -> None:
    """Run the command that the words after `callgate` name."""
    python_handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if python_handles:  # else it is ignored, as under nohup, and stays so
        # While modules are imported: nothing is there yet that would have to be ended, and a
        # KeyboardInterrupt out of an import is a traceback, or is lost in a callback.
        signal.signal(signal.SIGINT, _quit)
    if "_CALLGATE_COMPLETE" not in os.environ:  # else a shell asks what could follow
        from callgate.cli.first_screen import FIRST_SCREEN, VERSION, with_help  # noqa: PLC0415

        sys.argv[1:] = with_help(sys.argv[1:])
        if not sys.argv[1:]:
            sys.stdout.write(FIRST_SCREEN)
            return
        if sys.argv[1] in VERSION:
            from callgate import __version__  # noqa: PLC0415

            sys.stdout.write(f"callgate {__version__}\n")
            return
    if sys.argv[1:2] == ["run"] and sys.argv[2:3] not in (["-h"], ["--help"]):
        # Before typer: an agent's start must not wait for it.
        # What is imported stays; looking through it for garbage is a tenth of the start.
        # `run` turns it on again when the gate is built.
        gc.disable()
        from callgate.cli.run import main as run  # noqa: PLC0415

        sys.exit(run(sys.argv[2:]))
    from callgate.cli.app import app  # noqa: PLC0415  # importing callgate.cli stays free

    try:
        if python_handles:  # from here on a command may have started something
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app(prog_name="callgate")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _quit(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
