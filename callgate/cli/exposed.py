"""Find mounts through which an agent could change what guards it.

An agent that may write to its policy, its manifest, the audit, callgate's state or callgate's code
has no limits from the next reload or start on. So a writable mount that holds one of these, lies in
one, or holds a link that leads to one, is a problem; so is one that holds another mount of it. A
read-only mount of the audit or the state is a warning: the agent can read who called what.

Names are not compared: a bind mount, a link or another spelling is another name of the same
directory. Each path is resolved, and then told by its file system and its place in that, which
`/proc/self/mountinfo` has; beside that the device and inode of each directory above it are
compared, which also works where there is no mountinfo or where case does not matter.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from callgate.policy import PolicyError, Problem
from callgate.stores.place import state_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from callgate.model import LaunchSpec
    from callgate.policy import Policy

MAX_LINKS: Final = 40
"""As many does Linux follow."""
READ_ONLY: Final = "read_only: true, or a mount that does not have it"


class Own(NamedTuple):
    """Something of ours that no agent may change."""

    what: str
    path: Path
    private: bool = False
    """Whether an agent that reads it learns of other calls."""


class Mounted(NamedTuple):
    """A line of mountinfo: a file system's directory `root` is seen at `point`."""

    device: str
    root: PurePosixPath
    point: PurePosixPath


class Place(NamedTuple):
    """A directory or file by its file system, whatever its name is."""

    device: str
    path: PurePosixPath


def find_exposed(policy: Policy) -> tuple[list[Problem], list[Problem]]:
    """Return the problems and the warnings of the mounts of every agent of a policy."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    mounts = policy.stated_mounts()
    owns = own_paths(policy) if mounts else []
    private = [own for own in owns if own.private]
    for mount in mounts:
        own = find_covered(Path(mount.path), owns if mount.writable else private)
        if own is None:
            continue
        found = f"a {'writable' if mount.writable else 'read-only'} mount of {own.what}"
        expected = READ_ONLY if mount.writable else "a mount that does not have it"
        problem = Problem(mount.key, mount.line, mount.column, found, expected)
        (problems if mount.writable else warnings).append(problem)
    return problems, warnings


def unexposed(policy: Policy) -> Policy:
    """Return the policy, or raise `PolicyError` with every mount that is a problem."""
    problems, _ = find_exposed(policy)
    if problems:
        raise PolicyError(problems, source=str(policy.source))
    return policy


def find_exposed_mount(spec: LaunchSpec) -> str | None:
    """Return what is wrong with a mount of the command line, which has no policy."""
    for mount in spec.mounts:
        if not mount.read_only and spec.level != "strict":
            own = find_covered(Path(mount.path), own_paths(None))
            if own is not None:
                return f"{mount.path} is a writable mount of {own.what}"
    return None


def own_paths(policy: Policy | None) -> list[Own]:
    """Return everything of ours, with each link that leads to it."""
    found = [] if policy is None else _of_policy(policy)
    found.append(Own("callgate's state directory", state_dir(), private=True))
    if sys.platform != "win32":
        from callgate.launcher.local.workspace import default_root  # noqa: PLC0415  # POSIX only

        found.append(Own("the directory of callgate's runs", default_root()))
    found.append(Own("callgate's own code", Path(__file__).parents[1]))
    code = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    code.append(sys.executable)
    if sys.prefix != sys.base_prefix:  # else it is /usr, which has much beside Python
        code.append(sys.prefix)
    found += [Own("the Python that runs callgate", Path(path)) for path in dict.fromkeys(code)]
    return [own._replace(path=path) for own in found for path in _way_to(own.path)]


def _of_policy(policy: Policy) -> list[Own]:
    found = [
        Own("the policy file" if path == policy.source else f"the manifest {path.name}", path)
        for path in policy.files
    ]
    if policy.audit is not None:
        found.append(Own("the audit log", Path(policy.audit.path), private=True))
    return found


def find_covered(mount: Path, owns: Iterable[Own]) -> Own | None:
    """Return the first thing of ours that is in a mount, or that the mount is in."""
    table = _mountinfo()
    try:
        real = mount.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links: nothing can be mounted
        return None
    shown = _places(real, table)
    mine, above = _identity(real), set(_identities(real))
    for own in owns:
        if any(_overlap(one, other) for one in shown for other in _places(own.path, table)):
            return own
        # Of a link only where it stands counts: what it leads to is another one of `owns`.
        end = own.path.parent if own.path.is_symlink() else own.path
        ours = list(_identities(end))
        if mine in ours or (end == own.path and _identity(end) in above):
            return own
    return None


def _overlap(one: Place, other: Place) -> bool:
    if one.device != other.device:
        return False
    return one.path.is_relative_to(other.path) or other.path.is_relative_to(one.path)


def _places(real: Path, table: Sequence[Mounted]) -> list[Place]:
    """Return where a path lies, and what is mounted below it, which a mount of it has, too."""
    path = PurePosixPath(real)
    found = [Place("", path)]
    holders = [each for each in table if path.is_relative_to(each.point)]
    if holders:
        # Of two mounts on one point the later covers the other.
        length = max(len(each.point.parts) for each in holders)
        holder = [each for each in holders if len(each.point.parts) == length][-1]
        found.append(Place(holder.device, holder.root / path.relative_to(holder.point)))
    below = (each for each in table if each.point != path and each.point.is_relative_to(path))
    return found + [Place(each.device, each.root) for each in below]


def _mountinfo() -> list[Mounted]:
    try:
        text = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:  # not Linux: devices and inodes are left
        return []
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        root, point = (PurePosixPath(_unescaped(field)) for field in fields[3:5])
        found.append(Mounted(fields[2], root, point))
    return found


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _way_to(path: Path) -> Iterator[Path]:
    """Yield each link on the way to a path, by its real place, and where the way ends."""
    left = list(reversed(path.absolute().parts[1:]))
    here, links = Path(path.absolute().anchor), 0
    while left:
        name = left.pop()
        there = here.parent if name == ".." else here / name
        try:
            target = there.readlink() if there.is_symlink() else None
        except OSError:
            target = None
        if target is None or links == MAX_LINKS:
            here = there
            continue
        links += 1
        yield there
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        here = Path(target.anchor) if target.is_absolute() else here
    yield here


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    """Yield device and inode of a path and of each directory above it, as far as they exist."""
    for each in (path, *path.parents):
        found = _identity(each)
        if found is not None:
            yield found


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
