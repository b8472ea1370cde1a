"""The typer application: `check`, `explain`, `schema`, and sub-applications by name.

Answers go to stdout, remarks to stderr. Exit codes: 0 ok, 1 the answer is no, 2 usage.
Imports stand inside the commands: that is what keeps the start of each one quick.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

ClickException: Any = typer.BadParameter.__mro__[2]
"""What every usage error is; which module has it depends on typer's version."""

LAZY = {
    "audit": ("callgate.cli.audit", "Check and read audit logs."),
    "calls": ("callgate.cli.calls", "Show which calls there were, how each ended, and why."),
    "contract": ("callgate.cli.contract", "Try an agent against the protocol's contract."),
    "demo": ("callgate.cli.demo.show", "Watch a rogue agent behind the gate."),
    "doctor": ("callgate.cli.doctor", "Prove by doing what this host can enforce."),
    "exec": ("callgate.cli.exec", "Run one command in containment, as timeout and docker run do."),
    "init": ("callgate.cli.setup:init", "Put the gate before the servers of your MCP clients."),
    "runs": ("callgate.cli.runs", "Show the last runs of agents and how each ended."),
    "stats": ("callgate.cli.stats", "Show what calls, refusals and durations add up to."),
    "unwrap": ("callgate.cli.setup:unwrap", "Take the gate away from one client's servers."),
    "wrap": ("callgate.cli.setup:wrap", "Put the gate before the servers of one client's file."),
}
"""Sub-applications: module with an `app` (or another name), and its line in the help."""

NO = 1
"""Exit code: the question was understood and its answer is no."""


@contextmanager
def _quoted_errors() -> Iterator[None]:
    """Make the words of an error fit to be shown: it repeats options, values and paths."""
    try:
        yield
    except ClickException as error:
        from callgate.text import lines

        error.message = lines(error.message)
        raise


class SchemaFormat(StrEnum):
    """What `schema` prints."""

    JSON = "json"
    MARKDOWN = "markdown"


class For(StrEnum):
    """Who is to use a policy file."""

    RUN = "run"
    SERVE = "serve"
    ROUTER = "router"


class LazyGroup(TyperGroup):
    """Imports a sub-application only when it is used; quotes what a usage error repeats."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _quoted_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _quoted_errors():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted({*super().list_commands(ctx), *LAZY})

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        lines = {name: text for name, (_, text) in LAZY.items()}
        lines |= {name: command.help or "" for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, lines[name].split("\n\n")[0]) for name in sorted(lines)])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in LAZY:
            return _in_one_style(super().get_command(ctx, cmd_name))
        place, help_text = LAZY[cmd_name]
        module, _, name = place.partition(":")
        command = typer.main.get_command(getattr(import_module(module), name or "app"))
        command.name = cmd_name
        command.help = command.help or help_text
        return _in_one_style(command)


def _in_one_style(command: Any) -> Any:
    """Let a command's help have no boxes, and no argument the type that Python knows it by."""
    if command is not None:
        command.rich_markup_mode = None
    for parameter in [] if command is None else command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None  # noqa: ARG005  # typer names it
    for each in getattr(command, "commands", {}).values():
        _in_one_style(each)
    return command


app = typer.Typer(
    cls=LazyGroup,
    help="The tool-call gate for agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes cut what does not fit, and rich takes 0.2 s
    context_settings={"help_option_names": ["-h", "--help"]},
)

PolicyPath = Annotated[Path, typer.Argument(metavar="F", help="A policy file.")]
ForWhom = Annotated[
    For,
    typer.Option(
        "--for", help="Who uses it: the profile and the audit that hold where it says nothing."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.callback()
def root(
    *,
    _show_version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.")
    ] = False,
) -> None:
    """The tool-call gate for agents."""
    # `callgate.cli.main` prints the version: what takes no typer waits for none.


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="CMD", help="The server's command, after `--`."),
    ] = None,
    *,
    policy: Annotated[Path | None, typer.Option(metavar="F", help="A policy file.")] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="ID", help="The agent's name in the policy.")
    ] = None,
    caller: Annotated[str | None, typer.Option(metavar="ID", help="Who the client is.")] = None,
    agent_stderr: Annotated[
        str | None,
        typer.Option(metavar="pass", help="Pass the agent's stderr on after its start too."),
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help="A plugin that starts the agent.")
    ] = None,
) -> None:
    """Put the gate in front of one MCP server, in the place of its command."""
    # `callgate.cli.main` goes past this command, straight to what it calls: see there.
    from callgate.cli.run import main

    named: dict[str, object] = {"--policy": policy, "--agent": agent, "--caller": caller}
    named |= {"--agent-stderr": agent_stderr, "--launcher": launcher}
    given = [word for name, value in named.items() if value for word in (name, str(value))]
    raise typer.Exit(main([*given, "--", *(command or ())]))


@app.command()
def check(file: PolicyPath, *, for_whom: ForWhom = For.RUN, as_json: AsJson = False) -> None:
    """Check a policy file; lists every problem with its line and column."""
    from callgate.cli import output
    from callgate.cli.purposes import purpose_of

    policy = output.load_or_exit(file, as_json=as_json, purpose=purpose_of(for_whom.value))
    output.checked(policy, file, as_json=as_json)


@app.command()
def explain(
    file: PolicyPath,
    *,
    agent: Annotated[str, typer.Option(metavar="A", help="The agent's name.")],
    tool: Annotated[str | None, typer.Option(metavar="T", help="The tool's name.")] = None,
    caller: Annotated[
        str | None, typer.Option(metavar="C", help="Who asks; else any unnamed caller.")
    ] = None,
    unlisted: Annotated[
        bool, typer.Option("--unlisted", help="For a tool that the agent itself does not list.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show how its process would be launched on this host.")
    ] = False,
    for_whom: ForWhom = For.RUN,
    as_json: AsJson = False,
) -> None:
    """Show each limit that holds, and the line that says so."""
    from callgate.cli import output, say
    from callgate.cli.purposes import purpose_of
    from callgate.text import quoted

    policy = output.load_or_exit(file, as_json=as_json, purpose=purpose_of(for_whom.value))
    if plan:
        from callgate.cli.explain_plan import show_plan

        raise typer.Exit(show_plan(policy, agent, as_json=as_json))
    known = agent in policy.agents
    if not known:
        names = ", ".join(map(quoted, sorted(policy.agents))) or "none"
        say.remark(
            f"{quoted(str(file))}: names no agent {agent!r}, only: {names}; it gets the defaults"
        )
    say.remark(f"{quoted(str(file))}: {output.verdict(policy)}")
    listed = policy.explain(agent, tool, caller)
    if tool is None:
        output.explained(listed, as_json=as_json)
        raise typer.Exit(0 if known else NO)
    key = policy.tool_key(agent, tool)
    other = policy.explain(agent, key, caller)
    output.explained(other if unlisted else listed, as_json=as_json)
    if not unlisted and not output.have_same_limits(listed, other):
        say.remark(
            f"{quoted(str(file))}: this is for a tool that the agent lists; one that it does not "
            f"list is under {key!r} alone: add --unlisted"
        )
    raise typer.Exit(0 if known else NO)


@app.command()
def schema(
    form: Annotated[
        SchemaFormat, typer.Option("--format", help="The schema, or the reference page.")
    ] = SchemaFormat.JSON,
) -> None:
    """Print the policy file's JSON schema, for editors."""
    from callgate.cli.reference import json_schema, markdown

    if form is SchemaFormat.MARKDOWN:
        typer.echo(markdown(), nl=False)
        return
    import json

    typer.echo(json.dumps(json_schema(), indent=2))
