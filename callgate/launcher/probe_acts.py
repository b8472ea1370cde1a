"""Doing one thing in a process of its own, to see whether this host lets it be done.

IO, blocking.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import msgspec

from callgate.launcher.process import interpreter, stub
from callgate.launcher.protocol import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

PROBE_TIMEOUT_S: Final = 20.0
"""Each takes some 30 ms; a host that needs longer than this for one is not fit anyway."""


class Finding(msgspec.Struct, frozen=True):
    """One feature: whether it can be had here; if not, why not and what would help."""

    feature: str
    status: Status
    why: str = ""
    fix: str = ""


class Act(msgspec.Struct, frozen=True):
    """What came of it."""

    ok: bool
    value: int | None = None
    step: str = ""
    errno: int = 0
    killed: bool = False

    @property
    def reason(self) -> str:
        """The step that failed, and the system's word for it."""
        return f"{self.step}: {os.strerror(self.errno)}" if self.errno else self.step


def act(name: str, uid: int | None = None, join: Collection[int] = ()) -> Act:
    """Do one of `probe_child`'s acts, as another user or in a group if asked."""
    answer = run(words(name, uid, join), pass_fds=join)
    if answer is None:
        return Act(ok=False, step=f"no answer within {PROBE_TIMEOUT_S:.0f} s")
    if answer.returncode == -signal.SIGKILL:
        return Act(ok=False, step="killed", killed=True)
    try:
        return msgspec.json.decode(answer.stdout, type=Act)
    except msgspec.DecodeError:
        return Act(ok=False, step=f"ended with {answer.returncode}")


def words(name: str, uid: int | None = None, join: Collection[int] = ()) -> list[str]:
    """The command line of an act."""
    command = [interpreter(), "-I", "-S", "-c", stub("probe_child"), name]
    return [*command, "" if uid is None else str(uid), " ".join(map(str, join))]


def run(
    command: Sequence[str], *, uid: int | None = None, pass_fds: Collection[int] = ()
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a command whose output is short; None if it does not end."""
    groups: list[int] | None = None if uid is None else []
    try:
        return subprocess.run(  # noqa: S603  # our own words
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            pass_fds=tuple(pass_fds),
            user=uid,
            group=uid,
            extra_groups=groups,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None


def simple(feature: str, done: Act, fix: str, *, otherwise: Status = "absent") -> Finding:
    """A finding that has no other cause than the act's own."""
    if done.ok:
        return Finding(feature, "enforced")
    return Finding(feature, otherwise, done.reason, fix)
