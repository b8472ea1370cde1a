from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.setup import config_file
from callgate.setup.config_file import read, replace
from callgate.setup.formats.nodes import Refused

KILLS_S = 240
"""A hundred and thirty processes, each with a few writes to the disk; twenty seconds alone."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def file(folder: Path) -> Path:
    file = folder / "mcp.json"
    file.write_bytes(b"old")
    file.chmod(0o640)
    return file


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it(file: Path) -> None:
    replace(read(file), b"new")

    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o640
    assert names(file.parent) == ["mcp.json"]


def test_a_link_stays_and_the_file_behind_it_is_replaced(file: Path, folder: Path) -> None:
    (folder / "dotfiles").mkdir()
    (folder / "dotfiles" / "real.json").write_bytes(b"old")
    file.unlink()
    file.symlink_to("dotfiles/real.json")

    replace(read(file), b"new")

    assert file.is_symlink()
    assert (folder / "dotfiles" / "real.json").read_bytes() == b"new"


def test_a_link_that_leads_nowhere_or_in_a_circle_ends(file: Path, folder: Path) -> None:
    file.unlink()
    file.symlink_to("missing")
    with pytest.raises(FileNotFoundError):
        read(file)
    (folder / "missing").symlink_to("mcp.json")
    with pytest.raises(Refused):
        read(file)


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_a_file_that_others_may_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)

    with pytest.raises(Refused, match="others may write"):
        read(file)


def test_a_directory_that_others_may_write_is_refused(file: Path) -> None:
    file.parent.chmod(0o777)

    with pytest.raises(Refused, match="others may write"):
        read(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("link", [False, True])
def test_a_file_or_a_link_of_somebody_else_is_refused(file: Path, *, link: bool) -> None:
    if link:
        file.rename(file.with_name("real"))
        file.symlink_to("real")
    os.chown(file, 65534, 65534, follow_symlinks=False)

    with pytest.raises(Refused, match="another user"):
        read(file)


def test_what_is_no_file_is_refused_and_never_waited_for(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(Refused):
        read(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(Refused):
        read(file)


def test_a_file_with_a_second_name_is_refused(file: Path, folder: Path) -> None:
    os.link(file, folder / "other")

    with pytest.raises(Refused, match="hard link"):
        read(file)


def test_a_file_over_the_bound_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "MAX_BYTES", 2)

    with pytest.raises(Refused):
        read(file)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_that_changed_since_it_was_read_is_left_alone(file: Path, *, in_place: bool) -> None:
    found = read(file)
    other = file if in_place else file.with_name("other")
    other.write_bytes(b"theirs")
    other.rename(file)

    with pytest.raises(Refused, match="changed"):
        replace(found, b"ours")

    assert file.read_bytes() == b"theirs"
    assert names(file.parent) == ["mcp.json"]


def test_a_write_between_the_last_look_and_the_exchange_is_not_lost(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = config_file._compare

    def then_write(path: Path, before: bytes) -> None:
        compare(path, before)
        other = file.with_name("other")
        other.write_bytes(b"theirs")
        other.rename(file)

    monkeypatch.setattr(config_file, "_compare", then_write)

    with pytest.raises(Refused, match="in the meantime"):
        replace(read(file), b"ours")

    assert file.read_bytes() == b"theirs"
    assert names(file.parent) == ["mcp.json"]


def test_two_writes_in_that_moment_are_both_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, versions = config_file._exchange, [b"first", b"second"]

    def after_a_write(one: Path, other: Path) -> bool:
        fresh = file.with_name("other")
        fresh.write_bytes(versions.pop(0))
        fresh.rename(file)
        return exchange(one, other)

    monkeypatch.setattr(config_file, "_exchange", after_a_write)

    with pytest.raises(Refused, match="keeps writing"):
        replace(read(file), b"ours")

    kept = {each.read_bytes() for each in file.parent.iterdir()}
    assert kept == {b"first", b"second"}


def test_where_files_cannot_be_exchanged_one_is_replaced(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_file, "_exchange", lambda _one, _other: False)

    replace(read(file), b"new")

    assert file.read_bytes() == b"new"
    assert names(file.parent) == ["mcp.json"]


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_file_and_an_undo_that_works(
    folder: Path,
) -> None:
    (folder / "state").mkdir(mode=0o700)
    (folder / "files").mkdir(mode=0o700)

    done = subprocess.run(
        [sys.executable, "-m", "tests.setup.killed", str(folder / "files")],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=KILLS_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    kills = [int(number) for number in done.stdout.split()]
    assert min(kills) > 20
