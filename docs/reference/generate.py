"""The reference pages, made from the code: commands from typer's objects, keys from the models.

`python docs/reference/generate.py` writes them beside this file; `tests/docs/test_reference.py`
fails while one of them is behind.
"""
# ruff: noqa: INP001  # a script, not a package

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from callgate.cli.app import app
from callgate.cli.reference import markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent

_HEAD = """# The command line

<!-- Made by `python docs/reference/generate.py`; change callgate/cli/ instead. -->

Answers go to stdout, remarks to stderr. `--json` prints JSON for scripts. Every command has
`--help`; `callgate --install-completion` sets up your shell.

| exit code | means |
|---|---|
| 0 | it is as you asked |
| 1 | the question was understood, and its answer is no |
| 2 | the command line cannot be used as it is written |
| 124 | `exec`: its time ran out |
| 125 | the containment that was asked for cannot be had here |
| 126, 127 | `exec`: the command cannot be executed, is not there |
| 130 | it was interrupted |
| 137 | `exec`: a limit ended the command |
"""
_TYPERS_OWN = frozenset({"help", "install_completion", "show_completion"})
"""On every command, or about the shell; the head of the page has them."""


def commands() -> str:
    """The page of the command line."""
    page = _HEAD
    for name, command in _walk("callgate", typer.main.get_command(app)):
        page += _section(name, command)
    return page


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command and those below it; commands are typer's click objects, old or vendored."""
    yield name, command
    if hasattr(command, "list_commands"):
        for sub in command.list_commands(None):
            yield from _walk(f"{name} {sub}", command.get_command(None, sub))


def _section(name: str, command: Any) -> str:
    known = [p for p in command.params if p.name not in _TYPERS_OWN and not p.hidden]
    arguments = [p for p in known if not _is_option(p)]
    options = [p for p in known if _is_option(p)]
    usage = " ".join([name, *(_usage(p) for p in (*options, *arguments))])
    if hasattr(command, "list_commands"):
        usage += " COMMAND"
    text = f"\n## {name}\n\n{_sentence(command.help)}\n\n    {usage}\n"
    if known:
        text += "\n| | |\n|---|---|\n"
        text += "".join(f"| {_spelling(p)} | {_meaning(p)} |\n" for p in (*arguments, *options))
    return text


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _value(parameter: Any) -> str:
    """What stands for the value: the choices, the author's word, or the name."""
    if not _is_option(parameter):
        return str(parameter.metavar or parameter.name.upper())
    if parameter.is_flag:
        return ""
    if isinstance(parameter.default, Enum):
        return "|".join(str(choice.value) for choice in type(parameter.default))
    return str(parameter.metavar or parameter.name.upper())


def _usage(parameter: Any) -> str:
    text = _value(parameter)
    if _is_option(parameter):
        text = f"{parameter.opts[0]} {text}".strip()
    if parameter.nargs == -1:
        text += "..."
    return text if parameter.required else f"[{text}]"


def _spelling(parameter: Any) -> str:
    value = _value(parameter).replace("|", "\\|")
    if not _is_option(parameter):
        return f"`{value}`"
    names = [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(f"`{name} {value}`" if value else f"`{name}`" for name in names)


def _meaning(parameter: Any) -> str:
    default = parameter.default
    default = default.value if isinstance(default, Enum) else default
    note = "" if default in (None, False, (), []) else f" Default: `{default}`."
    return f"{_sentence(parameter.help)}{note}"


def _sentence(text: str | None) -> str:
    """Help as running text: a line break in it means nothing."""
    return " ".join((text or "").split())


PAGES: dict[str, Callable[[], str]] = {"cli.md": commands, "policy.md": markdown}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (HERE / page).write_text(make(), encoding="utf-8")
