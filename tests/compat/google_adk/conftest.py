"""Where the runtime is not, its tests say so once, where they stand: in `tests/mounts`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

collect_ignore: list[str] = []
try:
    version("google-adk")
except PackageNotFoundError:
    collect_ignore += ["test_contract.py", "test_google_adk.py"]
