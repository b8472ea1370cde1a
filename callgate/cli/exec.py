"""`callgate exec`: one contained command, as `timeout` and `docker run` start one.

Output and exit code are the command's own. Else: 2 usage, 124 its time was over, 125 containment
refused and nothing ran, 126 it cannot be executed, 127 it is not there, 128+N signal N ended it,
130 interrupted, 137 killed by a limit. `--json` prints one answer instead of the output.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import asyncio
import inspect
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from callgate.cli import say
from callgate.model import EnvSpec, LaunchSpec, MountSpec, ResourceLimits
from callgate.policy import units
from callgate.policy.units import UNLIMITED, UnitError
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from callgate.cli.contained import Answer, Output

app = typer.Typer(
    name="exec", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

_MAX_DIGITS = len(str(units.MAX_COUNT))
AGENT = "exec"
"""Whose runs these are, in the audit and in messages."""


class Level(StrEnum):
    """How much of the host the command sees."""

    STRICT = "strict"
    STANDARD = "standard"
    NETWORK = "network"
    PRIVILEGED = "privileged"


def _count(text: object) -> int:
    digits = text if isinstance(text, str) and text.isascii() and text.isdigit() else "0"
    if len(digits) <= _MAX_DIGITS and 0 < int(digits) <= units.MAX_COUNT:
        return int(digits)
    raise UnitError(f"a whole number from 1 to {units.MAX_COUNT:,}")


def _size(text: object) -> int:
    """Read a number of bytes above zero."""
    size = units.size_bytes(text)
    if size == 0:
        raise UnitError("a size above zero, such as 512Mi")
    return size


class _Limit(NamedTuple):
    """An option that is a limit."""

    metavar: str
    help: str
    member: str
    """Of `ResourceLimits`, or of `LaunchSpec` if it is one of `_TIMES`."""
    read: Callable[[object], int]
    default: str | None = None
    bare: bool = False
    """Whether a plain number has one meaning."""


_BYTES, _TIME = units.size_bytes, units.duration_ns
_LIMITS = {
    "memory": _Limit("M", "Memory of all processes", "memory_bytes", _BYTES, "512Mi", bare=True),
    "cpu": _Limit(
        "C", "Share of processors, 500m or 0.5", "cpu_millicores", units.millicores, "1000m"
    ),
    "pids": _Limit("N", "Processes and threads", "pids", _count, "64"),
    "disk": _Limit("D", "Bytes in the workspace", "disk_bytes", _BYTES, "1Gi", bare=True),
    "files": _Limit("N", "Files in the workspace", "files", _count),
    "open_files": _Limit("N", "Open files of a process", "open_files", _count),
    "cpu_time": _Limit("T", "Processor time of a process", "cpu_time_ns", _TIME),
    "timeout": _Limit("T", "Time from start to end", "wall_time_ns", _TIME, "60s"),
    "connections": _Limit("N", "Network connections at once", "connections", _count),
    "address_space": _Limit(
        "M", "Address space of a process", "address_space_bytes", _size, bare=True
    ),
    "core_size": _Limit("M", "Size of a core dump; 0 for none", "core_bytes", _BYTES, bare=True),
    "io_read": _Limit(
        "M", "Bytes a second from each disk", "io_read_bytes_per_s", _size, bare=True
    ),
    "io_write": _Limit(
        "M", "Bytes a second to each disk", "io_write_bytes_per_s", _size, bare=True
    ),
    "kill_grace": _Limit("T", "Time to end before it is killed; 5s", "kill_grace_ns", _TIME),
    "monitor_interval": _Limit("T", "Time between two looks; 1s", "monitor_interval_ns", _TIME),
}
_TIMES = ("kill_grace", "monitor_interval")
"""Those that are no limits."""
"""The defaults are the seeds' limits; a command that hangs for ever helps nobody."""


