"""A sandbox, as data, and as the arguments of `bwrap` that make it.

Pure. The root is empty but for what is listed here; everything is read-only but the
workspace, `/tmp` (a part of the workspace), a small `/dev/shm`, and the mounts that the
policy made writable at a level that allows it. Variables never go through arguments, which
everybody can read.
"""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

import msgspec

from callgate.launcher.plan.environment import TEMPORARY, WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from callgate.launcher.plan.capabilities import Command, Host
    from callgate.model import LaunchSpec, Level, MountSpec

ROOT_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Links into /usr on merged systems; directories of their own elsewhere."""
ROOT_PATHS = ("/usr", "/etc/ld.so.cache", "/etc/alternatives")
NETWORK_PATHS = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
)
"""To find a host by name and to know whom one talks to."""

SHM_BYTES = 64 * 1024 * 1024
"""Docker's default for /dev/shm; its pages count as memory."""
EXTRA_PIDS = 2
"""bwrap and the namespace's first process, which are in the run's group too."""
NAMESPACES = ("user", "pid", "ipc", "uts", "cgroup")

TCP_ABI = 4
"""The version of landlock that knows TCP ports."""
SCOPE_ABI = 6
"""The version that can keep abstract sockets and signals of others away."""

SOCKETS_ABI = 9
"""The version that can keep sockets that have a path away (Linux 7.1)."""

Refused = Literal["internet", "unix", "listen", "memfd_create"]
"""What the filter of system calls leaves out of its list: internet sockets; Unix sockets but for
connected pairs; listening; files in memory, which can be executed wherever landlock looks."""

TcpRule = Literal["free", "connect", "none"]
_TCP_RULES: dict[str, TcpRule] = {"strict": "none", "network": "connect"}
"""At `standard` a network namespace of its own is enough, and its own loopback is useful."""


class Bind(msgspec.Struct, frozen=True, gc=False):
    """A path of the host at the same path of the sandbox."""

    path: str
    writable: bool = False
    sockets: bool = False
    """Sockets below it may be connected to."""
    searched: bool = False
    """Sockets, FIFOs and devices below it are found at the launch, and hidden."""


class Tree(msgspec.Struct, frozen=True, gc=False):
    """A bind that no other is above, and those that are mounted inside of it, parents first.

    An earlier run may have put links where the inner ones belong, and bwrap would follow
    them. So the warden assembles a tree, part by part, and bwrap binds the whole.
    """

    bind: Bind
    parts: tuple[Bind, ...]


class LandlockPlan(msgspec.Struct, frozen=True):
    """A second wall inside the first: what may be written, which sockets may be used."""

    abi: int
    writable: tuple[str, ...]
    tcp: TcpRule
    scoped: bool
    """No abstract sockets of, and no signals to, processes outside."""
    sockets: tuple[str, ...] = ()
    """Where sockets of others may be connected to, for a kernel that asks (`SOCKETS_ABI`)."""
    programs: tuple[str, ...] | None = None
    """The files that may be executed; None for all."""


class Sandbox(msgspec.Struct, frozen=True):
    """What the agent sees and may do."""

    network: bool
    binds: tuple[Bind, ...]
    links: tuple[tuple[str, str], ...]
    cwd: str
    landlock: LandlockPlan | None
    seccomp: bool
    refused: tuple[Refused, ...] = ()
    staged: bool = False
    """The warden mounts everything that is bound in a place of its own, by descriptor."""


