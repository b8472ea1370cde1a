"""Where state that outlives a process is kept on this host."""

from __future__ import annotations

import os
from pathlib import Path


def state_dir() -> Path:
    """Return the folder for it, as the XDG specification has it."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.local/state").expanduser()
    return base / "callgate"
