"""What `callgate` alone prints, and what needs no typer: the version, and `help` as a word.

Pure. In a module of its own, because it must be there at once.
"""

from __future__ import annotations

from typing import Final

FIRST_SCREEN: Final = """\
callgate: the gate between agents and the tools they call.

  callgate demo             watch it refuse, cancel and contain; under a minute
  callgate init             put it before the servers of your MCP clients
  callgate run -- CMD       put it before one MCP server

callgate --help lists all commands; callgate doctor says what this computer can enforce.
"""
"""The three things to do first, in the order of how little they change."""

VERSION: Final = ("-V", "--version")
HELP: Final = ("-h", "--help")


def with_help(words: list[str]) -> list[str]:
    """Return the words with `help COMMAND` as `COMMAND --help`."""
    return [*words[1:], "--help"] if words[:1] == ["help"] else words
