"""The contract of all mounts, under the runtime of this environment."""

from __future__ import annotations

from tests.mounts.test_contract import *  # noqa: F403