def sandbox(spec: LaunchSpec, host: Host, command: Command, *, seccomp: bool) -> Sandbox:
    """Return the sandbox of a level."""
    root = [path for path in host.root_paths if path in ROOT_PATHS]
    root += [path for path in ROOT_LINKS if path in host.root_paths]
    if spec.level == "network":
        root += [path for path in NETWORK_PATHS if path in host.root_paths]
    reaches = [*command.reaches, host.interpreter_prefix]
    binds = {path: Bind(path) for path in (*root, *reaches)}
    for mount in spec.mounts:
        path = place_of(mount)
        writable = not mount.read_only and spec.level != "strict"
        binds[path] = Bind(path, writable, mount.sockets, searched=not mount.sockets)
    kept = _without_covered(binds)
    return Sandbox(
        network=spec.level == "network",
        binds=kept,
        links=tuple(sorted(host.root_links.items())),
        cwd=spec.cwd or WORKSPACE,
        landlock=landlock_plan(spec.level, host.landlock_abi, kept, command.programs),
        seccomp=seccomp,
        refused=refused(spec.level, host.landlock_abi)
        + (() if command.programs is None else ("memfd_create",)),
        staged=bool(spec.mounts and can_stage(host)) or host.uid == 0,
    )


def find_doubt(
    spec: LaunchSpec, host: Host, command: Command, sandbox: Sandbox | None
) -> str | None:
    """Return why the command cannot be run: a run may have chosen a part of it."""
    if sandbox is None:
        # On the host any path is as good as another; only a search can be led astray.
        searched = "/" not in spec.command[0] and command.doubts
        return f"{command.doubts[0][1]}: name it by its whole path" if searched else None
    shown = [*(bind.path for bind in sandbox.binds), *host.root_links]
    for path, why in command.doubts:
        if not any(is_below(path, each) for each in shown):
            return f"{path} is not shown, because {why}: mount it, or keep the program elsewhere"
    return None


def place_of(mount: MountSpec) -> str:
    """Return a mount's path in one spelling: no `..`, no slash too many."""
    path = posixpath.normpath(mount.path)
    return f"/{path.lstrip('/')}" if path.startswith("/") else path  # `//` is a root of its own


def can_stage(host: Host) -> bool:
    """Return whether the warden can mount: as root, or in a user namespace of its own."""
    return host.uid == 0 or host.tmpfs.present


def unsafe_mounts(spec: LaunchSpec) -> list[str]:
    """Return the mounts that are inside of what a run can write to: they need a stage."""
    if spec.level == "strict":
        return []
    places = [place_of(each) for each in spec.mounts if not each.read_only]
    paths = [place_of(each) for each in spec.mounts]
    inside = (path for path in paths if any(is_below(path, at) and path != at for at in places))
    return list(dict.fromkeys(inside))


def needs_fresh_workspace(plan: Sandbox | None) -> bool:
    """Return whether bwrap mounts in the agent's files, where a paused run has left links."""
    if plan is None or plan.staged:
        return False
    return any(is_below(bind.path, at) for bind in plan.binds for at in (WORKSPACE, TEMPORARY))


def trees(binds: Iterable[Bind]) -> tuple[Tree, ...]:
    """Return the binds as trees; the first two are the workspace and the agent's `/tmp`."""
    found: dict[str, tuple[Bind, list[Bind]]] = {
        path: (Bind(path, writable=True), []) for path in (WORKSPACE, TEMPORARY)
    }
    for bind in binds:
        above = next((path for path in found if is_below(bind.path, path)), None)
        if above is None:
            found[bind.path] = bind, []
        else:
            found[above][1].append(bind)
    return tuple(Tree(bind, tuple(parts)) for bind, parts in found.values())


def landlock_plan(
    level: Level, abi: int, binds: Iterable[Bind], programs: tuple[str, ...] | None = None
) -> LandlockPlan | None:
    """Return the rules of a level, as far as the kernel knows them."""
    if abi == 0:
        return None
    tcp: TcpRule = "free"
    if abi >= TCP_ABI:
        tcp = _TCP_RULES.get(level, "free")
    writable = [bind.path for bind in binds if bind.writable]
    sockets = tuple(bind.path for bind in binds if bind.sockets)
    places = (WORKSPACE, TEMPORARY, "/dev", *writable)
    scoped = abi >= SCOPE_ABI
    return LandlockPlan(abi, places, tcp, scoped=scoped, sockets=sockets, programs=programs)


