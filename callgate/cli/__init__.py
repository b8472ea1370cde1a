"""The command line: `callgate`.

Each command imports what it needs when it runs, so that `callgate --version` and shell
completion do not pay for YAML and pydantic.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """The entry point of the `callgate` script."""
    if sys.argv[1:2] == ["run"]:  # before typer: an agent's start must not wait for it
        # What is imported stays; looking through it for garbage is a tenth of the start.
        # `run` turns it on again when the gate is built.
        gc.disable()
        from callgate.cli.run import main as run  # noqa: PLC0415

        sys.exit(run(sys.argv[2:]))
    from callgate.cli.app import app  # noqa: PLC0415  # importing callgate.cli stays free

    app()
