from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.launcher import LocalLauncher
from tests.containment.capabilities import need

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def root() -> Iterator[Path]:
    """Where runs keep their directories; short, because a socket's path may not be long."""
    with tempfile.TemporaryDirectory(prefix="callgate-test-") as path:
        Path(path).chmod(0o711 if os.geteuid() == 0 else 0o700)
        yield Path(path)


@pytest.fixture
async def launcher(root: Path) -> AsyncIterator[LocalLauncher]:
    async with LocalLauncher(root=root) as launcher:
        yield launcher


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> None:
    """Need what the test's level needs; without a parameter `level`, what every level needs."""
    call = getattr(request.node, "callspec", None)
    level = "strict" if call is None else call.params.get("level", "strict")
    need("bwrap", "seccomp", "tmpfs", "landlock_files" if level == "standard" else "landlock")


@pytest.fixture
def groups() -> None:
    need("cgroup")