def refused(level: Level, abi: int) -> tuple[Refused, ...]:
    """Return what the filter refuses because neither namespaces nor this landlock keep it away.

    The host's abstract sockets and ports are in the host's network namespace, which level
    `network` has; signals stay in the namespace of processes, which every level has of its own.
    Level `strict` needs no network, its own loopback included, on any kernel.
    """
    if level == "strict":
        return ("internet",)
    if level != "network" or abi >= SCOPE_ABI:
        return ()
    return ("unix",) if abi >= TCP_ABI else ("unix", "listen")


def arguments(plan: Sandbox, workspace: str, stage: str) -> list[str]:
    """Return options of bwrap; words in braces are descriptors, filled in by the shim.

    `workspace` is the directory with the agent's files and its `/tmp`. In `stage` the trees
    of a staged sandbox are found by their numbers.
    """
    words = [f"--unshare-{name}" for name in NAMESPACES]
    words += [] if plan.network else ["--unshare-net"]
    words += ["--disable-userns", "--cap-drop", "ALL", "--die-with-parent"]
    words += ["--hostname", "callgate"]
    for target, link in plan.links:
        words += ["--symlink", link, target]
    words += ["--proc", "/proc", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    for name in _made_up(plan):
        words += ["--ro-bind-data", f"{{{name}}}", f"/etc/{name}"]
    words += ["--bind", f"{workspace}/files", WORKSPACE, "--bind", f"{workspace}/tmp", TEMPORARY]  # noqa: S108
    # After /tmp, so that a mount below it is not covered.
    for number, tree in enumerate(trees(plan.binds)[2:] if plan.staged else ()):
        # A tree that is writable in parts comes with the others read-only already.
        option = (
            "--bind" if any(each.writable for each in (tree.bind, *tree.parts)) else "--ro-bind"
        )
        words += [option, f"{stage}/{number}", tree.bind.path]
    for bind in () if plan.staged else plan.binds:
        words += ["--bind" if bind.writable else "--ro-bind", bind.path, bind.path]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", plan.cwd]
    if plan.seccomp:
        words += ["--seccomp", "{seccomp}"]
    return words


def files(plan: Sandbox, uid: int, gid: int) -> dict[str, str]:
    """Return files of /etc that programs need: who am I, and where is localhost."""
    texts = {
        "passwd": f"agent:x:{uid}:{gid}:agent:{WORKSPACE}:/bin/sh\n",
        "group": f"agent:x:{gid}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    }
    return {name: texts[name] for name in _made_up(plan)}


def _made_up(plan: Sandbox) -> list[str]:
    """Those that the host, or the policy, does not bring itself."""
    bound = {bind.path for bind in plan.binds}
    return [name for name in ("passwd", "group", "hosts") if f"/etc/{name}" not in bound]


def _without_covered(binds: Mapping[str, Bind]) -> tuple[Bind, ...]:
    """Parents first, so that a mount is made on top; what a parent shows alike is left out."""
    kept: list[Bind] = []
    for path in sorted(binds, key=lambda path: path.rstrip("/").count("/")):
        bind = binds[path]
        above = _nearest(path, kept)
        if above is None or above.writable != bind.writable or (bind.sockets and above.searched):
            kept.append(bind)
    return tuple(kept)


def _nearest(path: str, binds: Iterable[Bind]) -> Bind | None:
    inside = [bind for bind in binds if is_below(path, bind.path)]
    return max(inside, key=lambda bind: len(bind.path), default=None)


def is_below(path: str, parent: str) -> bool:
    """Return whether `path` is `parent` or in it."""
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def count_mount_points(plan: Sandbox | None) -> int:
    """Count directories and files that bwrap makes in the agent's /tmp to mount on."""
    binds = () if plan is None else plan.binds
    below = [bind.path for bind in binds if is_below(bind.path, TEMPORARY)]
    parents = {str(parent) for path in below for parent in PurePosixPath(path).parents}
    own = {path for path in (*below, *parents) if path != TEMPORARY}
    return sum(is_below(path, TEMPORARY) for path in own)
