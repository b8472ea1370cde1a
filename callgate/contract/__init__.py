"""The contract: does an agent keep to its protocol? For anybody's agent.

`run_contract` starts the agent's command and plays the other side of the protocol: the nine
tests without which the runtime protocol calls an implementation incomplete (for MCP, their
counterparts) and a corpus of malformed input. Every wait is bounded, every verdict is in our
words. The agent's tools are only called by the names that the caller gives.
"""

from callgate.contract.results import CheckResult, Tools
from callgate.contract.suite import run_contract

__all__ = ["CheckResult", "Tools", "run_contract"]
