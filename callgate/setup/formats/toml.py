"""Read TOML by tomlkit, and find the positions of commands and their arguments.

Pure. tomlkit keeps every byte but tells no positions. A value's position is where a mark appears
in the text when the mark is put in the value's place; that all else is as before is checked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from callgate.setup.formats.nodes import Node, Refused, Splice, end_of_line, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import tomlkit

_MARK: Final = "callgate-was-here"
_KEY: Final = re.compile(r"([ \t]*(?:[\w\-]+[ \t]*\.[ \t]*)*)command[ \t]*=[ \t]*")
PLACED: Final = frozenset({"command", "args"})


class Toml:
    """TOML, as Codex has it."""

    name = "toml"

    def read(self, text: str) -> Node:
        document = _parse(text)
        positions = {}
        for path in _placed(document.unwrap(), ()):
            positions[path] = _position(text, path)
        return _node(document.unwrap(), (), positions)

    def literal(self, word: str) -> str:
        return quoted(word)

    def moved(self, text: str, node: Node) -> str:
        return text[node.start : node.end]

    def separator(self, text: str, items: Node) -> str:
        del text, items
        return ", "

    def add_args(self, text: str, program: Node, words: Sequence[str]) -> Splice:
        given = f"args = [{', '.join(words)}]"
        key = _KEY.fullmatch(text, text.rfind("\n", 0, program.start) + 1, program.start)
        if key is None:  # an inline table
            return Splice(program.end, program.end, f", {given}")
        at, feed = end_of_line(text, program.end)
        return Splice(at, at, f"{feed}{key[1]}{given}")


def _parse(text: str) -> tomlkit.TOMLDocument:
    import tomlkit  # noqa: PLC0415  # only who has a TOML file pays for it
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.parse(text)
    except (TOMLKitError, RecursionError) as error:
        raise Refused(f"not readable as TOML: {error}") from None
    if document.as_string() != text:
        raise Refused("this TOML cannot be changed without changing other bytes of it")
    return document


def _placed(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all commands, lists of arguments, and single arguments."""
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        if key in PLACED and "command" in value:
            yield (*path, key)
            if isinstance(each, list):
                yield from ((*path, key, number) for number in range(len(each)))
        else:
            yield from _placed(each, (*path, key))


def _position(text: str, path: tuple[Any, ...]) -> tuple[int, int]:
    import tomlkit  # noqa: PLC0415

    mark = _MARK
    while mark in text:
        mark += "-"
    document = _parse(text)
    holder: Any = document
    for key in path[:-1]:
        holder = holder[key]
    source = holder[path[-1]].as_string()
    holder[path[-1]] = tomlkit.string(mark)
    marked = document.as_string()
    begin = marked.find(f'"{mark}"')
    if begin < 0 or marked.replace(f'"{mark}"', source) != text:
        raise Refused("this TOML cannot be changed without changing other bytes of it")
    return begin, begin + len(source)


def _node(value: Any, path: tuple[Any, ...], at: dict[tuple[Any, ...], tuple[int, int]]) -> Node:
    start, end = at.get(path, (-1, -1))
    if isinstance(value, dict):
        members = tuple((key, _node(each, (*path, key), at)) for key, each in value.items())
        return Node(start, end, members=members)
    if isinstance(value, list):
        items = tuple(_node(each, (*path, number), at) for number, each in enumerate(value))
        return Node(start, end, items=items)
    return Node(start, end, value)
