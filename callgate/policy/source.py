"""Read YAML text as a `Document`, or list every problem of its form.

Pure. Built on the parser's events rather than on PyYAML's constructors, because a policy
must mean what it says:

- scalars follow the YAML 1.2 core schema, narrowed: null, true, false, decimal numbers;
  `010`, `1:30` and `2024-01-01` stay text and are refused where a number is wanted;
- `yes`, `no`, `on`, `off`, `y`, `n` as values are errors, since readers disagree on them
  (as keys they are names: `restart: {on: failure}`), but for `mode: off` and `audit: off`;
- duplicate keys, merge keys, tags, several documents and keys that are not text are errors.

Bounded: size, depth and the number of nodes *after* expanding aliases are checked while
reading, before anything is expanded, so a billion laughs cost as little as one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from callgate.policy.document import Document, Node, show
from callgate.policy.problems import HIDDEN, SECRET_KEYS, Problem, dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SOURCE_BYTES = 1024 * 1024
"""A policy of a thousand agents is about 300 KiB."""
MAX_NODES = 100_000
"""About what 1 MiB of honest YAML holds."""
MAX_DEPTH = 32
"""The schema needs 8."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,14})\.[0-9]{1,15}")
_BOOLEANS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True}
_BOOLEANS |= {"FALSE": False}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_YAML_1_1 = {"y": "true", "yes": "true", "on": "true", "n": "false", "no": "false", "off": "false"}

_MAY_BE_OFF = ("audit", "mode")
"""Keys one of whose words is `off`."""


