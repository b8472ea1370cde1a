"""`callgate run`: parse the command line, start the agent, then build the gate around it.

No typer and no rich, and the imports stand where they are needed: the agent is launched as soon
as it is known what to launch and that it may be; what else the gate needs is imported while the
agent gets ready, in a thread, so that the loop goes on.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple, NoReturn
from uuid import uuid4

from callgate.cli.unusable import Unusable
from callgate.model import ANONYMOUS, BUILT_IN, LaunchSpec
from callgate.text import lines, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from callgate.errors import LimitInfo
    from callgate.launcher.plugins import Launchers
    from callgate.launcher.protocol import Run
    from callgate.model import AuditSpec
    from callgate.policy import Policy
    from callgate.router import Router

NO = 1
REFUSED = 125
INTERRUPTED = 130
NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


class Plan(NamedTuple):
    """What to run, and under what; None is no policy file."""

    policy: Policy | None
    spec: LaunchSpec


class Warnings:
    """Takes what a monitor says of the first run until there is somebody to hear it."""

    def __init__(self) -> None:
        self.hear: Callable[[LimitInfo], None] | None = None
        self.launched_ns = monotonic_ns()
        """When that run was about to be launched: it lasts from there."""

    def __call__(self, limit: LimitInfo) -> None:
        if self.hear is not None:
            self.hear(limit)


def main(arguments: list[str]) -> int:
    """Run the gate; the exit code."""
    options = _parse(arguments)
    _open_standard_streams()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except Unusable as error:
        _say(str(error))
        return NO


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where the extra `speed` is installed: a pass costs less."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(lines(message))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="callgate run",
        usage="callgate run [--policy F] [--agent ID] [--caller ID] [--agent-stderr pass] "
        "[--launcher NAME] -- CMD",
        add_help=False,  # `callgate run --help` is typer's, as every other
    )
    parser.add_argument("--policy", type=Path, metavar="F", help="a policy file")
    parser.add_argument("--agent", metavar="ID", help="the agent's name in the policy")
    parser.add_argument("--caller", metavar="ID", default=ANONYMOUS, help="who the client is")
    parser.add_argument(
        "--agent-stderr", choices=["pass"], help="pass the agent's stderr on after its start too"
    )
    parser.add_argument("--launcher", metavar="NAME", help="a plugin that starts the agent")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
    parser.add_argument("-h", "--help", action="store_true")
    options = parser.parse_args(arguments)
    if options.help:
        from callgate.cli.app import app

        app(["run", "--help"], prog_name="callgate")
    if options.command[:1] == ["--"]:
        del options.command[0]
    for option, name in (("--agent", options.agent), ("--caller", options.caller)):
        if name is not None and quoted(name) != name:
            parser.error(f"{option}: {quoted(name)}: a name has printable characters only")
    if not options.command and options.policy is None:
        parser.error("say which command to run: callgate run -- CMD")
    return options


def _open_standard_streams() -> None:
    """A stream that we were started without would be the next file that anybody opens."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is `fd`


def _cancel_on_interrupt() -> None:
    """Make SIGINT cancel this task: from here on a process may have to be ended.

    Until the gate takes the signal over. Where a loop takes none it is a KeyboardInterrupt.
    """
    task = asyncio.current_task()
    if task is None or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    try:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    except NotImplementedError:
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def _run(options: argparse.Namespace) -> int:
    _cancel_on_interrupt()
    from callgate.launcher.plugins import Launchers
    from callgate.launcher.protocol import LaunchRefused

    async with Launchers() as launcher:
        try:
            plan = _zero_plan(options) if options.policy is None else _read_policy(options)
            launcher.named(plan.spec)  # before an audit is begun
            if plan.policy is not None and plan.policy.audit is not None:
                await _check_audit(plan.policy.audit)
            warnings = Warnings()
            # Before the rest is imported: a thread that imports would keep the loop waiting at
            # each step of the launch. Without a policy, nothing heavy has been imported yet.
            first = await launcher.launch(plan.spec, run_id=uuid4().hex, on_warning=warnings)
            return await _serve(launcher, plan, options, first, warnings)
        except LaunchRefused as error:
            _say_line(error.describe() + _where_to_look(error.gaps.get("command", "/")))
            return REFUSED


def _zero_plan(options: argparse.Namespace) -> Plan:
    agent = options.agent or _agent_name(options.command[0])
    spec = LaunchSpec(agent, tuple(options.command), launcher=options.launcher or BUILT_IN)
    return Plan(None, spec)


def _where_to_look(missing: str) -> str:
    """For a command that was sought on the PATH in vain."""
    known = "/" in missing
    return "" if known else "; clients may have a shorter PATH than your shell: write all of it"


def _read_policy(options: argparse.Namespace) -> Plan:
    with _no_plugins():
        from callgate.cli.run_policy import load
        from callgate.policy import PolicyError

        try:
            policy = load(options.policy, _say_line)
        except PolicyError as error:
            raise Unusable(f"the policy cannot be used\n{error}") from None
    return Plan(policy, _launch_spec(policy, _choose_agent(policy, options), options))


