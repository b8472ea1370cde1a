"""Plan the change of one configuration text, and prove that it is the right one.

Pure. Before a change is handed out it is read again: each entry means what it should, everything
else means what it did, and taking the change back gives the text as it was, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from callgate.setup.formats.nodes import Refused, Splice, apply
from callgate.setup.servers import Entry, Path, State, agent_name, entries, unwrap, wrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from callgate.setup.formats.nodes import Format, Node
    from callgate.setup.servers import Gate

BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Server:
    """What becomes of one server."""

    path: Path
    status: str
    """`wrap`, `unwrap`, or the state for which it is left alone."""
    why: str = ""
    agent: str | None = None
    added: str | None = None
    """The text of a list of arguments that a wrap adds."""

    @property
    def name(self) -> str:
        """Return the key of the server."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class Change:
    """A text before and after, and each server in it."""

    before: str
    after: str
    servers: tuple[Server, ...]
    splices: tuple[Splice, ...]
    """In `before` without its byte order mark."""
    value: Any
    """The document, for those who look for secrets in it."""

    @property
    def changed(self) -> tuple[Server, ...]:
        """Return the servers that are changed."""
        return tuple(each for each in self.servers if each.status in {"wrap", "unwrap"})


def decode(data: bytes) -> str:
    """Return the text of a file, its byte order mark with it; raises `Refused`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"not UTF-8: byte {error.start}") from None
    if "\0" in text:
        raise Refused("not UTF-8 text: it has null characters")
    return text


def plan_wrap(text: str, form: Format, places: Sequence[Path], gate: Gate) -> Change:
    """Return the change that puts each open entry behind the gate; raises `Refused`."""
    mark, body = _cut(text)
    root = form.read(body)
    found = list(entries(root, places))
    taken = {entry.agent for entry in found if entry.state is State.WRAPPED and entry.agent}
    servers, splices, expected = [], [], root.value()
    for entry in found:
        if entry.state is not State.OPEN:
            servers.append(Server(entry.path, entry.state, entry.why, entry.agent))
            continue
        project = gate.project or (entry.path[1] if entry.path[0] == "projects" else None)
        agent = agent_name(entry.path[-1], _last(project), taken)
        made = wrap(body, form, entry, gate, agent)
        new = entry.program is not None and entry.args is None
        servers.append(Server(entry.path, "wrap", "", agent, made[-1].text if new else None))
        splices += made
        _expect(expected, entry, [gate.program, *gate.words(agent), *entry.words])
    change = Change(text, mark + apply(body, splices), tuple(servers), tuple(splices), expected)
    _prove(change, form, places)
    return change


def plan_unwrap(
    text: str,
    form: Format,
    places: Sequence[Path],
    added: Mapping[Path, str | None],
    *,
    only_known: bool = False,
) -> Change:
    """Return the change that takes the gate away from each wrapped entry; raises `Refused`.

    `added` has what a wrap noted for each path; `only_known` leaves other entries alone.
    """
    root = form.read(_cut(text)[1])
    change = _unwrap(text, root, form, places, added, only_known=only_known)
    if change.changed:
        form.read(_cut(change.after)[1])
    return change


def _unwrap(
    text: str,
    root: Node,
    form: Format,
    places: Sequence[Path],
    added: Mapping[Path, str | None],
    *,
    only_known: bool,
) -> Change:
    mark, body = _cut(text)
    servers: list[Server] = []
    splices: list[Splice] = []
    for entry in entries(root, places):
        known = entry.path in added
        if entry.state is not State.WRAPPED or (only_known and not known):
            why = entry.why if entry.state is not State.OPEN else "not behind callgate"
            servers.append(Server(entry.path, entry.state, why, entry.agent))
            continue
        splices += unwrap(body, form, entry, added.get(entry.path))
        servers.append(Server(entry.path, "unwrap", "", entry.agent))
    after = mark + apply(body, splices)
    return Change(text, after, tuple(servers), tuple(splices), root.value())


def added_lists(servers: Sequence[Server]) -> dict[Path, str | None]:
    """Return what an undo of these wraps needs."""
    return {each.path: each.added for each in servers if each.status == "wrap"}


def _cut(text: str) -> tuple[str, str]:
    return (BOM, text[1:]) if text.startswith(BOM) else ("", text)


def _last(project: str | None) -> str | None:
    return None if project is None else project.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]


def _expect(value: Any, entry: Entry, words: list[str]) -> None:
    """Change the value of an entry as its text will be changed."""
    for key in entry.path:
        value = value[key]
    if isinstance(value.get("transport"), dict):
        value = value["transport"]
    elif isinstance(value.get("command"), dict):
        value = value["command"]
    key = next(key for key in ("command", "cmd", "path") if key in value)
    if entry.is_list:
        value[key] = words
    else:
        value[key], value["args"] = words[0], words[1:]


def _prove(change: Change, form: Format, places: Sequence[Path]) -> None:
    if not change.changed:
        return
    added = added_lists(change.servers)
    back = _unwrap(
        change.after, form.read(_cut(change.after)[1]), form, places, added, only_known=True
    )
    if back.value != change.value or back.after != change.before:
        raise Refused("it cannot be changed so that only the servers' commands change")
