"""Programs that callgate executes itself are never those that an agent could have planted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from callgate.launcher.host import helper_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are helpers on Linux only")


@pytest.fixture(autouse=True)
def _only_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_program, "DIRECTORIES", ())


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def found(*folders: Path) -> helper_program.Helper:
    helper = helper_program.find("tool", ":".join(map(str, folders)))
    if helper.path:
        os.close(helper.fd)
    return helper


def overlap(place: Path) -> str:
    return helper_program.find_written({key(place): str(place)}, Path("/none")) or ""


def key(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def test_a_helper_of_ours_is_found_on_the_path(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "tool")

    assert found(tmp_path / "none", tmp_path / "bin").path == str(tool)


def test_what_every_system_has_goes_before_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = program(tmp_path / "usual" / "tool")
    program(tmp_path / "planted" / "tool")
    monkeypatch.setattr(helper_program, "DIRECTORIES", (str(usual.parent),))

    assert found(tmp_path / "planted").path == str(usual)


def test_a_helper_that_others_may_write_to_is_refused_by_name(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "tool", 0o757)

    helper = found(tmp_path / "bin")

    assert helper.path == ""
    assert str(tool) in helper.fault


def test_a_helper_in_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    program(tmp_path / "open" / "bin" / "tool")
    (tmp_path / "open").chmod(0o777)

    helper = found(tmp_path / "open" / "bin")

    assert helper.path == ""
    assert f"{tmp_path}/open:" in helper.fault


def test_a_link_leads_to_a_helper_only_through_directories_of_ours(tmp_path: Path) -> None:
    program(tmp_path / "open" / "tool")
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").symlink_to("../open/tool")

    assert f"{tmp_path}/open:" in found(tmp_path / "bin").fault


def test_a_helper_that_cannot_be_trusted_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    program(tmp_path / "first" / "tool", 0o777)
    program(tmp_path / "second" / "tool")

    helper = found(tmp_path / "first", tmp_path / "second")

    assert (helper.path, "first/tool" in helper.fault) == ("", True)


@pytest.mark.parametrize("folder", ["", ".", "bin"])
def test_a_relative_directory_of_the_path_is_never_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    program(tmp_path / folder / "tool")
    monkeypatch.chdir(tmp_path)

    assert helper_program.find("tool", folder).path == ""


def test_a_helper_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    tool = program(tmp_path / "bin" / "tool")
    os.chown(tool, 12345, 12345)

    assert "another user" in found(tmp_path / "bin").fault


def test_what_is_open_stays_the_file_that_was_checked(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "tool")
    checked = key(tool)
    helper = helper_program.find("tool", str(tool.parent))
    tool.unlink()
    program(tool)

    status = os.fstat(helper.fd)
    os.close(helper.fd)

    assert (status.st_dev, status.st_ino) == checked


@pytest.mark.parametrize("up", [0, 1])
def test_a_mount_that_holds_callgate_or_a_part_of_it_is_found(up: int) -> None:
    package = Path(helper_program.__file__).parents[2 + up]

    assert str(package) in overlap(package)


def test_a_mount_inside_of_callgate_is_found() -> None:
    inside = Path(helper_program.__file__).parent

    assert str(inside) in overlap(inside)


@pytest.mark.parametrize("place", ["/etc", "/usr", "/usr/lib", "/"])
def test_a_mount_that_holds_what_every_program_loads_is_found(place: str) -> None:
    assert place in overlap(Path(place))


def test_a_mount_of_the_packages_that_callgate_imports_is_found() -> None:
    """Some are imported late, when agents have run already."""
    assert "agents can write to" in overlap(Path(msgspec.__file__).parents[1])


def test_a_mount_beside_callgate_is_none_of_its_business(tmp_path: Path) -> None:
    assert overlap(tmp_path) == ""


@pytest.mark.parametrize("root", ["there", "not yet there"])
def test_a_mount_that_holds_the_directories_of_runs_is_found(tmp_path: Path, root: str) -> None:
    path = tmp_path / "state" / "runs"
    if root == "there":
        path.mkdir(parents=True)

    found = helper_program.find_written({key(tmp_path): str(tmp_path)}, path)

    assert str(tmp_path) in (found or "")
