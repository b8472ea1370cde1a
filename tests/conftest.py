from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FULL = os.environ.get("CALLGATE_RELIABILITY") == "full"
"""`make reliability`: the property tests at full size."""

# No deadline: a noisy machine is not a failing example.
settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile(
    "full",
    max_examples=5_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("full" if FULL else "quick")
