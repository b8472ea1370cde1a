"""What stands in the audit's place and is not ours is refused, and nothing waits for it."""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

import orjson
import pytest

from callgate.audit.files import check_writable, load_key
from callgate.audit.verify import verify
from callgate.files import UnsafePath
from tests.audit.helpers import (
    begin,
    crash,
    end,
    only_writer,
    open_log,
    records,
    run_python,
    write_log,
)

if TYPE_CHECKING:
    from pathlib import Path

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
SOMEBODY = 12_345
"""A user that no test runs as."""


def put_fifo(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def put_device(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mknod(file, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: it never ends


def put_link(file: Path) -> None:
    elsewhere = file.parent.parent.parent / f"elsewhere-{file.name}"
    if file.exists():
        file.rename(elsewhere)
    file.symlink_to(elsewhere)


def put_directory(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def give_away(file: Path) -> None:
    os.chown(file, SOMEBODY, SOMEBODY)


def open_to_others(file: Path) -> None:
    file.chmod(0o666)


def link_hard(file: Path) -> None:
    os.link(file, file.parent.parent.parent / f"second-{file.name}")


STRANGE = [
    put_fifo,
    pytest.param(put_device, marks=AS_ROOT),
    put_link,
    put_directory,
]
NOT_OURS = [pytest.param(give_away, marks=AS_ROOT), open_to_others, link_hard]

VERIFY = """
import sys
from pathlib import Path
from callgate.audit.verify import verify
print(*(problem.kind for problem in verify(Path(sys.argv[1])).problems))
"""
START = """
import sys
from pathlib import Path
from tests.audit.helpers import begin, end, open_log
log = open_log(Path(sys.argv[1]))
begin(log, 70)
end(log, 70)
log.close()
print(*log.broken, log.checkpoint()["writer"])
"""


@pytest.mark.parametrize("name", ["00000001.jsonl", "00000002.jsonl"])
@pytest.mark.parametrize("put", STRANGE)
def test_verify_finds_what_is_no_segment_and_does_not_wait_for_it(
    tmp_path: Path, name: str, put: object
) -> None:
    assert callable(put)
    audit = tmp_path / "audit"
    write_log(audit)
    put(only_writer(audit) / name)

    child = run_python(VERIFY, audit)

    assert child.returncode == 0, child.stderr.decode()
    assert "segment" in child.stdout.decode().split()


@pytest.mark.parametrize("put", STRANGE)
def test_verify_finds_what_is_no_head_and_does_not_wait_for_it(tmp_path: Path, put: object) -> None:
    assert callable(put)
    audit = tmp_path / "audit"
    write_log(audit)
    put(only_writer(audit) / "HEAD")

    child = run_python(VERIFY, audit)

    assert child.returncode == 0, child.stderr.decode()
    assert child.stdout.decode().split() == ["head"]


@pytest.mark.parametrize("name", ["LOCK", "HEAD", "00000001.jsonl"])
@pytest.mark.parametrize("put", [*STRANGE, *NOT_OURS])
def test_a_start_leaves_a_writer_alone_whose_files_are_not_ours(
    tmp_path: Path, name: str, put: object
) -> None:
    assert callable(put)
    audit = tmp_path / "audit"
    write_log(audit)
    writer = only_writer(audit)
    put(writer / name)

    child = run_python(START, audit)

    assert child.returncode == 0, child.stderr.decode()
    broken, own = child.stdout.decode().split()
    assert broken == writer.name
    assert own != writer.name
    lines = (audit / own / "00000001.jsonl").read_bytes().splitlines()
    (note,) = (r for r in map(orjson.loads, lines) if r.get("code") == "audit.broken")
    assert note["segment"] == writer.name


@pytest.mark.parametrize("put", [*STRANGE, *NOT_OURS])
def test_a_start_after_a_crash_looks_at_the_files_too(tmp_path: Path, put: object) -> None:
    assert callable(put)
    audit = tmp_path / "audit"
    crash(audit)
    writer = only_writer(audit)
    put(writer / "00000001.jsonl")

    child = run_python(START, audit)

    assert child.returncode == 0, child.stderr.decode()
    assert child.stdout.decode().split()[0] == writer.name


@pytest.mark.parametrize("put", [put_fifo, put_link, put_directory, open_to_others])
def test_the_next_segment_is_not_written_into_what_stands_in_its_place(
    tmp_path: Path, put: object
) -> None:
    assert callable(put)
    audit = tmp_path / "audit"
    log = open_log(audit, rotate_bytes=1, fail_closed=False)
    second = only_writer(audit) / "00000002.jsonl"
    if put is open_to_others:
        second.touch()
    put(second)

    begin(log, 1)
    end(log, 1)

    assert log.dropped > 0
    assert not (tmp_path / f"elsewhere-{second.name}").exists()
    log.close()


@pytest.mark.parametrize("put", [*STRANGE, *NOT_OURS[:2]])
def test_a_key_that_others_could_know_is_refused(tmp_path: Path, put: object) -> None:
    assert callable(put)
    audit = tmp_path / "a" / "audit"
    load_key(audit)
    put(audit / "key")

    with pytest.raises(OSError, match="key"):
        load_key(audit)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
@pytest.mark.parametrize("which", ["root", "writer"])
def test_a_directory_that_others_may_write_to_is_refused_and_told(
    tmp_path: Path, which: str, mode: int
) -> None:
    audit = tmp_path / "audit"
    write_log(audit)
    writer = only_writer(audit)
    (audit if which == "root" else writer).chmod(mode)

    if which == "root":
        with pytest.raises(UnsafePath):
            open_log(audit)
        assert isinstance(check_writable(str(audit)), UnsafePath)
    else:
        log = open_log(audit)
        log.close()
        assert log.broken == (writer.name,)
    if (which, mode) != ("root", 0o1777):  # an auditor may keep a copy in a directory like /tmp
        assert "directory" in {problem.kind for problem in verify(audit).problems}


def test_a_directory_above_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    (above / "audit").mkdir(parents=True, mode=0o700)
    above.chmod(0o777)

    with pytest.raises(UnsafePath, match="above"):
        open_log(above / "audit")

    above.chmod(0o1777)  # as /tmp: others cannot replace what is ours there
    open_log(above / "audit").close()


@AS_ROOT
def test_a_directory_of_another_user_is_refused_also_above(tmp_path: Path) -> None:
    audit = tmp_path / "above" / "audit"
    write_log(audit)
    for directory in (only_writer(audit), audit, audit.parent):
        os.chown(directory, SOMEBODY, SOMEBODY)
        if directory == only_writer(audit):
            log = open_log(audit)
            log.close()
            assert log.broken == (directory.name,)
            shutil.rmtree(directory)
            continue
        with pytest.raises(UnsafePath):
            open_log(audit)
        os.chown(directory, os.getuid(), os.getgid())


@AS_ROOT
def test_a_link_to_the_audit_counts_only_if_we_made_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    open_log(link / "audit").close()

    os.lchown(link, SOMEBODY, SOMEBODY)

    with pytest.raises(UnsafePath, match="link"):
        open_log(link / "audit")


def test_a_writer_that_is_a_link_is_none(tmp_path: Path) -> None:
    write_log(tmp_path / "other")
    (tmp_path / "audit").mkdir(mode=0o700)
    link = tmp_path / "audit" / only_writer(tmp_path / "other").name
    link.symlink_to(only_writer(tmp_path / "other"))
    before = records(tmp_path / "other")

    open_log(tmp_path / "audit").close()

    assert records(tmp_path / "other") == before


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(OSError, match="symbolic links"):
        open_log(tmp_path / "a" / "audit")


@pytest.mark.parametrize("umask", ["000", "027", "077", "777"])
def test_whatever_the_umask_only_we_can_look_inside(tmp_path: Path, umask: str) -> None:
    code = (
        f"import os, sys; from pathlib import Path; os.umask(0o{umask})\n"
        "from tests.audit.helpers import write_log\n"
        "write_log(Path(sys.argv[1]), rotate_bytes=1000)"
    )
    child = run_python(code, tmp_path / "state" / "callgate" / "audit")

    assert child.returncode == 0, child.stderr.decode()
    found = list((tmp_path / "state").rglob("*"))
    assert len(found) > 5
    for entry in (tmp_path / "state", *found):
        assert entry.stat().st_mode & 0o777 == (0o700 if entry.is_dir() else 0o600), entry


def test_a_directory_that_is_swapped_for_a_link_is_not_written_through(tmp_path: Path) -> None:
    # Only root and we could swap it; even so the files do not follow.
    audit, trap = tmp_path / "audit", tmp_path / "trap"
    log = open_log(audit, rotate_bytes=1, fail_closed=False)
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    writer = only_writer(audit)
    for file in writer.iterdir():
        file.unlink()
    writer.rmdir()
    writer.symlink_to(trap)

    for number in range(3):
        begin(log, number)
        end(log, number)
    log.close()

    assert list(trap.iterdir()) == []


def test_the_command_says_why_it_writes_no_audit(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "callgate").mkdir(parents=True)
    (state / "callgate").chmod(0o777)

    error = check_writable(str(state / "callgate" / "audit"))

    assert isinstance(error, UnsafePath)
    assert "others may write to it (mode 0777)" in str(error)
    assert list((state / "callgate").iterdir()) == []
