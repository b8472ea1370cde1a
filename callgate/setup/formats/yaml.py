"""Read YAML by PyYAML's nodes, whose marks are exact positions.

Pure. Entries that use anchors, tags or texts over several lines are refused: a splice there may
change what the rest of the file means.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from callgate.setup.formats.nodes import Node, Refused, Splice, end_of_line, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN: Final = re.compile(r"[A-Za-z_./@~][\w./@+~\-]*")
_WORDS: Final = re.compile(r"(?i:y|n|yes|no|on|off|true|false|null|~|\.nan|\.inf)")
_DASH: Final = re.compile(r"([ \t]*)-([ ]+)")
_KEY: Final = re.compile(r"([ ]*(?:-[ ]+)?)(?:command|cmd):[ ]+")
MAX_DEPTH: Final = 64


class Yaml:
    """YAML, as Continue, Goose and LibreChat have it."""

    name = "yaml"

    def read(self, text: str) -> Node:
        import yaml  # noqa: PLC0415  # only who has a YAML file pays for it

        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            if any(isinstance(t, yaml.AliasToken) for t in yaml.scan(text, Loader=yaml.SafeLoader)):
                raise Refused("YAML with aliases is not changed: one text may stand for several")
        except (yaml.YAMLError, RecursionError) as error:
            raise Refused(f"not readable as YAML: {' '.join(str(error).split())}") from None
        if root is None:
            raise Refused("the file is empty")
        return _node(root, 0)

    def literal(self, word: str) -> str:
        return quoted(word)

    def moved(self, text: str, node: Node) -> str:
        source = text[node.start : node.end]
        plain = _PLAIN.fullmatch(source) is not None and _WORDS.fullmatch(source) is None
        if plain or (source[:1] in {'"', "'"} and "\n" not in source):
            return source
        raise Refused(
            f"line {text.count(chr(10), 0, node.start) + 1}: put the command in quotes; "
            "as it stands it cannot be moved into a list safely"
        )

    def separator(self, text: str, items: Node) -> str:
        if text[items.start : items.start + 1] == "[":
            return ", "
        first = (items.items or (items,))[0]
        begin = text.rfind("\n", 0, first.start) + 1
        dash = _DASH.fullmatch(text, begin, first.start)
        if dash is None:
            raise Refused("the list of arguments does not stand on lines of its own")
        return f"{end_of_line(text, first.start)[1]}{dash[1]}-{dash[2]}"

    def add_args(self, text: str, program: Node, words: Sequence[str]) -> Splice:
        given = f"args: [{', '.join(words)}]"
        key = _KEY.fullmatch(text, text.rfind("\n", 0, program.start) + 1, program.start)
        if key is None:
            return Splice(program.end, program.end, f", {given}")
        at, feed = end_of_line(text, program.end)
        return Splice(at, at, f"{feed}{' ' * len(key[1])}{given}")


def _node(node: Any, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise Refused("nested too deep")
    start, end = node.start_mark.index, node.end_mark.index
    if node.id == "mapping":
        members = tuple((str(key.value), _node(each, depth + 1)) for key, each in node.value)
        return Node(start, end, members=members)
    if node.id == "sequence":
        return Node(start, end, items=tuple(_node(each, depth + 1) for each in node.value))
    return Node(start, end, _scalar(node))


def _scalar(node: Any) -> Any:
    """Return a text, True or False; of everything else its tag and source text."""
    kind = node.tag.rpartition(":")[2]
    if kind == "bool":
        return str(node.value).lower() in {"true", "yes", "on"}
    return node.value if kind == "str" else (kind, node.value)
