"""The life of a call: lanes, admission, deadline, settlement, and work in this process.

`engine` decides and is synchronous; `local` runs tools of this process; `router` is what
programs use.
"""

from __future__ import annotations

from callgate.router.jobs import Job
from callgate.router.router import Router

__all__ = ["Job", "Router"]
