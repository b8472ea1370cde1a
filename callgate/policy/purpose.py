"""What holds where a policy file says nothing, which depends on who uses it. Pure.

A router in a program and a daemon start from `guarded`. `callgate run` stands where a server
stood before and must break nothing that worked: it starts from `interactive`, and keeps its own
audit unless the file has another one or switches it off.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from callgate.model import AuditSpec  # msgspec reads it

ProfileName = Literal["guarded", "interactive"]


class Purpose(msgspec.Struct, frozen=True):
    """Who uses a policy, and what holds where its file says nothing."""

    name: Literal["router", "run", "serve"]
    profile: ProfileName
    audit: AuditSpec | None = None
    """The audit of a file without the key `audit`."""
    tried: ProfileName | None = None
    """A profile whose limits are recorded in shadow, beside those that are enforced."""


ROUTER = Purpose("router", "guarded")
"""A program with a `Router`, and every mount."""
RUN = Purpose("run", "interactive")
SERVE = Purpose("serve", "guarded")
