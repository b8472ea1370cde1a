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
def sandbox() -> None:
    """Need what every level with a sandbox needs."""
    need("bwrap", "seccomp", "tmpfs", "landlock_files")


@pytest.fixture
def groups() -> None:
    need("cgroup")
