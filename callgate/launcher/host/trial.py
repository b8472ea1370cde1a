"""Try things on this host in processes of their own: what a survey and `doctor` go by.

IO, blocking: call it from a thread. That a file exists or a program is installed proves
nothing; AppArmor, a container's seccomp filter or a sysctl may forbid all that it does.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from callgate.launcher.host.lean_process import interpreter, stub
from callgate.launcher.plan import bwrap
from callgate.launcher.plan.capabilities import DROP_ID, Capability

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from callgate.launcher.plan.capabilities import Host

TIMEOUT_S: Final = 30.0
"""Each takes some 30 ms; a loaded machine has been seen at seconds."""
NAMESPACES: Final = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
SHARED: Final = "bwrap ran and did not leave these namespaces: "
_MAX_REASON_CHARS: Final = 300


class Tried(NamedTuple):
    """The result of one trial."""

    ok: bool
    reason: str = ""
    """Why it failed, in the system's words."""
    value: int | None = None
    """What the act counted."""
    killed: bool = False


def act(name: str, uid: int | None = None, join: Collection[int] = (), stdin: bytes = b"") -> Tried:
    """Do one of `trial_acts`' acts, as another user or in a group if asked."""
    done = run(words(name, uid, join), stdin=stdin, pass_fds=join)
    if isinstance(done, str):
        return Tried(ok=False, reason=done)
    said = done.stdout.decode("utf-8", "replace")
    if done.returncode == 0:
        return Tried(ok=True, value=int(said) if said else None)
    killed = done.returncode == -signal.SIGKILL
    return Tried(
        False, "killed" if killed else said or f"ended with {done.returncode}", None, killed
    )


def sandbox(host: Host, bwrap_fd: int) -> Capability:
    """Run bwrap as the user that agents will be; return whether it left every namespace of ours."""
    path = f"/proc/self/fd/{bwrap_fd}"
    links = [Path("/proc/self/ns") / name for name in NAMESPACES]
    options = [f"--unshare-{name}" for name in (*bwrap.NAMESPACES, "net")]
    options += ["--disable-userns", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for target, link in host.root_links.items():
        options += ["--symlink", link, target]
    for target in (each for each in bwrap.ROOT_LINKS if each in host.root_paths):
        options += ["--ro-bind", target, target]
    command = [path, *options, "--proc", "/proc", "--dev", "/dev", "--", "/usr/bin/readlink"]
    uid = DROP_ID if host.uid == 0 else None
    done = run([*command, *map(str, links)], uid=uid, pass_fds=(bwrap_fd,))
    if isinstance(done, str):
        return Capability(False, done.replace(path, host.bwrap_path))
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip()[-_MAX_REASON_CHARS:]
        return Capability(False, why or f"bwrap ended with {done.returncode}")
    theirs = done.stdout.decode().split()
    pairs = zip(links, theirs, strict=True)
    shared = ", ".join(link.name for link, other in pairs if str(link.readlink()) == other)
    return Capability(not shared, SHARED + shared if shared else "")


def words(name: str, uid: int | None = None, join: Collection[int] = ()) -> list[str]:
    """Return the command line of an act."""
    command = [interpreter(), "-I", "-S", "-c", stub("trial_acts"), name]
    return [*command, "" if uid is None else str(uid), " ".join(map(str, join))]


def run(
    command: Sequence[str],
    *,
    uid: int | None = None,
    stdin: bytes = b"",
    pass_fds: Collection[int] = (),
) -> subprocess.CompletedProcess[bytes] | str:
    """Run a command whose output is short. Return its end, or why it did not begin or end."""
    try:
        return subprocess.run(  # noqa: S603  # our own words
            command,
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd="/",
            env={},
            pass_fds=tuple(pass_fds),
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"{command[0]} could not be started: {error.strerror}"
