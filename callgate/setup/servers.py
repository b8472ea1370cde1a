"""Say what each server's entry of a configuration is, and how it is wrapped and unwrapped.

Pure. A wrapped entry starts `callgate run --agent NAME [--policy FILE] -- COMMAND ARGS…`. Wrapping
puts our words before the first argument and moves the command's source text behind them, not a
decoded copy: `${input:token}` and an escaped character stay as they are. So unwrapping needs no
memory, but for one thing: whether there was a list of arguments before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from callgate.setup.formats.nodes import Node, Refused, Splice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from callgate.setup.formats.nodes import Format

Path = tuple[str, ...]

ANY: Final = "*"
"""In a path of keys: each key."""

_COMMANDS: Final = ("command", "cmd", "path")
_ADDRESSES: Final = frozenset({"url", "serverUrl", "httpUrl", "uri"})
_OFF: Final = {"disabled": True, "enabled": False, "active": False}
_SANDBOXED: Final = {"sandboxEnabled": True}
_OURS: Final = frozenset({"callgate", "callgate.exe"})
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")
MAX_NAME: Final = 120
"""A policy's agent names may have 128 characters; a number may have to be added."""


class State(StrEnum):
    """What an entry is, before anything is done."""

    OPEN = "open"
    """It starts a server without the gate."""
    WRAPPED = "wrapped"
    REMOTE = "remote"
    DISABLED = "disabled"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Entry:
    """One server of a configuration."""

    path: Path
    state: State
    why: str = ""
    program: Node | None = None
    args: Node | None = None
    """The list of arguments; where the command is a list, that list."""
    words: tuple[str, ...] = ()
    """The program and its arguments."""

    @property
    def is_list(self) -> bool:
        """Tell whether the command is a list that begins with the program."""
        return self.program is None

    @property
    def agent(self) -> str | None:
        """Return the agent that a wrapped entry names."""
        ours = self.words[: self.words.index("--")] if "--" in self.words else self.words
        named = [ours[at + 1] for at, word in enumerate(ours[:-1]) if word == "--agent"]
        return named[0] if named else None


@dataclass(frozen=True, slots=True)
class Gate:
    """What is put before a server's command."""

    program: str
    policy: str | None = None
    project: str | None = None
    """The project whose file it is; servers of a project are other agents than the user's."""

    def words(self, agent: str) -> list[str]:
        """Return our arguments, up to where the server's command begins."""
        policy = [] if self.policy is None else ["--policy", self.policy]
        return ["run", "--agent", agent, *policy, "--"]


def entries(root: Node, places: Sequence[Path]) -> Iterator[Entry]:
    """Yield the servers below each of `places`, each once."""
    containers = {path for place in places for path, _node in _containers(root, place, ())}
    for place in places:
        for path, node in _containers(root, place, ()):
            for name, each in node.members or ():
                node.member(name)
                if (*path, name) not in containers:
                    yield read_entry((*path, name), each)


def _containers(node: Node, place: Path, path: Path) -> Iterator[tuple[Path, Node]]:
    if not place:
        if node.members is not None:
            yield path, node
        return
    if place[0] != ANY:
        found = node.member(place[0])
        if found is not None:
            yield from _containers(found, place[1:], (*path, place[0]))
        return
    for name, each in node.members or ():
        node.member(name)
        yield from _containers(each, place[1:], (*path, name))


def read_entry(path: Path, node: Node) -> Entry:
    """Return what one entry is."""
    if node.members is None:
        return Entry(path, State.UNCLEAR, "it is not a mapping")
    inner = node
    for key in ("transport", "command"):
        nested = node.member(key)
        if nested is not None and nested.members is not None:
            inner = nested
            break
    program = next((found for key in _COMMANDS if (found := inner.member(key)) is not None), None)
    entry = Entry(path, State.UNCLEAR, "it has no command of its own")
    if program is not None:
        entry = _read_command(path, program, inner.member("args"))
    if entry.state is State.WRAPPED:
        return entry
    if _ADDRESSES & {key for key, _value in node.members}:
        return Entry(path, State.REMOTE, "a remote server; no process is started")
    if entry.state is State.OPEN and _is_set(node, _OFF):
        return Entry(path, State.DISABLED, "disabled; enable it and run this again")
    if entry.state is State.OPEN and _is_set(node, _SANDBOXED):
        why = "its client's sandbox would hold callgate, too, and its audit could not be written"
        return Entry(path, State.UNCLEAR, why)
    return entry


