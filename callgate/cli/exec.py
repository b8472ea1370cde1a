"""`callgate exec`: one contained command, and an answer in JSON.

Exit codes: 0 the command ended with 0, 1 it failed or a limit ended it (the JSON says which),
2 usage, 124 timeout, 125 containment refused and nothing ran, 130 interrupted.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from callgate.model import EnvSpec, LaunchSpec, MountSpec, ResourceLimits
from callgate.policy import units
from callgate.policy.units import UNLIMITED, UnitError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from callgate.cli.contained import Answer

app = typer.Typer(name="exec", add_completion=False, pretty_exceptions_enable=False)

DEFAULTS = {"memory": "512Mi", "cpu": "1000m", "disk": "1Gi", "pids": "64", "timeout": "60s"}
"""The seeds' limits; a command that hangs for ever helps nobody."""
AGENT = "exec"
"""Whose runs these are, in the history and in messages."""


class Level(StrEnum):
    """How much of the host the command sees."""

    STRICT = "strict"
    STANDARD = "standard"
    NETWORK = "network"
    PRIVILEGED = "privileged"


def _count(text: object) -> int:
    if isinstance(text, str) and text.isdigit() and 0 < int(text) <= units.MAX_COUNT:
        return int(text)
    raise UnitError("a whole number above zero")


_LIMITS: dict[str, tuple[str, Callable[[object], int]]] = {
    "memory": ("memory_bytes", units.size_bytes),
    "cpu": ("cpu_millicores", units.millicores),
    "pids": ("pids", _count),
    "disk": ("disk_bytes", units.size_bytes),
    "files": ("files", _count),
    "open_files": ("open_files", _count),
    "cpu_time": ("cpu_time_ns", units.duration_ns),
    "timeout": ("wall_time_ns", units.duration_ns),
}
"""Option → member of `ResourceLimits`, and how it is read."""
_BARE = ("memory", "disk")
"""Where a plain number has one meaning."""


def _limit(metavar: str, what: str) -> Any:
    return typer.Option(metavar=metavar, help=what, show_default=False)


Command = Annotated[list[str], typer.Argument(metavar="CMD…", help="What to run.")]
LevelName = Annotated[
    Level | None,
    typer.Option(metavar="L", help="strict, standard (default), network or privileged."),
]
Memory = Annotated[str | None, _limit("M", "Memory of all processes; 512Mi.")]
Cpu = Annotated[str | None, _limit("C", "Share of processors, 500m or 0.5; 1000m.")]
Pids = Annotated[str | None, _limit("N", "Processes and threads; 64.")]
Disk = Annotated[str | None, _limit("D", "Bytes in the workspace; 1Gi.")]
Files = Annotated[str | None, _limit("N", "Files in the workspace.")]
OpenFiles = Annotated[str | None, _limit("N", "Open files of a process.")]
CpuTime = Annotated[str | None, _limit("T", "Processor time of a process.")]
Timeout = Annotated[str | None, _limit("T", "Time from start to end; 60s.")]
Mounts = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH[:rw]", help="A path that it sees; read-only without `:rw`."),
]
Variables = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A variable that passes.")
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(metavar="F", exists=True, dir_okay=False, help="Containment from a policy."),
]
Agent = Annotated[str | None, typer.Option(metavar="ID", help="Whose, if the policy has several.")]
LauncherName = Annotated[str | None, typer.Option(metavar="NAME", help="A plugin that starts it.")]
Degraded = Annotated[
    bool, typer.Option("--allow-degraded", help="Run even where not all can be enforced.")
]
Tty = Annotated[bool, typer.Option("--tty", help="Give it this terminal; prints no JSON.")]


@app.command(context_settings={"allow_interspersed_args": False})
def exec_command(
    command: Command,
    *,
    level: LevelName = None,
    memory: Memory = None,
    cpu: Cpu = None,
    pids: Pids = None,
    disk: Disk = None,
    files: Files = None,
    open_files: OpenFiles = None,
    cpu_time: CpuTime = None,
    timeout: Timeout = None,
    mount: Mounts = None,
    env: Variables = None,
    policy: PolicyFile = None,
    agent: Agent = None,
    launcher: LauncherName = None,
    allow_degraded: Degraded = False,
    tty: Tty = False,
) -> None:
    """Run one command in containment and print what came of it as JSON.

    Any limit can be `unlimited`. Standard input is handed on unless it is a terminal.
    """
    written = {
        "memory": memory,
        "cpu": cpu,
        "pids": pids,
        "disk": disk,
        "files": files,
        "open_files": open_files,
        "cpu_time": cpu_time,
        "timeout": timeout,
    }
    base = _defaults(command) if policy is None else _from_policy(policy, agent, command)
    spec = _narrowed(base, written)
    if tty and "timeout" in spec.assumed:
        # A person at a terminal needs no default.
        limits = msgspec.structs.replace(spec.limits, wall_time_ns=None)
        spec = msgspec.structs.replace(spec, limits=limits)
    spec = msgspec.structs.replace(
        spec,
        launcher=launcher or spec.launcher,
        level=spec.level if level is None else level.value,
        allow_degraded=spec.allow_degraded or allow_degraded,
        mounts=(*spec.mounts, *map(_mount, mount or ())),
        env=msgspec.structs.replace(spec.env, names=(*spec.env.names, *(env or ()))),
        terminal=tty,
    )
    raise typer.Exit(_interactive(spec) if tty else _answer(spec))


