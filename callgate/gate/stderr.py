"""Our own stderr, which nobody may be reading: what cannot be written now is dropped.

Made non-blocking it would be so for whoever shares it, a shell for example; so it is asked
before each write, and a pipe that says yes takes `PIPE_BUF` bytes at least.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import Final

STDERR: Final = 2
CHUNK_BYTES: Final = 4096
"""Linux's `PIPE_BUF`; elsewhere it is less, and a write may wait for a slow reader."""


def show(data: bytes) -> None:
    """Write what can be written at once."""
    with suppress(OSError, ValueError):
        for start in range(0, len(data), CHUNK_BYTES):
            _, writable, _ = select.select([], [STDERR], [], 0)
            if not writable:
                return
            os.write(STDERR, data[start : start + CHUNK_BYTES])