def _with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose first option is the level, an option for each limit."""
    signature = inspect.signature(command, eval_str=True)
    first, level, *others, _ = signature.parameters.values()
    limits = []
    for name, limit in _LIMITS.items():
        text = f"{limit.help} (default {limit.default})." if limit.default else f"{limit.help}."
        option = typer.Option(metavar=limit.metavar, help=text, show_default=False)
        annotation = Annotated[str | None, option]
        limits.append(level.replace(name=name, default=None, annotation=annotation))
    vars(command)["__signature__"] = signature.replace(parameters=[first, level, *limits, *others])
    return command


Command = Annotated[list[str], typer.Argument(metavar="CMD", help="What to run.")]
LevelName = Annotated[
    Level | None,
    typer.Option(metavar="L", help="strict, standard (default), network or privileged."),
]
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
Tty = Annotated[bool, typer.Option("--tty", help="Give it this terminal; no default time.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON answer, output included.")]
MaxOutput = Annotated[
    str | None,
    typer.Option(metavar="M", help="Show at most this much (default unlimited; 1Mi with --json)."),
]
MaxCommand = Annotated[str, typer.Option(metavar="M", help="Refuse a command line that is longer.")]


@app.command(context_settings={"allow_interspersed_args": False})
@_with_limits
def exec_command(
    command: Command,
    *,
    level: LevelName = None,
    mount: Mounts = None,
    env: Variables = None,
    policy: PolicyFile = None,
    agent: Agent = None,
    launcher: LauncherName = None,
    allow_degraded: Degraded = False,
    tty: Tty = False,
    max_stdout: MaxOutput = None,
    max_stderr: MaxOutput = None,
    max_command: MaxCommand = "64Ki",
    as_json: AsJson = False,
    **limits: str | None,
) -> None:
    """Run one command in containment; its output and exit code are its own.

    Any limit can be `unlimited`. Standard input is handed on unless it is a terminal. If a limit
    ends the command, one line on stderr says which. Exit codes: 124 timeout, 125 containment
    refused, 126 not executable, 127 not found, 137 killed.
    """
    if tty and as_json:
        raise typer.BadParameter("a terminal's output is not kept", param_hint="--tty --json")
    most = _max_output(max_stdout, max_stderr, as_json=as_json)
    max_command_bytes = _bytes("--max-command", max_command)
    base = _defaults(command) if policy is None else _from_policy(policy, agent, command)
    spec = _narrowed(base, limits)
    if tty and "timeout" in spec.assumed:
        # A person at a terminal needs no default.
        unbounded = msgspec.structs.replace(spec.limits, wall_time_ns=None)
        spec = msgspec.structs.replace(spec, limits=unbounded)
    spec = msgspec.structs.replace(
        spec,
        launcher=launcher or spec.launcher,
        level=spec.level if level is None else level.value,
        allow_degraded=spec.allow_degraded or allow_degraded,
        mounts=(*spec.mounts, *map(_mount, mount or ())),
        env=msgspec.structs.replace(spec.env, names=(*spec.env.names, *(env or ()))),
        terminal=tty,
    )
    from callgate.cli.exposed import find_exposed_mount

    exposed = find_exposed_mount(spec)
    if exposed is not None:
        raise typer.BadParameter(exposed, param_hint="--mount")
    raise typer.Exit(_start(spec, most, max_command_bytes))


def _defaults(command: list[str]) -> LaunchSpec:
    """What holds without options: the seeds' limits."""
    usual = {name: limit.default for name, limit in _LIMITS.items() if limit.default}
    return LaunchSpec(
        AGENT,
        tuple(command),
        level="standard",
        contained=True,
        limits=ResourceLimits(**_members(usual)),
        assumed=tuple(usual),
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
        say.remark(f"callgate: {quoted(str(file))} names no agent {agent!r}; it gets the defaults")
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
    found = {name: text for name, text in written.items() if text is not None}
    if UNLIMITED in (found.get(name) for name in _TIMES):
        raise typer.BadParameter("a time is needed", param_hint="--kill-grace, --monitor-interval")
    times = _members({name: text for name, text in found.items() if name in _TIMES})
    limits = _members({name: text for name, text in found.items() if name not in _TIMES})
    return msgspec.structs.replace(
        spec,
        limits=msgspec.structs.replace(spec.limits, **limits),
        assumed=tuple(name for name in spec.assumed if name not in found),
        **times,
    )


def _members(written: dict[str, str]) -> dict[str, int | None]:
    return {_LIMITS[name].member: _read(name, text) for name, text in written.items()}


def _read(name: str, text: str) -> int | None:
    limit = _LIMITS[name]
    return _value(f"--{name.replace('_', '-')}", text, limit.read, bare=limit.bare)


def _bytes(option: str, text: str) -> int | None:
    return _value(option, text, units.size_bytes, bare=True)


def _value(option: str, text: str, read: Callable[[object], int], *, bare: bool) -> int | None:
    """Return the value of an option, None for `unlimited`; else a usage error."""
    if text == UNLIMITED:
        return None
    try:
        return read(int(text) if bare and text.isascii() and text.isdigit() else text)
    except UnitError as error:
        hint = "" if error.suggestion is None else f"; {error.suggestion}?"
        message = f"{text!r} is not {error.expected}, or {UNLIMITED}{hint}"
        raise typer.BadParameter(message, param_hint=option) from None


def _max_output(stdout: str | None, stderr: str | None, *, as_json: bool) -> Output:
    """What is kept for JSON is bounded unless somebody says otherwise; what passes is not."""
    from callgate.cli.contained import Output

    usual = "1Mi" if as_json else UNLIMITED
    return Output(
        as_json,
        _bytes("--max-stdout", stdout or usual),
        _bytes("--max-stderr", stderr or usual),
    )


def _mount(text: str) -> MountSpec:
    path, colon, mode = text.rpartition(":")
    if mode not in {"ro", "rw"} or not colon:
        path, mode = text, "ro"
    resolved = Path(path).resolve()
    if not resolved.exists():
        raise typer.BadParameter(f"there is no {quoted(str(resolved))}", param_hint="--mount")
    return MountSpec(str(resolved), read_only=mode == "ro")


def _start(spec: LaunchSpec, output: Output, max_command_bytes: int | None) -> int:
    """Run the command, say how it ended, return our exit code."""
    from callgate.cli import contained

    too_long = max_command_bytes is not None and contained.size_of(spec.command) > max_command_bytes
    if too_long:
        answer = contained.TOO_LONG
        say.remark(
            f"callgate: the command is over {max_command_bytes} bytes; raise it with --max-command"
        )
    elif spec.terminal:
        answer = _run(contained.interact(spec))
    else:
        answer = _run(contained.execute(spec, output))
    if output.keep:
        say.print_json(answer)
    else:
        for name, cut in msgspec.structs.asdict(answer.truncated).items():
            if cut:
                say.remark(f"callgate: {name} was cut; raise it with --max-{name}")
    return answer.status


def _run(work: Coroutine[Any, Any, Answer]) -> Answer:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:  # before or after the time in which signals are the run's
        from callgate.cli.contained import INTERRUPTED

        return INTERRUPTED
