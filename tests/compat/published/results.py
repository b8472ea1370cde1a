"""What a run of `make compat` found equal, kept for the page that is written from it.

`note` adds one equal pair to `.venv-compat/equal.json`; `page.py` copies the pairs of the table
into `equal.json` beside this file, which the page is made from and checked against.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.compat.published.table import CLIENTS, PARTNERS, SERVERS
from tests.compat.run import HOME

if TYPE_CHECKING:
    from tests.compat.published.server import Server
    from tests.compat.published.table import Client

ASKED_FOR: Final = "CALLGATE_BASE_PYTHON" in os.environ
"""Set by `make compat` alone: what is tried is installed from the network."""
FOUND: Final = HOME / "equal.json"
KEPT: Final = Path(__file__).with_name("equal.json")
HERE: Final = "here"
"""The key of what this was found with."""
NODE_S: Final = 10
Results = dict[str, tuple[str, str]]
"""Of each pair, the date and what else was found out about it."""


def key(item: Client | Server, mode: str = "", partner: str = "") -> str:
    """Return a pair's name, which says the versions it holds for."""
    return " ".join(filter(None, (item.registry, item.name, item.version, mode, partner)))


def wanted() -> list[str]:
    """Return the names of all pairs of the table."""
    pairs = [key(server) for server in SERVERS]
    for client in CLIENTS:
        for mode in client.modes:
            pairs += [key(client, mode, partner) for partner in PARTNERS]
    return pairs


def here() -> tuple[str, str]:
    """Return today, and the Python, Node and system of this machine."""
    asked = ["node", "--version"]
    node = subprocess.run(asked, capture_output=True, text=True, timeout=NODE_S, check=True)
    versions = f"Python {platform.python_version()}, Node {node.stdout.strip().lstrip('v')}"
    return today(), f"{versions}, {platform.system()}"


def today() -> str:
    """Return the date, as in UTC."""
    return datetime.now(UTC).date().isoformat()


def load(path: Path) -> Results:
    """Return what was found, or nothing yet."""
    if not path.exists():
        return {}
    return {name: (day, said) for name, (day, said) in json.loads(path.read_bytes()).items()}


def store(path: Path, results: Results) -> None:
    """Replace what was found."""
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def note(pair: str, said: str = "") -> None:
    """Remember that a pair was equal today."""
    store(FOUND, {**load(FOUND), pair: (today(), said)})


def forget(pair: str) -> None:
    """Take back that a pair was equal, before it is tried again."""
    store(FOUND, {name: found for name, found in load(FOUND).items() if name != pair})