def _defaults(command: list[str]) -> LaunchSpec:
    """What holds without options: the seeds' limits."""
    limits = {_LIMITS[name][0]: _read(name, text) for name, text in DEFAULTS.items()}
    return LaunchSpec(
        AGENT,
        tuple(command),
        level="standard",
        contained=True,
        limits=ResourceLimits(**limits),
        assumed=tuple(DEFAULTS),
        env=EnvSpec(pass_all=False),
    )


def _from_policy(file: Path, agent: str | None, command: list[str]) -> LaunchSpec:
    """What a policy says of an agent's process; where it contains nobody, the defaults hold."""
    from callgate.cli.output import load_or_exit

    policy = load_or_exit(file, as_json=False)
    if agent is None and len(policy.agents) > 1:
        names = ", ".join(sorted(policy.agents))
        raise typer.BadParameter(f"say which agent it is: {names}", param_hint="--agent")
    if agent is not None and agent not in policy.agents:
        typer.echo(f"callgate: {file} names no agent {agent!r}; it gets the defaults", err=True)
    spec = policy.launch_spec(agent or next(iter(policy.agents), AGENT), command)
    usual = _defaults(command)
    if not spec.contained:
        env = msgspec.structs.replace(spec.env, pass_all=False)
        return msgspec.structs.replace(usual, agent=spec.agent, launcher=spec.launcher, env=env)
    if spec.limits.wall_time_ns is None:
        limits = msgspec.structs.replace(spec.limits, wall_time_ns=usual.limits.wall_time_ns)
        assumed = (*spec.assumed, "timeout")
        spec = msgspec.structs.replace(spec, limits=limits, assumed=assumed)
    return msgspec.structs.replace(spec, protocol="mcp")


def _narrowed(spec: LaunchSpec, written: dict[str, str | None]) -> LaunchSpec:
    """With the options in the place of what the policy or the defaults say."""
    found = {name: _read(name, text) for name, text in written.items() if text is not None}
    members = {_LIMITS[name][0]: value for name, value in found.items()}
    return msgspec.structs.replace(
        spec,
        limits=msgspec.structs.replace(spec.limits, **members),
        assumed=tuple(name for name in spec.assumed if name not in found),
    )


def _read(name: str, text: str) -> int | None:
    if text == UNLIMITED:
        return None
    try:
        return _LIMITS[name][1](int(text) if text.isdigit() and name in _BARE else text)
    except UnitError as error:
        hint = "" if error.suggestion is None else f"; {error.suggestion}?"
        option = f"--{name.replace('_', '-')}"
        message = f"{text!r} is not {error.expected}, or {UNLIMITED}{hint}"
        raise typer.BadParameter(message, param_hint=option) from None


def _mount(text: str) -> MountSpec:
    path, colon, mode = text.rpartition(":")
    if mode not in {"ro", "rw"} or not colon:
        path, mode = text, "ro"
    resolved = Path(path).resolve()
    if not resolved.exists():
        raise typer.BadParameter(f"there is no {resolved}", param_hint="--mount")
    return MountSpec(str(resolved), read_only=mode == "ro")


def _answer(spec: LaunchSpec) -> int:
    """Run it, print the answer, give our exit code."""
    from callgate.cli import contained

    if contained.too_long(spec.command):
        answer = contained.Answer(None, error_class="LIMIT_EXCEEDED")
        typer.echo(f"callgate: the command is over {contained.MAX_COMMAND_BYTES} bytes", err=True)
    else:
        answer = _run(contained.execute(spec))
    typer.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    return answer.status()


def _interactive(spec: LaunchSpec) -> int:
    from callgate.cli import contained

    answer = _run(contained.interact(spec))
    if answer.stop_reason != "exited":
        typer.echo(f"callgate: ended by {answer.stop_reason}", err=True)
    return answer.status()


def _run(work: Coroutine[Any, Any, Answer]) -> Answer:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:  # before or after the time in which signals are the run's
        from callgate.cli.contained import INTERRUPTED

        return INTERRUPTED
