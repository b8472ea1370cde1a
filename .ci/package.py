"""Build the wheel, the sdist and an SBOM into `dist`, and try each in an environment of its own.

python3 .ci/package.py. Whoever installs callgate has neither this checkout nor its constraints, so
nothing of either is in reach: the commands run in an empty directory, in isolated mode.
"""

# ruff: noqa: INP001, S603, T201  # a script that runs what it made and prints

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BIN = "Scripts" if sys.platform == "win32" else "bin"

COMPONENTS = """
import json
from importlib.metadata import distributions
found = {(one.metadata["Name"], one.version): one.metadata.get("License-Expression")
         for one in distributions()}
print(json.dumps([[*key, found[key]] for key in sorted(found)]))
"""
LIBRARY = 'import callgate as c; c.Router(c.Policy.profile("guarded")); c.guarded'
BUILDERS = {"pip", "setuptools", "wheel"}
"""In every environment, and no part of callgate."""


def main() -> None:
    """Make everything; a command that fails ends it."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        builder = _environment(place / "builder", "hatchling>=1.26")
        _run([builder / "python", "-m", "hatchling", "build", "-d", DIST], ROOT)
        (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
        for package in (wheel, sdist):
            print(f"trying {package.name}", flush=True)
            programs = _environment(place / package.suffix[1:], str(package))
            _try(programs, place)
        sbom = wheel.with_suffix(".cdx.json")
        sbom.write_text(json.dumps(_sbom(place / "whl"), indent=2) + "\n", encoding="utf-8")
    for made in sorted(DIST.iterdir()):
        print(f"dist/{made.name}: {made.stat().st_size:,} bytes")


def _environment(place: Path, *packages: str) -> Path:
    venv.create(place, with_pip=True)
    pip = [place / BIN / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    _run([*pip, *packages], place)
    return place / BIN


def _try(programs: Path, place: Path) -> None:
    """The command line, the library, and a call through a gate."""
    callgate, python = programs / "callgate", programs / "python"
    empty = place / "empty"
    empty.mkdir(exist_ok=True)
    _run([callgate, "--version"], empty)
    _run([callgate, "--help"], empty)
    _run([python, "-I", "-c", LIBRARY], empty)
    _run([callgate, "demo", "--folder", empty / "demo"], empty)


def _run(command: list[str | Path], place: Path) -> None:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def _sbom(environment: Path) -> dict[str, object]:
    """Return CycloneDX 1.6 of what an installed wheel brings with it."""
    asked = [environment / BIN / "python", "-I", "-c", COMPONENTS]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    parts = {name: _component(name, *rest) for name, *rest in json.loads(said)}
    own = parts.pop("callgate")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**own, "type": "application"}},
        "components": [part for name, part in parts.items() if name not in BUILDERS],
    }


def _component(name: str, version: str, licence: str | None) -> dict[str, object]:
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    part: dict[str, object] = {"type": "library", "name": name, "version": version, "purl": purl}
    part["bom-ref"] = purl
    if licence:
        part["licenses"] = [{"expression": licence}]
    return part


if __name__ == "__main__":
    main()
