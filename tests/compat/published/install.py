"""Environments for what the table names: one for each registry's servers, one for each client.

They lie under `.venv-compat`, are made anew when what they are made from changes, and need
nothing of ours: what is tried is tried as its users install it. No script of a package is run
while npm installs it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.compat.published.npm_servers import NPM_SERVERS
from tests.compat.published.pypi_servers import PYPI_SERVERS
from tests.compat.published.table import CLIENTS, NODE, PYPI_BESIDE
from tests.compat.run import HOME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.compat.published.server import Registry
    from tests.compat.published.table import Client

INSTALL_S = 600
NODE_PROGRAM = f"{NODE.partition('@')[0]}/bin/node"


def _run(command: Sequence[str], place: Path) -> None:
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} cannot install into {place.name}: {done.stderr[-2000:]}")


def _npm(place: Path, pins: Sequence[str]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is not installed")
    (place / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    quiet = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    _run((npm, "install", *quiet, *pins), place)


def _pip(place: Path, pins: Sequence[str]) -> None:
    _run((sys.executable, "-m", "venv", "--without-pip", str(place)), place)
    quiet = ("--quiet", "--disable-pip-version-check")
    python = str(place / "bin" / "python")
    _run((sys.executable, "-m", "pip", *quiet, "--python", python, "install", *pins), place)


def environment(name: str, registry: Registry, pins: Sequence[str]) -> Path:
    """Install `pins` into an environment, unless it has them; return where its programs are."""
    place = HOME / name
    digest = hashlib.sha256(json.dumps([sys.version, *pins]).encode()).hexdigest()
    stamp = place / ".made-from"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (_npm if registry == "npm" else _pip)(place, pins)
        stamp.write_text(digest, encoding="utf-8")
    return place / "node_modules" / ".bin" if registry == "npm" else place / "bin"


def servers(registry: Registry) -> Path:
    """Return where the programs of a registry's servers are."""
    if registry == "npm":
        return environment("servers-npm", "npm", [f"{e.name}@{e.version}" for e in NPM_SERVERS])
    pins = [*PYPI_BESIDE, *(f"{each.name}=={each.version}" for each in PYPI_SERVERS)]
    return environment("servers-pypi", "PyPI", pins)


def client(wanted: Client) -> Path:
    """Return where the programs beside this client are; npm has all in one environment."""
    if wanted.registry == "npm":
        pins = [f"{e.alias}@npm:{e.name}@{e.version}" for e in CLIENTS if e.registry == "npm"]
        return environment("clients-npm", "npm", [*pins, NODE])
    pins = [f"{wanted.name}=={wanted.version}", *wanted.beside]
    return environment(f"client-{wanted.alias}", "PyPI", pins)
