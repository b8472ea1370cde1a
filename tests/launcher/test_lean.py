"""What a warden loads, at every launch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.launcher import job, process

ROOT = Path(process.__file__).parent
LEAN = ("warden", "shim", "mounts", "leftovers", "tree", "wire", "libc", "lean", "trial_child")
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
    text = process.stub("warden").replace("warden.main()", "")
    done = subprocess.run(
        [process.interpreter(), "-I", "-S", "-c", LOADED.format(stub=text)],
        capture_output=True,
        check=True,
        text=True,
    )
    loaded = set(done.stdout.split())

    assert "callgate.launcher.warden" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("name", sorted({*LEAN, *job._INSIDE}))
def test_a_module_that_runs_without_us_imports_only_others_like_it(name: str) -> None:
    """At the top; what is imported in a function is imported only when it is needed."""
    allowed = set(sys.stdlib_module_names) | {"_signal", "_socket"}
    tree = ast.parse((ROOT / f"{name}.py").read_text(encoding="utf-8"))
    ours: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom) and node.module == "callgate.launcher":
            ours |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("callgate."):
            ours.add((node.module or "").rpartition(".")[2])

    assert ours <= {*LEAN, "landlock"}


def test_modules_in_a_sandbox_come_after_those_they_import() -> None:
    assert job._INSIDE == ("libc", "landlock", "wire", "shim", "inside")
    assert [name for name, code in job._modules()] == list(job._INSIDE)