@contextmanager
def _no_plugins() -> Iterator[None]:
    """For pydantic, which looks for some in every installed package and imports them.

    They could only watch how our own policy is read. Never while an agent is launched, which
    may inherit our variables.
    """
    if NO_PLUGINS in os.environ:
        yield
        return
    os.environ[NO_PLUGINS] = "__all__"
    try:
        yield
    finally:
        del os.environ[NO_PLUGINS]


def _launch_spec(policy: Policy, agent: str, options: argparse.Namespace) -> LaunchSpec:
    """How to start the agent; raises `Unusable` if the policy does not fit this command."""
    from msgspec.structs import replace

    from callgate.errors import ConfigError

    unset = [problem for problem in policy.warnings if problem.path.endswith(".token")]
    if unset:
        raise Unusable("\n".join(problem.message for problem in unset))
    if policy.audit is not None and policy.audit.stdout:
        raise Unusable("the client reads this command's stdout: take `audit.stdout` out")
    from callgate.cli.exposed import unexposed
    from callgate.policy import PolicyError

    try:
        unexposed(policy)
        spec = policy.launch_spec(agent, options.command or None)
        return spec if options.launcher is None else replace(spec, launcher=options.launcher)
    except PolicyError as error:
        raise Unusable(f"the policy cannot be used\n{error}") from None
    except ConfigError:
        agent, file = quoted(agent), quoted(str(options.policy))
        raise Unusable(
            f"the policy has no command for agent {agent}; add `command:` there, or say "
            f"callgate run --policy {file} --agent {agent} -- CMD…"
        ) from None


def _choose_agent(policy: Policy, options: argparse.Namespace) -> str:
    if options.agent is not None:
        return str(options.agent)
    if len(policy.agents) == 1:
        return next(iter(policy.agents))
    if options.command and not policy.agents:
        return _agent_name(options.command[0])
    names = ", ".join(sorted(policy.agents)) or "none"
    raise Unusable(f"say which agent it is with --agent; the policy has: {names}")


async def _check_audit(audit: AuditSpec) -> None:
    """What a policy wants written can be, or nothing is launched."""
    from callgate.audit.files import check_writable

    error = await asyncio.to_thread(check_writable, audit.path)
    if error is not None:
        raise Unusable(f"the audit log cannot be written: {quoted(str(error))}; see `audit.path`")


async def _serve(
    launcher: Launchers,
    plan: Plan,
    options: argparse.Namespace,
    first: Run,
    warnings: Warnings,
) -> int:
    with _no_plugins():
        router = await asyncio.to_thread(_build, plan)
    async with AsyncExitStack() as stack:
        await _enter(stack, router)
        from callgate.cli.run_end import summary
        from callgate.cli.run_policy import announce
        from callgate.gate.stdio import Settings, StdioGate

        settings = Settings(
            plan.spec.agent, options.caller, pass_stderr=options.agent_stderr == "pass"
        )
        gate = StdioGate(
            router,
            launcher,
            plan.spec,
            settings,
            secrets=_secrets(plan.spec),
            say=_say,
        )
        warnings.hear = gate.supervisor.warn
        gate.supervisor.launched_ns = warnings.launched_ns
        announce(router.policy, plan.spec, _say_line)
        _collect_garbage()
        if plan.policy is None:
            code = await gate.run(first)
            _say_line(summary(router, plan.spec.agent))
            return code
        from callgate.cli.reload import Reload, follow

        def make_spec(policy: Policy) -> tuple[LaunchSpec, list[bytes]]:
            spec = _launch_spec(policy, plan.spec.agent, options)
            return spec, _secrets(spec)

        reload = Reload(router, gate, launcher, make_spec, _say)
        watching = asyncio.create_task(follow(options.policy, plan.policy, reload))
        try:
            code = await gate.run(first)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        _say_line(summary(router, plan.spec.agent))
        return code


def _collect_garbage() -> None:
    """From here on, and only of what comes: what the start has made is not looked at again."""
    gc.freeze()
    gc.enable()


def _build(plan: Plan) -> Router:
    """A router, and everything else that the gate is made of, imported. In a thread."""
    import callgate.gate.stdio  # noqa: F401  # most of what there is to import
    from callgate.cli.run_policy import default_policy
    from callgate.router import Router
    from callgate.telemetry.nobody import configured

    policy = default_policy(_say_line) if plan.policy is None else plan.policy
    provider = configured()
    return Router(policy, batched=True, tracer_provider=provider, meter_provider=provider)


async def _enter(stack: AsyncExitStack, router: Router) -> None:
    """Open the audit, and whatever else the router needs."""
    try:
        await stack.enter_async_context(router)
    except (OSError, ValueError) as error:
        why = quoted(str(error))
        raise Unusable(f"the audit log cannot be opened: {why}; see `audit.path`") from None


def _secrets(spec: LaunchSpec) -> list[bytes]:
    values = (os.environ.get(name, "") for name in spec.env.secret)
    return [value.encode("utf-8", "surrogateescape") for value in values if value]


def _agent_name(command: str) -> str:
    name = "".join(char if char.isalnum() or char in "_.-" else "-" for char in Path(command).name)
    return name[:128] or "agent"


def _say_line(text: str) -> None:
    """Say something that may repeat foreign text: a line break in it starts no line."""
    _say(quoted(text))


def _say(text: str) -> None:
    from callgate.gate.stderr import write_stderr

    write_stderr(f"callgate: {lines(text)}\n".encode("utf-8", "backslashreplace"))
