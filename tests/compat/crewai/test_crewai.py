"""`make compat` runs what stands beside its requirements; the tests are with their like."""

from __future__ import annotations

from tests.mounts.test_crewai import *  # noqa: F403
