"""Policy files: YAML to effective limits, each of which knows where it was written."""

from __future__ import annotations

from callgate.policy.explain import Row
from callgate.policy.policy import Policy
from callgate.policy.problems import PolicyError, Problem

__all__ = ["Policy", "PolicyError", "Problem", "Row"]
