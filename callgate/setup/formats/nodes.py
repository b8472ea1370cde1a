"""Nodes of a configuration text with their positions, and splices at such positions.

Pure. No format is written anew: a change is a few splices, so every byte that is not ours stays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Refused(Exception):
    """Raised when a file cannot be changed safely; the text is the reason, for its user."""


@dataclass(frozen=True, slots=True)
class Node:
    """One value: a scalar, a list or a mapping. `start` is -1 where no position is known."""

    start: int
    end: int
    scalar: Any = None
    items: tuple[Node, ...] | None = None
    members: tuple[tuple[str, Node], ...] | None = None

    def value(self) -> Any:
        """Return the value as Python has it; of a duplicate key the last one counts."""
        if self.items is not None:
            return [item.value() for item in self.items]
        if self.members is not None:
            return {key: node.value() for key, node in self.members}
        return self.scalar

    def member(self, key: str) -> Node | None:
        """Return the value of `key`, None if there is none; raises `Refused` for a duplicate."""
        found = [node for name, node in self.members or () if name == key]
        if len(found) > 1:
            raise Refused(f"the key {key!r} stands there twice")
        return found[0] if found else None

    def words(self) -> list[str] | None:
        """Return the texts of a list that has only texts; else None."""
        if self.items is None:
            return None
        words = [item.scalar for item in self.items]
        return words if all(isinstance(word, str) for word in words) else None


@dataclass(frozen=True, slots=True)
class Splice:
    """Put `text` in the place of `start` to `end`."""

    start: int
    end: int
    text: str


class Format(Protocol):
    """A configuration format: how it is read, and how a list is added to a mapping."""

    name: str

    def read(self, text: str) -> Node:
        """Return the root; raises `Refused` for a text that cannot be read."""
        ...

    def literal(self, word: str) -> str:
        """Return a text as this format writes it in a list."""
        ...

    def moved(self, text: str, node: Node) -> str:
        """Return a scalar's source text, to stand in a list; raises `Refused` if it cannot."""
        ...

    def separator(self, text: str, items: Node) -> str:
        """Return what stands between two new items before the first of `items`."""
        ...

    def add_args(self, text: str, program: Node, words: Sequence[str]) -> Splice:
        """Return the splice that adds `args` with these literals beside the command."""
        ...


def apply(text: str, splices: Sequence[Splice]) -> str:
    """Return `text` with all splices made; raises `Refused` if two of them overlap."""
    parts, at = [], 0
    for splice in sorted(splices, key=lambda each: (each.start, each.end)):
        if splice.start < at:
            raise Refused("two entries stand in the same place of the file")
        parts += [text[at : splice.start], splice.text]
        at = splice.end
    return "".join([*parts, text[at:]])


def quoted(word: str) -> str:
    """Return a text in double quotes, as JSON, TOML and YAML all read it."""
    return json.dumps(word, ensure_ascii=False).replace("\x7f", "\\u007f")


def line_of(text: str, at: int) -> int:
    """Return the number of the line that a position is in, from 1."""
    return text.count("\n", 0, at) + 1


def end_of_line(text: str, at: int) -> tuple[int, str]:
    """Return where the line of a position ends, and with which characters (or the file's)."""
    feed = text.find("\n", at)
    if feed < 0:
        return len(text), "\r\n" if "\r\n" in text else "\n"
    return (feed - 1, "\r\n") if text[feed - 1 : feed] == "\r" else (feed, "\n")
