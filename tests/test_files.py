from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from callgate.files import (
    UnsafePath,
    create_file,
    open_file,
    read_file,
    replace_file,
    secure_directory,
)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "token"
    replace_file(file, b"one")
    replace_file(file, b"two")

    assert read_file(file, 3) == b"two"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_a_replacement_writes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"keep")
    (tmp_path / "token").symlink_to("other")

    replace_file(tmp_path / "token", b"new")

    assert (tmp_path / "other").read_bytes() == b"keep"
    assert not (tmp_path / "token").is_symlink()


def test_more_than_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")

    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_file(tmp_path / "file", 4)


def test_a_new_file_takes_nobodys_place(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "target")

    with pytest.raises(FileExistsError):
        create_file(tmp_path / "dangling")
    with pytest.raises(UnsafePath):
        open_file(tmp_path / "dangling", os.O_RDWR, make=True)
    assert not (tmp_path / "target").exists()


def test_a_socket_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")

        with pytest.raises(UnsafePath, match="not a regular file"):
            read_file("s", 10)


@pytest.mark.parametrize(
    ("mode", "group", "safe"),
    [(0o664, "own", True), (0o664, "other", False), (0o602, "own", False), (0o644, "other", True)],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the group at will")
def test_a_group_of_ones_own_is_nobody_else(
    tmp_path: Path, mode: int, group: str, *, safe: bool
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    os.chown(file, -1, os.geteuid() if group == "own" else 12_345)
    file.chmod(mode)

    if safe:
        assert read_file(file, 1) == b"x"
    else:
        with pytest.raises(UnsafePath, match="others may write"):
            read_file(file, 1)


def test_a_path_goes_up_and_through_links_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    monkeypatch.chdir(tmp_path / "a")

    secure_directory("../link/../c", make=True)
    secure_directory(tmp_path / "link" / "d", make=True)

    assert (tmp_path / "a" / "c").is_dir()
    assert (tmp_path / "a" / "b" / "d").stat().st_mode & 0o777 == 0o700


def test_what_stands_for_a_directory_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")

    for name in ("file", "fifo"):
        with pytest.raises(NotADirectoryError):
            secure_directory(tmp_path / name / "below", make=True)
    with pytest.raises(FileNotFoundError):
        secure_directory(tmp_path / "none")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    os.mkfifo(tmp_path / "fifo")
    before = len(list(Path("/proc/self/fd").iterdir()))

    secure_directory(tmp_path / "deep" / "deeper", make=True)
    for path in ("open", "fifo"):
        with pytest.raises(OSError, match=path):
            secure_directory(tmp_path / path)
    with pytest.raises(UnsafePath):
        read_file(tmp_path / "fifo", 1)

    assert len(list(Path("/proc/self/fd").iterdir())) == before
