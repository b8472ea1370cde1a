"""What callgate keeps over restarts is used only where nobody else could have prepared it.

Quotas and the runs' directories; the audit, which tells the runs, too, has `tests/audit`.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.files import DATABASE_PARTS, UnsafePath
from callgate.stores.sqlite import QuotaStore
from tests.audit.helpers import run_python
from tests.audit.test_unsafe_places import AS_ROOT, NOT_OURS, SOMEBODY, STRANGE

if TYPE_CHECKING:
    from collections.abc import Callable


def open_quotas(state: Path) -> None:
    with closing(QuotaStore(state / "quota.db", "test")) as store:
        assert store.reserve("bot", 7, 10, 25, 3_600_000_000_000) == 10


def make_run(state: Path) -> None:
    from callgate.launcher.local.workspace import RunDirectory  # noqa: PLC0415  # POSIX only

    directory = RunDirectory.make(state / "runs", secrets.token_hex(4), [Path("/none")])
    directory.prepare(parts=True, drop=None)
    directory.close()


USES: list[Callable[[Path], None]] = [open_quotas, make_run]
DATABASES = [(open_quotas, "quota.db")]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "callgate"
    path.mkdir(parents=True, mode=0o700)
    return path


@pytest.mark.parametrize("mode", [0o777, 0o702])
@pytest.mark.parametrize("which", ["it", "above"])
@pytest.mark.parametrize("use", USES)
def test_a_state_directory_that_others_may_write_to_is_refused_with_what_to_do(
    state: Path, use: Callable[[Path], None], which: str, mode: int
) -> None:
    changed = state if which == "it" else state.parent
    changed.chmod(mode)

    with pytest.raises(UnsafePath, match=rf"others may write to it \(mode 0{mode:o}\): chmod go-w"):
        use(state)

    assert list(state.iterdir()) == []
    changed.chmod(0o700)
    use(state)


@AS_ROOT
@pytest.mark.parametrize("which", ["it", "above"])
@pytest.mark.parametrize("use", USES)
def test_a_state_directory_of_another_user_is_refused_with_what_to_do(
    state: Path, use: Callable[[Path], None], which: str
) -> None:
    changed = state if which == "it" else state.parent
    os.chown(changed, SOMEBODY, SOMEBODY)

    with pytest.raises(UnsafePath, match=r"another user \(12345\): chown it"):
        use(state)

    assert list(state.iterdir()) == []


@AS_ROOT
@pytest.mark.parametrize("use", USES)
def test_a_link_of_another_user_to_a_state_directory_is_refused(
    tmp_path: Path, state: Path, use: Callable[[Path], None]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(state)
    use(link)
    os.lchown(link, SOMEBODY, SOMEBODY)

    with pytest.raises(UnsafePath, match="a link of another user"):
        use(link)


@pytest.mark.parametrize("part", DATABASE_PARTS)
@pytest.mark.parametrize("put", [*STRANGE, *NOT_OURS])
@pytest.mark.parametrize(("use", "name"), DATABASES)
def test_what_stands_in_the_place_of_a_database_is_refused_and_never_waited_for(
    state: Path, use: Callable[[Path], None], name: str, put: Callable[[Path], None], part: str
) -> None:
    use(state)
    file = state / f"{name}{part}"
    file.touch()
    put(file)

    with pytest.raises(UnsafePath) as refused:
        use(state)

    assert refused.value.filename == str(file)
    assert ": " in str(refused.value.strerror)  # what is wrong, and what to do


def test_a_database_is_not_made_through_a_link_that_leads_nowhere(state: Path) -> None:
    (state / "quota.db").symlink_to(state.parent / "target")

    with pytest.raises(UnsafePath, match="not a regular file: move it away"):
        open_quotas(state)

    assert not (state.parent / "target").exists()


@pytest.mark.parametrize("umask", ["000", "027", "077", "777"])
@pytest.mark.parametrize("use", USES)
def test_whatever_the_umask_only_we_can_look_inside(
    tmp_path: Path, use: Callable[[Path], None], umask: str
) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        f"from tests.test_state_directory import {use.__name__}\n"
        f"os.umask(0o{umask})\n"
        f"{use.__name__}(Path(sys.argv[1]))"
    )
    child = run_python(code, tmp_path / "home" / "callgate")

    assert child.returncode == 0, child.stderr.decode()
    found = [tmp_path / "home", *(tmp_path / "home").rglob("*")]
    assert len(found) > 2
    for entry in found:
        wanted = 0o600 if entry.is_file() else 0o700
        if use is make_run and entry.is_dir() and entry.name not in ("files", "tmp"):
            # Agents of root are other users, who pass through to what is theirs.
            wanted = 0o700 if os.geteuid() else 0o711
        assert entry.stat().st_mode & 0o777 == wanted, entry


def end_of(put: Callable[[Path], None], state: Path) -> tuple[int, int]:
    """Sweep a dead run whose list of groups names a process of ours; return how that ended."""
    from callgate.launcher.local.workspace import sweep  # noqa: PLC0415  # POSIX only

    group, run = state / "group", state / "runs" / "dead"
    group.mkdir()
    run.mkdir(parents=True, mode=0o700)
    (run / "cgroups").write_text(f"{group}\n")
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as victim:
        (group / "cgroup.procs").write_text(f"{victim.pid}\n")
        put(run / "cgroups")
        swept = sweep(state / "runs")
        assert victim.stdin is not None
        victim.stdin.close()
        return swept, victim.wait(timeout=30)


@pytest.mark.parametrize("put", [*STRANGE, *NOT_OURS[:2]])
def test_a_sweep_kills_nobody_whom_a_strangers_file_names(
    state: Path, put: Callable[[Path], None]
) -> None:
    assert end_of(put, state) == (1, 0)
    assert list((state / "runs").iterdir()) == []


def test_a_sweep_of_a_directory_that_others_may_write_to_is_refused(state: Path) -> None:
    with pytest.raises(UnsafePath, match="runs"):
        end_of(lambda file: file.parents[1].chmod(0o777), state)

    assert [entry.name for entry in (state / "runs").iterdir()] == ["dead"]
