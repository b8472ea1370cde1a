"""`make compat`: tests whose packages exclude those of `make test`, each set by itself.

Every folder beside this file with a `requirements.txt` is one: it gets `.venv-compat/NAME`, with
callgate, what the requirements say, and what all tests need; and its tests run there. Packages
that the requirements name are free, all others are held by `constraints.txt`. An environment is
made anew when what it is made from has changed. `CALLGATE_BASE_PYTHON` is the Python that runs
this, for tests that want a peer of the other set.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOME = ROOT / ".venv-compat"
CONSTRAINTS = ROOT / "constraints.txt"

TEST_NEEDS = ("hypothesis", "pytest", "pytest-asyncio")


def environments() -> list[str]:
    """The names of all of them."""
    return sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))


def package(line: str) -> str:
    """The name in a line of requirements or constraints, as package indexes compare it."""
    name = re.match(r"[A-Za-z0-9._-]*", line.strip())
    return re.sub(r"[-_.]+", "-", name[0] if name else "").lower()


def constraints_for(requirements: str, constraints: str) -> str:
    """The constraints on whatever the requirements do not name."""
    free = {package(line) for line in requirements.splitlines()}
    kept = (line for line in constraints.splitlines() if package(line) not in free)
    return "\n".join(kept) + "\n"


def make(name: str) -> Path:
    """An environment that is up to date; its Python."""
    place = HOME / name
    python = place / "bin" / "python"
    wanted = HERE / name / "requirements.txt"
    requirements = wanted.read_text(encoding="utf-8")
    constraints = constraints_for(requirements, CONSTRAINTS.read_text(encoding="utf-8"))
    sources = (requirements, constraints, (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    digest = hashlib.sha256("\0".join((*sources, sys.version)).encode()).hexdigest()
    stamp = place / ".made-from"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return python
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    limits = place / "constraints.txt"
    limits.write_text(constraints, encoding="utf-8")
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    what = ["-c", str(limits), "-e", str(ROOT), "-r", str(wanted), *TEST_NEEDS]
    subprocess.run([*install, *what], check=True)
    stamp.write_text(digest, encoding="utf-8")
    return python


def main(argv: list[str] | None = None) -> int:
    """Run the named environments, or all; 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(environments())}")
    names = parser.parse_args(argv).names or environments()
    unknown = sorted(set(names) - set(environments()))
    if unknown:
        parser.error(f"no such environment: {', '.join(unknown)}")
    failed = []
    for name in names:
        print(f"=== {name}", flush=True)  # noqa: T201  # a command
        tests = [str(make(name)), "-m", "pytest", "-q", "-rs", str(HERE / name)]
        environ = {**os.environ, "CALLGATE_BASE_PYTHON": sys.executable}
        if subprocess.run(tests, cwd=ROOT, env=environ, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all passed", flush=True)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
