"""Make a valid `PolicyFile` of a document, or list every problem with its place.

Pure. pydantic says where in the tree; the document says where in the text. Its messages
are not used: they are not written for this file's author, and some repeat the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_origin

from pydantic import ValidationError

from callgate.policy.document import Document, Node, show
from callgate.policy.keys import model_in
from callgate.policy.problems import HIDDEN, MAX_PROBLEMS, SECRET_KEYS, Path, Problem, dotted
from callgate.policy.schema import PolicyFile
from callgate.policy.units import UnitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_too_long": "a shorter text",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "too_short": "at least one item",
}
Secrets = tuple[frozenset[int], frozenset[str]]

_NO_NULL = "a value (leave the key out for its default)"


def validate(document: Document) -> tuple[PolicyFile | None, list[Problem]]:
    """Return the file's content, or None and what is wrong with it."""
    problems = list(_nulls(document.root, ()))
    tree = document.tree()
    if not isinstance(tree, dict):
        line, column = document.position(())
        return None, [Problem("", line, column, show(tree), "a mapping")]
    try:
        policy = PolicyFile.model_validate(tree)
    except ValidationError as error:
        # The details are built lazily by position: a hostile file has 100,000 of them.
        errors = error.errors(include_url=False, include_input=True)
        secrets = document.secrets()
        taken = {(problem.line, problem.column) for problem in problems}
        for index, detail in enumerate(errors):
            problem = _problem(document, detail, secrets, hint=index < MAX_PROBLEMS)
            if (problem.line, problem.column) not in taken:
                problems.append(problem)
        return None, problems
    return (None if problems else policy), problems


def _nulls(node: Node, path: Path) -> Iterator[Problem]:
    """Yield keys without a value. pydantic would take them for "not set"; they may be a slip."""
    items = node.items
    if isinstance(items, dict):
        for name, value in items.items():
            here = (*path, name)
            if value.value is None and not _may_be_empty(here):
                yield Problem(dotted(here), value.line, value.column, "nothing", _NO_NULL)
            elif value.items:
                yield from _nulls(value, here)
    elif isinstance(items, list):
        for index, value in enumerate(items):
            if value.items:
                yield from _nulls(value, (*path, index))


def _may_be_empty(path: Path) -> bool:
    """`agents: {web: }` names an agent that is content with the defaults."""
    return len(path) == len(("agents", "web")) and path[0] in ("agents", "callers")


def _problem(document: Document, detail: Any, secrets: Secrets, *, hint: bool) -> Problem:
    kind: str = detail["type"]
    of_key = detail["loc"][-1:] == ("[key]",)
    path: Path = detail["loc"][:-1] if of_key else detail["loc"]
    context = detail.get("ctx", {})
    by_key = of_key or kind in ("extra_forbidden", "missing")
    node = document.node(path, key=by_key)
    subject = path[-1] if of_key or kind == "extra_forbidden" else detail["input"]
    found, suggestion = show(subject), None
    if kind == "extra_forbidden":
        found, expected = f"the unknown key {found}", "a key that callgate knows"
        suggestion = _nearest(str(path[-1]), _keys_at(path[:-1])) if hint else None
    elif kind == "missing":
        found, expected = "nothing", f"the key `{path[-1]}`"
    elif kind == "literal_error":
        expected = str(context["expected"]).replace("'", "")
        options = expected.replace(" or ", ", ").split(", ")
        suggestion = _nearest(str(detail["input"]), options) if hint else None
    elif isinstance(unit := context.get("error"), UnitError):
        expected, suggestion = unit.expected, unit.suggestion
    else:
        expected = _EXPECTED.get(kind, "another value")
    if path == ("audit",) and kind == "model_type":
        expected = "a mapping, or off"
    if _is_tool(path) and kind == "model_type":
        expected = "deny, allow or a mapping of limits"
    shown = path if by_key else _written(document, path)
    nodes, texts = secrets
    above = path[:-1] if by_key else path
    if SECRET_KEYS.intersection(above) or id(node) in nodes or str(subject) in texts:
        found, suggestion = HIDDEN, None
        shown = path[:-1] if subject is path[-1] else shown
    return Problem(dotted(shown), node.line, node.column, found, expected, suggestion)


def _is_tool(path: Path) -> bool:
    return len(path) == len(("agents", "web", "tools", "search")) and path[2] == "tools"


def _written(document: Document, path: Path) -> Path:
    """Return the path without the `limit` that stands for the short form."""
    if path[-1:] == ("limit",):
        node = document.root
        for part in path[:-1]:
            if not isinstance(node.items, dict) or part not in node.items:
                return path
            node = node.items[str(part)]
        if not isinstance(node.items, dict):
            return path[:-1]
    return path


def _nearest(word: str, options: list[str]) -> str | None:
    import difflib  # noqa: PLC0415  # only who has made a mistake needs it

    near = difflib.get_close_matches(word[:64].lower(), options, n=1, cutoff=0.6)
    return near[0] if near else None


def _keys_at(path: Path) -> list[str]:
    """Return the keys that the schema knows at a path."""
    model: type[BaseModel] | None = PolicyFile
    parts = iter(path)
    for part in parts:
        field = _fields(model).get(str(part))
        model = None if field is None else model_in(field.annotation)
        if field is not None and get_origin(field.annotation) in (dict, list):
            next(parts, None)  # a name or a place in the list
    return list(_fields(model))


def _fields(model: type[BaseModel] | None) -> dict[str, FieldInfo]:
    fields = {} if model is None else model.model_fields
    return {field.alias or name: field for name, field in fields.items()}
