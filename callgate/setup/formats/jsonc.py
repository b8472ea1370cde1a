"""Read JSON with comments, trailing commas, single quotes and bare keys, keeping positions.

Pure. What a client may accept is read; what is written is plain JSON. A bound on depth stands in
the place of Python's own, whose error is none of ours.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from callgate.setup.formats.nodes import Node, Refused, Splice, line_of, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH: Final = 128
"""Of mappings and lists in each other: far more than any client's settings have."""

_SPACE: Final = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\[^\r\n])*"' + r"|'(?:[^'\\\x00-\x1f]|\\[^\r\n])*'"
)
_WORD: Final = re.compile(r"[\w$+.\-]+")
_NAME: Final = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
_NUMBER: Final = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]+|Infinity|NaN|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
)
_WORDS: Final = {"true": True, "false": False, "null": None}


class Reader:
    """Reads one text from its beginning; `at` is the position of the next token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> Node:
        """Return the one value of the text."""
        self._skip()
        node = self._value(0)
        self._skip()
        if self.at != len(self.text):
            raise self._refused("something stands behind the end")
        return node

    def _value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._refused("nested too deep")
        start = self.text[self.at : self.at + 1]
        if start == "{":
            return self._mapping(depth)
        if start == "[":
            return self._list(depth)
        if not start:
            early = "the file ends too early" if self.text.strip() else "the file is empty"
            raise self._refused(early)
        begin, scalar = self.at, self._scalar()
        return Node(begin, self.at, scalar)

    def _mapping(self, depth: int) -> Node:
        begin, members = self.at, []
        self.at += 1
        while not self._closes("}"):
            key = self._key()
            self._skip()
            self._take(":")
            self._skip()
            members.append((key, self._value(depth + 1)))
            self._separate("}")
        return Node(begin, self.at, members=tuple(members))

    def _list(self, depth: int) -> Node:
        begin, items = self.at, []
        self.at += 1
        while not self._closes("]"):
            items.append(self._value(depth + 1))
            self._separate("]")
        return Node(begin, self.at, items=tuple(items))

    def _closes(self, bracket: str) -> bool:
        self._skip()
        closes = self.text.startswith(bracket, self.at)
        self.at += closes
        return closes

    def _separate(self, bracket: str) -> None:
        self._skip()
        if not self.text.startswith(bracket, self.at):
            self._take(",")

    def _key(self) -> str:
        if self.text[self.at : self.at + 1] in {'"', "'"}:
            return self._string()
        name = _NAME.match(self.text, self.at)
        if name is None:
            raise self._refused("a key was expected")
        self.at = name.end()
        return name[0]

    def _string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise self._refused("a text in quotes does not end")
        source = found[0]
        if source[0] == "'":
            source = '"' + re.sub(r'\\(.)|(")', _requote, source[1:-1]) + '"'
        try:
            decoded = json.loads(source)
        except ValueError:
            raise self._refused("an escape sequence is not one of JSON's") from None
        self.at = found.end()
        return str(decoded)

    def _scalar(self) -> Any:
        if self.text[self.at] in "\"'":
            return self._string()
        found = _WORD.match(self.text, self.at)
        word = found[0] if found else ""
        if word not in _WORDS and not _NUMBER.fullmatch(word):
            raise self._refused("no value can begin like this")
        self.at += len(word)
        if word in _WORDS:
            return _WORDS[word]
        # Only compared with itself, and a float might not be equal to itself.
        return ("number", word)

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _take(self, mark: str) -> None:
        if not self.text.startswith(mark, self.at):
            raise self._refused(f"{mark!r} was expected")
        self.at += len(mark)

    def _refused(self, fault: str) -> Refused:
        return Refused(f"not readable as JSON: line {line_of(self.text, self.at)}: {fault}")


def _requote(found: re.Match[str]) -> str:
    if found[2]:
        return '\\"'
    return "'" if found[1] == "'" else found[0]


class Jsonc:
    """JSON as editors and agents write it."""

    name = "json"

    def read(self, text: str) -> Node:
        return Reader(text).document()

    def literal(self, word: str) -> str:
        return quoted(word)

    def moved(self, text: str, node: Node) -> str:
        return text[node.start : node.end]

    def separator(self, text: str, items: Node) -> str:
        del text, items
        return ", "

    def add_args(self, text: str, program: Node, words: Sequence[str]) -> Splice:
        del text
        return Splice(program.end, program.end, f', "args": [{", ".join(words)}]')
