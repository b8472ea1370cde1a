"""Where nobody can listen, OpenTelemetry's API is not even imported: that takes 12 ms."""

from __future__ import annotations

import os
import sys
from typing import Any, Final


class _Nobody:
    """Stands where a provider would."""


NOBODY: Final[Any] = _Nobody()


def configured() -> Any:
    """For a process that is ours alone: None, which is its own provider, or NOBODY.

    Whoever sets one up there has done so before us: `opentelemetry-instrument`, or the plugin
    of a launcher, which import the API, or the API itself, by its variables. A program's own
    may come at any time; there None is right.
    """
    named = any(name.startswith("OTEL_") for name in os.environ)
    return None if named or "opentelemetry" in sys.modules else NOBODY
