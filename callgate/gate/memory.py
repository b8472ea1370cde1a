"""Memory for large frames that is used again, and not given back after each.

glibc maps every block above 128 KiB anew, and gives the end of its heap back as soon as that is
free; so each read and each copy of a large frame costs the kernel a page fault for every 4 KiB.
With frames of 100 KB that was a third of all that a gate does.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

MAPPED_BYTES: Final = 4 * 1024 * 1024
"""From here on a block is mapped: four reads; who sends such frames waits for more than that."""
KEPT_BYTES: Final = 16 * 1024 * 1024
"""Free memory that is not given back; only a gate that large frames pass ever has so much."""


def keep_blocks() -> None:
    """Tell the C library so; one that is not glibc does as it likes."""
    if sys.platform != "linux":
        return
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415  # a Python may be built without it

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
