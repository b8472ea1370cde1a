"""Which variables an agent gets. Values come in and go out; none is kept or shown.

Pure. Without containment everything passes but callgate's own tokens. With it, only what
is named, and the few names without which programs stumble; in a sandbox the paths among
them are the sandbox's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from callgate.model import LaunchSpec

LOCALE = ("LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ")
PERSON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL")
"""Pass at level `privileged`, where the host's paths mean something."""

SANDBOX_PATH = "/usr/local/bin:/usr/bin:/bin"
WORKSPACE = "/workspace"
TEMPORARY = "/tmp"  # noqa: S108  # the sandbox's own

CHANNEL_VARIABLE = "CALLGATE_CHANNEL_FD"
TOKEN_VARIABLE = "CALLGATE_SESSION_TOKEN"  # noqa: S105  # a name, not a token
WORKSPACE_VARIABLE = "CALLGATE_WORKSPACE"
RUN_VARIABLE = "CALLGATE_RUN"
"""A name of the run by which its processes are found where no group or sandbox holds them."""


def names(spec: LaunchSpec) -> tuple[str, ...] | None:
    """Return the variables that pass if they are set; None for all but the withheld."""
    env = spec.env
    if env.pass_all:
        return None
    base = {"strict": (), "privileged": LOCALE + PERSON}.get(spec.level, LOCALE)
    return tuple(dict.fromkeys((*base, *env.names, *env.secret)))


def build(
    spec: LaunchSpec, environ: Mapping[str, str], workspace: str | None, program: str
) -> dict[str, str]:
    """Return the agent's environment; `workspace` and `program` are paths as the agent sees them.

    A level whose sandbox could not be had, and need not, has its workspace elsewhere.
    """
    passing = names(spec)
    if passing is None:
        env = {name: value for name, value in environ.items() if name not in spec.env.withheld}
    else:
        env = {name: environ[name] for name in passing if name in environ}
    for name in (CHANNEL_VARIABLE, TOKEN_VARIABLE, WORKSPACE_VARIABLE):
        env.pop(name, None)  # of a callgate that started us
    if workspace is None:
        return env
    env[WORKSPACE_VARIABLE] = workspace
    if spec.level == "privileged":
        env.setdefault("TMPDIR", workspace)
        return env
    env["HOME"] = workspace
    env["TMPDIR"] = TEMPORARY if workspace == WORKSPACE else workspace
    folder = program.rpartition("/")[0]
    usual = SANDBOX_PATH.split(":")
    env.setdefault("PATH", ":".join(dict.fromkeys([folder, *usual])))
    return env
