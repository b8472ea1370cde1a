"""A plan, made concrete for one run: what the warden and the shim are told to do.

The job is a plain dictionary, because it crosses to a process that knows none of our
classes. The environment's values are in it and nowhere else.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import resource
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from callgate.launcher.host import helper_program, seccomp
from callgate.launcher.local.workspace import PARTS
from callgate.launcher.plan import bwrap, environment
from callgate.launcher.plan.effects import OPEN_FILES
from callgate.launcher.plan.launch_plan import PROCESSES
from callgate.launcher.warden import warden_mounts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from callgate.launcher.host.cgroup import Group
    from callgate.launcher.local.workspace import RunDirectory
    from callgate.launcher.plan.bwrap import Bind, Sandbox
    from callgate.launcher.plan.capabilities import Host
    from callgate.launcher.plan.launch_plan import LaunchPlan
    from callgate.model import LaunchSpec

_INSIDE = ("libc", "landlock", "warden_messages", "shim", "sandbox_entry")
"""Our modules that run in the sandbox, each after those it imports."""
_PACKAGE = "callgate.launcher.warden"
_BOOT = """
import marshal, sys
with open(int(sys.argv[1]), "rb") as file:
    job, modules = marshal.load(file)
package = sys.modules["callgate.launcher.warden"] = type(sys)("callgate.launcher.warden")
for name, code in modules:
    module = type(sys)(name)
    sys.modules["callgate.launcher.warden." + name] = module
    setattr(package, name, module)
    exec(code, module.__dict__)
module.main(job, int(sys.argv[2]))
"""
_OVERHEAD_INODES = 1 + len(PARTS)
"""Directories in a tmpfs workspace that are ours, not the agent's."""


class JobInputs(NamedTuple):
    """What a job needs to know of the run beside its plan."""

    host: Host
    environ: Mapping[str, str]
    directory: RunDirectory | None
    group: Group | None
    token: str | None
    mark: str
    places: Collection[tuple[int, int]] = ()
    """What runs can write to: links in there are not followed."""


