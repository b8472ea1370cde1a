"""What each command that uses a policy file assumes where the file says nothing."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from callgate.model import AuditSpec
from callgate.policy.purpose import ROUTER, RUN, SERVE, Purpose
from callgate.stores.place import state_dir


def purpose_of(name: Literal["run", "serve", "router"]) -> Purpose:
    """Return the purpose with its default audit: `run` and `serve` write one in the state home."""
    path = str(state_dir() / "audit")
    match name:
        case "run":
            return replace(RUN, audit=AuditSpec(path, fail_closed=False))
        case "serve":
            return replace(SERVE, audit=AuditSpec(path))
        case "router":
            return ROUTER
