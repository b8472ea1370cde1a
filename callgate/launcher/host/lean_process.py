"""How a process of ours is started that loads nothing of the package but the warden room.

`python -I -S -c <stub>`: no environment, no site, no `.pth` files, none of the packages'
`__init__`s, which import far more than a warden needs. The stub names the packages and where
they are, and runs one module's `main`. What that module may import: see `callgate.launcher.warden`.
"""

from __future__ import annotations

import sys
from pathlib import Path

_STUB = """
import sys
for name, path in {packages!r}:
    sys.modules[name] = module = type(sys)(name)
    module.__path__ = path
from callgate.launcher.warden import {module}
{module}.main()
"""


def interpreter() -> str:
    """Return the Python that runs us, not a virtual environment's name for it."""
    return getattr(sys, "_base_executable", "") or sys.executable


def stub(module: str) -> str:
    """Return a program for `-c` that runs one module of the warden room, and nothing else."""
    here = Path(__file__).parents[1]
    names = ("callgate", "callgate.launcher", "callgate.launcher.warden")
    paths = (here.parent, here, here / "warden")
    packages = [(name, [str(path)]) for name, path in zip(names, paths, strict=True)]
    return _STUB.format(packages=packages, module=module)