def _is_set(node: Node, switches: Mapping[str, bool]) -> bool:
    return any(
        found.scalar is value
        for key, value in switches.items()
        if (found := node.member(key)) is not None
    )


def _read_command(path: Path, program: Node, args: Node | None) -> Entry:
    if program.items is not None:
        words, program_node, args = program.words(), None, program
    elif isinstance(program.scalar, str):
        rest = [] if args is None else args.words()
        words, program_node = None if rest is None else [program.scalar, *rest], program
    else:
        words, program_node = None, None
    if not words or not words[0]:
        return Entry(path, State.UNCLEAR, "its command or arguments are not texts")
    state, why = State.OPEN, ""
    if _mentions_us(words):
        state, why = State.WRAPPED, "already behind callgate"
    elif len(words) == 1 and " " in words[0] and words[0][0] not in "/~$":
        return Entry(path, State.UNCLEAR, "program and arguments in one text: write `args`")
    return Entry(path, state, why, program_node, args, tuple(words))


def _mentions_us(words: Sequence[str]) -> bool:
    return any(_base(one) in _OURS and other == "run" for one, other in pairwise(words))


def _base(word: str) -> str:
    return re.split(r"[/\\]", word)[-1].lower()


def agent_name(key: str, project: str | None, taken: set[str]) -> str:
    """Return the agent's name for a key, which a policy and a command line can have; take it."""
    given = key if project is None else f"{project}.{key}"
    # A name with a dash at its beginning would be read as an option.
    name = base = _NOT_IN_NAMES.sub("-", given).lstrip("-")[:MAX_NAME] or "agent"
    number = 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    taken.add(name)
    return name


def wrap(text: str, form: Format, entry: Entry, gate: Gate, agent: str) -> list[Splice]:
    """Return the splices that put an open entry behind the gate."""
    ours = [form.literal(word) for word in gate.words(agent)]
    program = form.literal(gate.program)
    if entry.program is None:
        return [_before_first(text, form, _list(entry), [program, *ours])]
    moved = [*ours, form.moved(text, entry.program)]
    splices = [Splice(entry.program.start, entry.program.end, program)]
    if entry.args is None:
        return [*splices, form.add_args(text, entry.program, moved)]
    return [*splices, _before_first(text, form, entry.args, moved)]


def _list(entry: Entry) -> Node:
    if entry.args is None or entry.args.items is None:
        raise Refused("its arguments are not a list")
    return entry.args


def _before_first(text: str, form: Format, items: Node, words: Sequence[str]) -> Splice:
    separator = form.separator(text, items)
    if not items.items:
        return Splice(items.start + 1, items.start + 1, separator.join(words))
    first = items.items[0].start
    gap = separator
    if separator == ", ":
        blank = text[items.start + 1 : first]
        gap = f",{blank if blank.isspace() else ' '}"
    return Splice(first, first, separator.join(words) + gap)


def unwrap(text: str, form: Format, entry: Entry, added: str | None) -> list[Splice]:
    """Return the splices that take the gate away; `added` is the text of a list we added."""
    items = _list(entry).items or ()
    words = entry.words[1:] if entry.program is not None else entry.words
    own = 0 if entry.program is not None else 1
    starts_us = bool(entry.words) and _base(entry.words[0]) in _OURS
    if not starts_us or words[own : own + 1] != ("run",) or "--" not in words[:-1]:
        raise Refused(f"{entry.path[-1]!r}: wrapped in a way that is not ours; change it by hand")
    behind = words.index("--") + 1  # the place of the server's command
    if entry.program is None:
        return [Splice(items[0].start, items[behind].start, "")]
    back = form.moved(text, items[behind])
    splices = [Splice(entry.program.start, entry.program.end, back)]
    whole = _added_at(text, added, entry)
    if whole is not None:
        return [*splices, whole]
    rest = items[behind + 1].start if len(items) > behind + 1 else items[behind].end
    return [*splices, Splice(items[0].start, rest, "")]


def _added_at(text: str, added: str | None, entry: Entry) -> Splice | None:
    """Return the splice that takes out a list which we added and nobody has changed since."""
    if not added or entry.program is None or entry.args is None:
        return None
    begin = text.find(added, entry.program.end)
    inside = begin >= 0 and begin <= entry.args.start < begin + len(added)
    return Splice(begin, begin + len(added), "") if inside else None