class _Reader:
    """One pass over the events; `problems` collects what does not stop the pass."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self._anchors: dict[str, Node] = {}
        self._open: list[tuple[Node, str | None]] = []
        self._path: list[str | int] = []
        self._pending: list[Node | None] = []
        """For each open mapping the key that waits for its value."""
        self._documents = 0
        self._nodes = 0

    def feed(self, event: Any) -> bool:
        """Take one event; False ends the pass, because going on would not be bounded."""
        mark = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self.report(line, column, "a second document", "one document in a file")
                return False
        elif isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, line, column)
        elif isinstance(event, yaml.ScalarEvent):
            self._tag(event, line, column)
            plain = not event.style and event.tag is None  # "" in libyaml, None in Python
            node = Node(event.value, line, column, plain=plain)
            return self._add(node, event.anchor)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._tag(event, line, column)
            is_map = isinstance(event, yaml.MappingStartEvent)
            return self._start(Node({} if is_map else [], line, column), event.anchor)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            return self._end()
        return True

    def report(
        self, line: int, column: int, found: str, expected: str, suggestion: str | None = None
    ) -> None:
        """Keep a problem of the part that is being read."""
        path = dotted(tuple(self._path))
        self.problems.append(Problem(path, line, column, found, expected, suggestion))

    def _shown(self, text: str) -> str:
        return HIDDEN if SECRET_KEYS.intersection(self._path) else show(text)

    def _tag(self, event: Any, line: int, column: int) -> None:
        # `!` alone and tags such as !!python/object build objects elsewhere; here they are
        # refused, also the harmless ones: nothing in a policy needs them.
        if event.tag is not None:
            self.report(line, column, "a tag (!…)", "a plain value without a tag")

    def _start(self, node: Node, anchor: str | None) -> bool:
        if len(self._open) >= MAX_DEPTH:
            self.report(node.line, node.column, "deeper nesting", f"at most {MAX_DEPTH} levels")
            return False
        if self._key_expected():
            self.report(node.line, node.column, "a list or mapping as a key", "text as a key")
            return False
        node.items = {} if isinstance(node.value, dict) else []
        self._open.append((node, anchor))
        self._pending.append(None)
        return True

    def _end(self) -> bool:
        node, anchor = self._open.pop()
        self._pending.pop()
        return self._add(node, anchor)

    def _alias(self, anchor: str | None, line: int, column: int) -> bool:
        node = self._anchors.get(anchor or "")
        if node is None:  # also inside its own anchor: a tree has no cycles
            self.report(line, column, "an alias without an anchor before it", "an anchor (&…)")
            return False
        if len(self._open) + node.height > MAX_DEPTH:
            self.report(line, column, "deeper nesting", f"at most {MAX_DEPTH} levels")
            return False
        return self._add(node, None, at=(line, column))

    def _key_expected(self) -> bool:
        return (
            bool(self._open)
            and isinstance(self._open[-1][0].items, dict)
            and self._pending[-1] is None
        )

    def _add(self, node: Node, anchor: str | None, at: tuple[int, int] | None = None) -> bool:
        line, column = at or (node.line, node.column)
        self._nodes += node.size if at else 1
        if self._nodes > MAX_NODES:
            self.report(line, column, "more values", f"at most {MAX_NODES} after aliases")
            return False
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self._resolve(node)
            self.root = node
            return True
        if self._key_expected():
            self._pending[-1] = node
            self._path.append(node.value if isinstance(node.value, str) else "")
            self._check_key(node)
            return True
        return self._attach(node)

    def _attach(self, node: Node) -> bool:
        parent = self._open[-1][0]
        parent.size += node.size
        parent.height = max(parent.height, node.height + 1)
        if isinstance(parent.items, list):
            self._resolve(node)
            parent.items.append(node)
            parent.value.append(node.value)
            return True
        key = self._pending[-1]
        self._pending[-1] = None
        if key is not None and isinstance(parent.items, dict):
            self._resolve(node, under=key.value)
            self._path.pop()
            name = key.value if isinstance(key.value, str) else str(key.value)
            if name not in parent.items:
                parent.items[name] = node
                parent.keys[name] = key
                parent.value[name] = node.value
        return True

    def _check_key(self, key: Node) -> None:
        parent = self._open[-1][0]
        if key.plain and key.value == "<<":
            expected = "an alias as the whole value, or `defaults`"
            self.report(key.line, key.column, "a merge key (<<)", expected)
        elif key.plain and not isinstance(_scalar(key.value), str):
            found = f"the key {self._shown(key.value)} without quotes"
            self.report(key.line, key.column, found, "text as a key, in quotes")
        elif not isinstance(key.value, str):
            self.report(key.line, key.column, "a key that is no text", "text as a key")
        elif key.value in parent.keys:
            first = parent.keys[key.value]
            expected = f"each key once (it stands in line {first.line} too)"
            self.report(key.line, key.column, "a duplicate key", expected)

    def _resolve(self, node: Node, under: object = None) -> None:
        """Give a plain scalar its value, once; the words of YAML 1.1 have none."""
        if not node.plain:
            return
        node.plain = False
        word = node.value
        meant = _YAML_1_1.get(word.lower())
        # These are words of this schema and cannot be read as a boolean.
        if meant is not None and not (under in _MAY_BE_OFF and word == "off"):
            found = f"{self._shown(word)} without quotes"
            expected = f"{meant} for the boolean, or the text in quotes"
            hint = None if SECRET_KEYS.intersection(self._path) else meant
            self.report(node.line, node.column, found, expected, hint)
        node.value = _scalar(word)


def read(text: str) -> tuple[Document | None, list[Problem]]:
    """Return the document, and every problem of form; None if reading had to stop."""
    if len(text) > MAX_SOURCE_BYTES or len(text.encode(errors="replace")) > MAX_SOURCE_BYTES:
        return None, [too_large(MAX_SOURCE_BYTES)]
    text = text.removeprefix("\ufeff")
    if bad := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        found = f"the character U+{ord(bad[0]):04X}"
        return None, [Problem("", line, column, found, "printable characters")]
    reader = _Reader()
    try:
        whole = all(reader.feed(event) for event in _events(text))
    except yaml.YAMLError as error:
        reader.problems.append(_syntax(error))
        return None, reader.problems
    if not whole:
        return None, reader.problems
    if reader.root is None or reader.root.value is None:
        expected = "a policy, at the least `version: 1`"
        return None, [Problem("", 1, 1, "nothing", expected)]
    return Document(reader.root), reader.problems


def decode(data: bytes) -> str | Problem:
    """Return the text of a file, or why it is none. Read at most one byte over the limit."""
    if len(data) > MAX_SOURCE_BYTES:
        return too_large(MAX_SOURCE_BYTES)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode()) + 1
        return Problem("", line, column, "a byte that is not UTF-8", "UTF-8 text")


def too_large(limit: int) -> Problem:
    """Return the problem of a file over its limit."""
    return Problem("", 1, 1, f"more than {limit} bytes", f"a file of at most {limit} bytes")


def _events(text: str) -> Iterator[Any]:
    return iter(yaml.parse(text, Loader=_LOADER))


def _scalar(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _syntax(error: yaml.YAMLError) -> Problem:
    """Return the parser's complaint without the file's words, which may be a secret's."""
    mark = getattr(error, "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    what = str(getattr(error, "problem", None) or "text that is not YAML")
    what = re.sub(r"'[^']{2,}'|\"[^\"]{2,}\"", "…", what)
    return Problem("", line, column, f"a syntax error ({what})", "YAML")