def make(
    spec: LaunchSpec, plan: LaunchPlan, inputs: JobInputs
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the message, and descriptors that go with it; the caller closes these afterwards."""
    join, shown = ({}, {}) if inputs.group is None else inputs.group.join_handles()
    keep = {} if inputs.group is None else inputs.group.kill_handles()
    program: dict[str, int] = {}
    directory = inputs.directory
    if directory is not None:
        keep |= {name: os.dup(fd) for name, fd in directory.locks().items()}
    runtime = spec.protocol == "runtime"
    job: dict[str, Any] = {
        "argv": list(plan.argv),
        "args": [],
        "data": {},
        "env": _environment(spec, plan, inputs),
        "env_fds": {environment.CHANNEL_VARIABLE: "channel"} if runtime else {},
        "cwd": spec.cwd or _cwd(plan, directory),
        "cgroups": shown,
        "rlimits": [_rlimit(name, value) for name, value in plan.rlimits],
        "nice": plan.nice,
        "drop": _owner(plan, directory),
        "no_new_privs": plan.no_new_privs and plan.sandbox is None,
        "stdio": {"stdin": 0, "stdout": 1, "stderr": 2},
        "inherit": ["channel"] if runtime else [],
        "terminal": spec.terminal,
        "keep": list(keep),
        "mounts": None,
        "leftovers": {
            "cgroups": [] if inputs.group is None else [str(path) for path in inputs.group.paths],
            "directory": None if directory is None else str(directory.path),
            "place": inputs.host.cgroups.v2,
        },
    }
    if plan.sandbox is not None and directory is not None:
        _sandbox(job, plan, inputs, directory)
        program["program"] = os.dup(helper_program.bwrap().fd)
    return job, {**join, **keep, **program}


def _sandbox(
    job: dict[str, Any], plan: LaunchPlan, inputs: JobInputs, directory: RunDirectory
) -> None:
    """Put bwrap in front of the agent, and our last step between them."""
    sandbox, workspace, host = plan.sandbox, plan.workspace, inputs.host
    assert sandbox is not None  # noqa: S101  # asked by the caller
    staged = sandbox.staged
    stage = warden_mounts.STAGE
    place = f"{stage}/{warden_mounts.WORKSPACE}" if staged else str(directory.workspace)
    tmpfs = workspace is not None and workspace.tmpfs
    owner = _owner(plan, directory)
    if host.uid != 0:
        job["rlimits"] += _shares()
    if not any(name == "RLIMIT_NOFILE" for name, _ in job["rlimits"]):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        count = OPEN_FILES if most == resource.RLIM_INFINITY else min(most, OPEN_FILES)
        job["rlimits"].append(["RLIMIT_NOFILE", count])
    searched = [bind.path for bind in sandbox.binds if bind.searched]
    # A namespace of the warden's, also without a tmpfs: the kernel counts by namespace there.
    namespace = staged or tmpfs or host.tmpfs.present
    if namespace or searched:
        job["mounts"] = {
            "namespace": namespace,
            "workspace": str(directory.workspace) if tmpfs else None,
            "options": _tmpfs_options(plan),
            "directories": list(PARTS),
            "owner": owner,
            "stage": str(directory.stage) if staged else None,
            "shared": str(directory.workspace),
            "trees": _trees(sandbox) if staged else [],
            "searched": [] if staged else searched,
            "places": [list(place) for place in inputs.places],
            "unmount": [
                *([stage, str(directory.stage)] if staged else []),
                *([str(directory.workspace)] if tmpfs else []),
            ],
        }
    uid, gid = owner or [host.uid, os.getegid()]
    files = bwrap.files(sandbox, uid, gid)
    job["data"] = {name: text.encode() for name, text in files.items()} | {
        "seccomp": seccomp.program(sandbox.refused) if sandbox.seccomp else b"",
        "inside": _inside(job, plan),
    }
    job["args"] = bwrap.arguments(sandbox, place, stage)
    last = [host.interpreter, "-I", "-S", "-c", _BOOT, "{inside}", "{stderr}"]
    job["argv"] = [host.bwrap_path, "--args", "{args}", "--", *last]
    job["cwd"] = "/"
    job["stdio"] = {"stdin": 0, "stdout": 1, "report": 2}
    job["inherit"] = [*job["inherit"], "stderr"]
    job["terminal"] = False


def _rlimit(name: str, value: int) -> list[str | int]:
    if name != PROCESSES:
        return [name, value]
    from callgate.launcher.host.process_tree import count_of_user  # noqa: PLC0415  # psutil

    return [name, value + count_of_user()]


def _shares() -> list[list[str | int]]:
    """Return limits that leave others most of what the kernel counts for our user together."""
    shares: list[list[str | int]] = []
    for name in ("RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE"):
        most = resource.getrlimit(getattr(resource, name))[0]  # as the kernel does for a namespace
        if most > 0:  # else there is no limit, and nothing to use up
            shares.append([name, max(1, most // warden_mounts.SHARE)])
    return shares


def _owner(plan: LaunchPlan, directory: RunDirectory | None) -> list[int] | None:
    """Return the uid and gid that the agent becomes; None if it stays who we are."""
    if plan.drop is None:
        return None
    user = None if directory is None else directory.user
    if user is None:  # without one the agent would be root
        raise ValueError("a plan that drops root has no user to become")
    return [user.uid, user.gid]


def _trees(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Return what the warden assembles: the two parts of the workspace, then what is bound."""
    found = []
    for tree in bwrap.trees(sandbox.binds):
        root = tree.bind.path.rstrip("/")
        parts = [_part(part, part.path[len(root) + 1 :]) for part in tree.parts]
        found.append({**_part(tree.bind, ""), "parts": parts})
    return found


def _part(bind: Bind, below: str) -> dict[str, Any]:
    return {
        "source": bind.path,
        "below": below,
        "writable": bind.writable,
        "searched": bind.searched,
    }


def _tmpfs_options(plan: LaunchPlan) -> str:
    options = ["mode=711"]
    workspace = plan.workspace
    if workspace is not None and workspace.size_bytes is not None:
        options.append(f"size={workspace.size_bytes}")
    if workspace is not None and workspace.files is not None:
        inodes = workspace.files + _OVERHEAD_INODES + bwrap.count_mount_points(plan.sandbox)
        options.append(f"nr_inodes={inodes}")
    return ",".join(options)


def _inside(job: dict[str, Any], plan: LaunchPlan) -> bytes:
    sandbox = plan.sandbox
    landlock = None if sandbox is None else sandbox.landlock
    rules = None
    if landlock is not None:
        rules = (
            landlock.abi,
            list(landlock.writable),
            landlock.tcp,
            landlock.scoped,
            list(landlock.sockets),
            None if landlock.programs is None else list(landlock.programs),
        )
    step = {
        "argv": list(plan.argv),
        "landlock": rules,
        "rlimits": [list(limit) for limit in plan.late_rlimits],
        "terminal": job["terminal"],
        "variables": [*job["env"], *job["env_fds"], "PWD"],
    }
    return marshal.dumps((step, _modules()))


@cache
def _modules() -> tuple[tuple[str, Any], ...]:
    """Return the code of the modules that run in the sandbox; it has the same interpreter."""
    found = []
    for name in _INSIDE:
        spec = importlib.util.find_spec(f"{_PACKAGE}.{name}")
        loader: Any = None if spec is None else spec.loader
        found.append((name, loader.get_code(f"{_PACKAGE}.{name}")))
    return tuple(found)


def _environment(spec: LaunchSpec, plan: LaunchPlan, inputs: JobInputs) -> dict[str, str]:
    seen: str | None = None
    if plan.sandbox is not None:
        seen = environment.WORKSPACE
    elif inputs.directory is not None and plan.workspace is not None:
        seen = str(_files(inputs.directory.workspace))
    env = environment.build(spec, inputs.environ, seen, plan.argv[0])
    if plan.sandbox is None and inputs.group is None:
        # Nothing else tells what is of this run if its warden is killed.
        env[environment.RUN_VARIABLE] = inputs.mark
    if inputs.token is not None:
        env[environment.TOKEN_VARIABLE] = inputs.token
    return env


def _cwd(plan: LaunchPlan, directory: RunDirectory | None) -> str:
    """Ours, unless a sandbox should have been there: then what it would have begun in."""
    if plan.level == "privileged" or directory is None:
        return os.getcwd()  # noqa: PTH109  # a plain string goes over
    return str(_files(directory.workspace))


def _files(workspace: Path) -> Path:
    return workspace / PARTS[0]
