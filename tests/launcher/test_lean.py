"""What a warden loads, at every launch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.launcher import warden
from callgate.launcher.host import lean_process
from callgate.launcher.local import warden_job

ROOT = Path(warden.__file__).parent
HEAVY = {"typing", "contextlib", "enum", "re", "json", "signal", "socket", "pathlib", "subprocess"}

LOADED = """
import sys
sys.argv = ["-", "0", "0"]
try:
    exec({stub!r})
except BaseException:
    pass
print(*sys.modules)
"""


def test_a_warden_loads_nothing_heavy() -> None:
    text = lean_process.stub("warden").replace("warden.main()", "")
    done = subprocess.run(
        [lean_process.interpreter(), "-I", "-S", "-c", LOADED.format(stub=text)],
        capture_output=True,
        check=True,
        text=True,
    )
    loaded = set(done.stdout.split())

    assert "callgate.launcher.warden.warden" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_that_runs_without_us_imports_only_the_standard_library(path: Path) -> None:
    """And its own room, which an import contract says; not even at its top what is not there."""
    allowed = set(sys.stdlib_module_names) | {"_signal", "_socket"}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            ours = module.startswith("callgate.launcher.warden")
            assert ours or module in allowed


def test_modules_in_a_sandbox_come_after_those_they_import() -> None:
    inside = ("libc", "landlock", "warden_messages", "shim", "sandbox_entry")
    assert inside == warden_job._INSIDE
    assert [name for name, code in warden_job._modules()] == list(inside)
