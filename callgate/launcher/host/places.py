"""The writable places of a launcher: what the runs of all its agents may write to on the host.

IO, blocking but short. Kept for as long as the launcher lives: what an agent could write to once
it may have prepared, also for an agent that starts later. A place is known by its device
and inode, because a name can be given to something else.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from callgate.launcher.plan import bwrap
from callgate.launcher.warden.safe_path import open_path

if TYPE_CHECKING:
    from callgate.model import LaunchSpec

Places = dict[tuple[int, int], str]
"""Device and inode of a writable mount, and its path without links."""


def add(places: Places, spec: LaunchSpec) -> None:
    """Add what a contained agent may write to; raises `OSError` for a path that is unsafe."""
    if spec.level in ("privileged", "strict"):  # one has no walls, the other writes to no mount
        return
    paths = [bwrap.place_of(each) for each in spec.mounts if not each.read_only]
    for path in sorted(path for path in paths if path.startswith("/")):
        opened = open_path(path, places)
        try:
            status = os.fstat(opened.fd)
        finally:
            os.close(opened.fd)
        places[status.st_dev, status.st_ino] = opened.real
