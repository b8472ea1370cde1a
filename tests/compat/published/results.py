"""What a run of `make compat` found, kept for the page that is written from it.

Each pair that was equal is noted in a file under `.venv-compat`; `page.py` makes
`results.json` beside this file of them once all pairs have been.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.compat.run import HOME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.compat.published.table import Server

ASKED_FOR: Final = "CALLGATE_BASE_PYTHON" in os.environ
"""Set by `make compat` alone: what is tried is installed from the network."""


def note_server(*_: object) -> None: ...
