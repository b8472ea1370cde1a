"""What the kernel counts by user is counted by sandbox: none takes it from another."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.launcher import LaunchRefused, LocalLauncher
from callgate.launcher.local import run_user
from callgate.launcher.plan.launch_plan import Drop
from tests.containment.agents import close, next_id, read_line, run, spec
from tests.containment.capabilities import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from callgate.launcher import Run
    from callgate.model import Level


@pytest.fixture(autouse=True)
def _standard() -> Iterator[None]:
    need("bwrap", "seccomp", "landlock_files", "tmpfs")
    before = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    yield
    resource.setrlimit(resource.RLIMIT_SIGPENDING, before)


PRELUDE = """
import ctypes, errno, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what):
    made = what()
    if made == -1: raise OSError(ctypes.get_errno(), "")
    return made
def greedy(what, most=1_000_000):
    count = 0
    try:
        while count < most: attempt(what); count += 1
    except OSError as error: print(count, errno.errorcode[error.errno], flush=True)
    else: print(count, "no end", flush=True)
"""
INOTIFY = "lambda: libc.inotify_init1(0)"
SIGNALS = "lambda: libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p()))"
TAKE = {
    "inotify instances": f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, "
    f"(resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\ngreedy({INOTIFY})\n",
    "pending signals": f"greedy({SIGNALS})\n",
}
FEW_SIGNALS = 4096
"""Taken in a moment; the usual hard limit is some 100,000."""
NEED_ONE = {
    "inotify instances": f"attempt({INOTIFY}); print('made')",
    "pending signals": f"attempt({SIGNALS}); print('made')",
}


@pytest.mark.parametrize("level", ["strict", "standard"])
@pytest.mark.parametrize("what", TAKE)
async def test_what_one_sandbox_takes_another_still_gets(
    launcher: LocalLauncher, what: str, level: Level
) -> None:
    if level == "strict":
        need("landlock")
    _, most = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (min(most, FEW_SIGNALS), most))
    greedy = spec(PRELUDE + TAKE[what] + "signal.pause()", level=level)
    one = await launcher.launch(greedy, run_id=next_id())
    took = (await read_line(one.stdout)).split()

    other = await run(launcher, spec(PRELUDE + NEED_ONE[what], level=level))

    await one.stop("stop_requested", 0)
    close(one)
    assert int(took[0]) > 0
    assert took[1:] in (["EMFILE"], ["EAGAIN"], ["ENOSPC"])
    assert (other.out, other.err) == ("made\n", "")


def owner(run: Run) -> int:
    return Path(f"/proc/{run.pid}").stat().st_uid


async def test_runs_of_root_are_users_of_their_own_and_give_them_back(
    launcher: LocalLauncher,
) -> None:
    need("root")
    agent = spec("import signal; signal.pause()", level="standard")
    runs = [await launcher.launch(agent, run_id=next_id()) for _ in range(4)]
    uids = [owner(each) for each in runs]
    held = [is_locked(uid) for uid in uids]
    for each in runs:
        await each.stop("stop_requested", 0)
        close(each)

    assert len(set(uids)) == 4
    assert held == [True] * 4
    assert [is_locked(uid) for uid in uids] == [False] * 4


def is_locked(uid: int) -> bool:
    with run_user.UIDS.open("rb") as file:
        asked = struct.pack("hhqqixxxx", fcntl.F_RDLCK, os.SEEK_SET, uid, 1, 0)
        told = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
        return bool(struct.unpack("hhqqixxxx", told)[0] != fcntl.F_UNLCK)


def test_a_uid_is_given_once_and_again_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_user, "UIDS", tmp_path / "new" / "uids")
    drop = Drop((7, 2))
    users = [run_user.take(drop) for _ in range(2)]
    with pytest.raises(OSError, match="no uid is free"):
        run_user.take(drop)
    assert users[0].lock is not None
    os.close(users[0].lock)

    again = run_user.take(drop)

    assert {user.uid for user in users} == {7, 8}
    assert again.uid == users[0].uid
    for user in (users[1], again):
        assert user.lock is not None
        os.close(user.lock)


async def test_a_launch_that_finds_no_uid_is_refused_and_leaves_nothing(
    launcher: LocalLauncher, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("root")
    monkeypatch.setattr(run_user, "TRIES", 0)

    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(spec("pass", level="standard"), run_id=next_id())

    assert "no uid is free" in refused.value.gaps["prepare"]
    assert await asyncio.to_thread(lambda: list(root.iterdir())) == []
