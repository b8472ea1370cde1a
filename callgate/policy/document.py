"""A plain tree in which every key and value knows its line and column. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from callgate.policy.problems import SECRET_KEYS
from callgate.text import quoted

if TYPE_CHECKING:
    from callgate.policy.problems import Path

_SHOWN_CHARS = 60


class Node:
    """A scalar, list or mapping where it was written; an alias is the same node again."""

    __slots__ = ("column", "height", "items", "keys", "line", "plain", "size", "value")

    def __init__(self, value: Any, line: int, column: int, *, plain: bool = False) -> None:
        self.value = value
        self.line = line
        self.column = column
        self.plain = plain
        """A scalar without quotes."""
        self.items: list[Node] | dict[str, Node] | None = None
        self.keys: dict[str, Node] = {}
        self.size = 1
        self.height = 1


class Document:
    """The tree, and where each part of it stands."""

    __slots__ = ("root",)

    def __init__(self, root: Node) -> None:
        self.root = root

    @classmethod
    def of(cls, tree: Any) -> Self:
        """Return a tree that nobody wrote: all of it stands in the first line."""
        return cls(_unwritten(tree))

    def tree(self) -> Any:
        """Return plain Python; what was aliased is shared, not copied."""
        return self.root.value

    def node(self, path: Path, *, key: bool = False) -> Node:
        """Return the value at a path, or its key; the nearest that exists."""
        node = found = self.root
        for part in path:
            items = node.items
            if isinstance(items, dict) and isinstance(part, str) and part in items:
                name, node = node.keys[part], items[part]
                found = name if key else node
            elif isinstance(items, list) and isinstance(part, int) and part < len(items):
                found = node = items[part]
            else:
                break
        return found

    def position(self, path: Path, *, key: bool = False) -> tuple[int, int]:
        """Return line and column of `node`."""
        node = self.node(path, key=key)
        return node.line, node.column

    def secrets(self) -> tuple[frozenset[int], frozenset[str]]:
        """Return what no error may show: nodes under secret keys, and texts of tokens.

        An alias carries a node to another place; a token may also be written twice.
        """
        nodes: set[int] = set()
        texts: set[str] = set()
        seen: set[tuple[int, bool, bool]] = set()
        stack = [(self.root, False, False)]
        while stack:
            node, secret, token = stack.pop()
            if (id(node), secret, token) in seen:
                continue
            seen.add((id(node), secret, token))
            if secret:
                nodes.add(id(node))
            if isinstance(node.items, dict):
                nodes.update(id(key) for key in node.keys.values() if secret)
                stack += [
                    (item, secret or name in SECRET_KEYS, token or name == "token")
                    for name, item in node.items.items()
                ]
            elif isinstance(node.items, list):
                stack += [(item, secret, token) for item in node.items]
            elif token and not str(node.value).startswith("env:"):
                texts.add(str(node.value))
        return frozenset(nodes), frozenset(texts)


def show(value: object) -> str:
    """Return a value as an error may show it: short, and only what is no structure."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if len(text) > _SHOWN_CHARS:
        return f"a text of {len(text)} characters"
    text = quoted(text)
    return f'"{text}"' if isinstance(value, str) else text


def _unwritten(value: Any) -> Node:
    node = Node(value, 1, 1)
    if isinstance(value, dict):
        node.items = {name: _unwritten(each) for name, each in value.items()}
        node.keys = {name: Node(name, 1, 1) for name in value}
    elif isinstance(value, list):
        node.items = [_unwritten(each) for each in value]
    return node
