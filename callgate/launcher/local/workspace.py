"""A run's directory on the host: who owns it, what it holds, and when it is stale.

    <root>/<run>/lock        locked as long as callgate or the warden lives
                 cgroups     where the run's groups are, for whoever sweeps
                 workspace/  files/ and tmp/, which the agent sees as /workspace and /tmp
                 stage/      a mount point of the warden's

The lock is a kernel lock on an open file that callgate shares with the warden: nobody has
to be asked whether a pid is still the same process. A directory whose lock can be taken
belongs to nobody, so a sweep kills what is left in its groups and removes it all.

When callgate is root the root is below /var/lib and open for passing through, because the
agent is another user then. A root that others may change is used by neither a launch nor a
sweep: its `cgroups` say whom to kill.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from callgate import files
from callgate.launcher.local import run_user
from callgate.launcher.warden import leftovers
from callgate.launcher.warden.tree import parent_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from callgate.launcher.local.run_user import RunUser
    from callgate.launcher.plan.launch_plan import Drop

LOCK = "lock"
CGROUPS = "cgroups"
WORKSPACE = "workspace"
STAGE = "stage"
PARTS = ("files", "tmp")
"""What the agent sees as `/workspace` and as `/tmp`; both count."""
MAX_CGROUPS_BYTES = 1 << 16
"""A dozen paths, each at the longest that Linux takes."""
_BLOCK_BYTES = 4096
"""What ext4 gives to a directory; what it takes beyond that is for the agent's names."""


def default_root() -> Path:
    """Return where runs keep what they leave on disk."""
    if os.geteuid() == 0:
        return Path("/var/lib/callgate/runs")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "callgate" / "runs"


class RunDirectory:
    """One run's directory, locked while this object or the warden lives."""

    parts = PARTS

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """An open descriptor; `close` closes it."""
        self.user: RunUser | None = None
        """Whom the agent becomes, from `prepare` on."""

    @classmethod
    def make(cls, root: Path, name: str, cgroups: Sequence[Path]) -> RunDirectory:
        """Make it, with the record of groups that do not exist yet."""
        files.secure_directory(root, make=True, mode=_mode())
        path = root / name
        with _turn(root, fcntl.LOCK_SH):
            files.make_directory(path, _mode())
            lock = files.create_file(path / LOCK, os.O_RDWR)
            fcntl.flock(lock, fcntl.LOCK_EX)
        directory = cls(path, lock)
        directory.record(cgroups)
        return directory

    def record(self, cgroups: Sequence[Path]) -> None:
        """Write down which groups the run has, or will have in a moment."""
        text = "".join(f"{each}\n" for each in cgroups)
        flags = os.O_WRONLY | os.O_TRUNC
        with os.fdopen(files.open_file(self.path / CGROUPS, flags, make=True), "wb") as file:
            file.write(os.fsencode(text))

    @property
    def workspace(self) -> Path:
        """Holds the parts, or is where they are mounted."""
        return self.path / WORKSPACE

    @property
    def stage(self) -> Path:
        """A mount point."""
        return self.path / STAGE

    def prepare(self, *, parts: bool, drop: Drop | None) -> None:
        """Take a user; make the workspace, and its parts unless something is mounted over it."""
        if drop is not None:
            self.user = run_user.take(drop)
        files.make_directory(self.stage, _mode())
        files.make_directory(self.workspace, _mode())
        if not parts:
            return
        for name in PARTS:
            part = self.workspace / name
            files.make_directory(part)
            if self.user is not None:
                os.chown(part, self.user.uid, self.user.gid)

    def own_use(self) -> tuple[int, int]:
        """Return bytes and files of the parts as they are made: a count leaves them out."""
        size = files = 0
        for name in PARTS:
            with suppress(OSError):
                size += min(_BLOCK_BYTES, (self.workspace / name).stat().st_blocks * 512)
                files += 1
        return size, files

    def locks(self) -> dict[str, int]:
        """Return the open descriptors that say this directory, and its user, are in use."""
        found = {"lock": self.lock}
        if self.user is not None and self.user.lock is not None:
            found["uid"] = self.user.lock
        return found

    def close(self) -> None:
        """Let go of the locks; the warden may hold them still."""
        if self.lock >= 0:
            for fd in self.locks().values():
                os.close(fd)
            self.lock, self.user = -1, None


def sweep(root: Path) -> int:
    """Remove what dead runs left, and kill what is in their groups; return how many.

    Raises `UnsafePath` if anybody else may write to `root`.
    """
    if not root.is_dir():
        return 0
    files.secure_directory(root)
    swept = 0
    with _turn(root, fcntl.LOCK_EX):
        for path in list(root.iterdir()):
            if path.is_dir() and not path.is_symlink() and _is_stale(path):
                _remove(path)
                swept += 1
    return swept


def _is_stale(path: Path) -> bool:
    try:
        lock = files.open_file(path / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True  # its maker died before it could lock; our turn says that nobody is at it
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _remove(path: Path) -> None:
    groups: list[str] = []
    with suppress(OSError):
        groups = os.fsdecode(files.read_file(path / CGROUPS, MAX_CGROUPS_BYTES)).splitlines()
    for group in groups:
        _end_group(Path(group))
    leftovers.remove({"cgroups": groups, "directory": str(path)}, None)


def _end_group(group: Path) -> None:
    with suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            if parent_of(int(pid)) is not None:
                os.kill(int(pid), signal.SIGKILL)


def _mode() -> int:
    return 0o711 if os.geteuid() == 0 else 0o700


@contextmanager
def _turn(root: Path, kind: int) -> Iterator[None]:
    """Nobody sweeps while somebody makes a directory."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind)
        yield
    finally:
        os.close(fd)
