"""`callgate contract`: does an agent keep to its protocol?"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from callgate.cli import say
from callgate.contract import CheckResult, Tools, run_contract
from callgate.contract.results import Times, ToolUse, UnknownCheck
from callgate.text import quoted

app = typer.Typer(name="contract", add_completion=False, rich_markup_mode=None)

_COLOURS = {"passed": "green", "failed": "bold red", "skipped": "yellow"}
_NAME_WIDTH = 40
_NO_START = ("handshake", "failed")


class ProtocolName(StrEnum):
    """What the agent speaks."""

    MCP = "mcp"
    RUNTIME = "runtime"


class AgentStderr(StrEnum):
    """Where the agent's own words go."""

    DROP = "drop"
    PASS = "pass"  # noqa: S105  # a word


def _tool_option(help_text: str) -> Any:
    return typer.Option(metavar="TOOL[=JSON]", help=help_text)


CallTool = Annotated[str | None, _tool_option("A tool that answers at once, and arguments.")]
StreamTool = Annotated[str | None, _tool_option("One that tells of its progress.")]
SlowTool = Annotated[str | None, _tool_option("One that runs for a second and heeds a cancel.")]
InvalidTool = Annotated[str | None, _tool_option("One that refuses these arguments.")]


@app.command("contract", context_settings={"allow_interspersed_args": False}, no_args_is_help=True)
def contract(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD", help="The agent's command.")],
    *,
    protocol: Annotated[ProtocolName, typer.Option(help="What it speaks.")] = ProtocolName.MCP,
    call: CallTool = None,
    stream: StreamTool = None,
    slow: SlowTool = None,
    invalid: InvalidTool = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Make this check; may be repeated.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds for an answer; the first has 30.")
    ] = 10.0,
    agent_stderr: Annotated[
        AgentStderr, typer.Option(help="Show what the agent writes to stderr?")
    ] = AgentStderr.DROP,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Play the other side of an agent's protocol: 0 all kept, 1 something is broken.

    Only tools that you name are called; by default those of the reference agent.
    """
    named = {"call": call, "stream": stream, "slow": slow, "invalid": invalid}
    shown = None if as_json else _show if sys.stdout.isatty() else _print
    passed = agent_stderr is AgentStderr.PASS
    checks = run_contract(
        command,
        protocol.value,
        tools=Tools(**{key: _tool_use(text, key) for key, text in named.items() if text}),
        times=Times(answer_s=timeout),
        stderr=sys.stderr.fileno() if passed else asyncio.subprocess.DEVNULL,
        only=only,
        progress=shown,
    )
    try:
        results = asyncio.run(checks)
    except UnknownCheck as error:
        raise typer.BadParameter(str(error), param_hint="--only") from None
    failed = any(result.outcome == "failed" for result in results)
    if as_json:
        answer = {"ok": not failed, "protocol": protocol.value, "checks": results}
        say.print_json(answer)
    else:
        say.answer(_summary(results))
        if not passed and any((one.name, one.outcome) == _NO_START for one in results):
            say.remark("what the agent itself says of it: add --agent-stderr pass")
    raise typer.Exit(1 if failed else 0)


def _tool_use(text: str, key: str) -> ToolUse:
    name, _, arguments = text.partition("=")
    try:
        return ToolUse(name, msgspec.json.decode(arguments or "{}", type=dict[str, Any]))
    except msgspec.DecodeError:
        raise typer.BadParameter("TOOL or TOOL={a JSON object}", param_hint=f"--{key}") from None


def _print(result: CheckResult) -> None:
    line = f"{result.outcome:<8} {result.name:<{_NAME_WIDTH}} {result.duration_ms:>6} ms"
    say.answer(f"{line}  {quoted(result.detail)}".rstrip())


def _show(result: CheckResult) -> None:
    from rich.console import Console  # noqa: PLC0415  # only a terminal pays for it
    from rich.text import Text  # noqa: PLC0415

    Console().print(
        Text.assemble(
            (f"{result.outcome:<8}", _COLOURS[result.outcome]),
            f" {result.name:<{_NAME_WIDTH}}",
            (f" {result.duration_ms:>6} ms", "dim"),
            f"  {quoted(result.detail)}",
        )
    )


def _summary(results: list[CheckResult]) -> str:
    counts = Counter(result.outcome for result in results)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
