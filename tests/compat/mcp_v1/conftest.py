"""Where the runtime is not, its own tests say so once; the contract stays silent."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

collect_ignore: list[str] = []
try:
    here = version("mcp").startswith("1.")
except PackageNotFoundError:
    here = False
if not here:
    collect_ignore.append("test_contract.py")
