"""Find configurations, prepare their changes and make them.

Nothing is written before `apply`, and what `apply` writes was prepared from bytes that are compared
with the file once more.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callgate.setup import config_file, records
from callgate.setup.clients import CLIENTS, OTHER, Home, Place, home_of, places
from callgate.setup.formats.jsonc import Jsonc
from callgate.setup.formats.nodes import Refused
from callgate.setup.formats.toml import Toml
from callgate.setup.formats.yaml import Yaml
from callgate.setup.plan import Change, added_lists, decode, plan_unwrap, plan_wrap
from callgate.setup.program import NAME, is_gone
from callgate.setup.records import Record, digest
from callgate.setup.servers import Gate, State, entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from callgate.setup.formats.nodes import Format

FORMATS: Final[dict[str, Format]] = {"json": Jsonc(), "toml": Toml(), "yaml": Yaml()}
_SUFFIXES: Final = {
    ".json": "json",
    ".jsonc": "json",
    ".json5": "json",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One file and what would become of it."""

    place: Place
    found: config_file.Found | None = None
    form: str = "json"
    change: Change | None = None
    after: bytes = b""
    refused: str | None = None
    """Why the file is left as it is."""

    @property
    def changes(self) -> bool:
        """Tell whether there is anything to write."""
        return self.found is not None and self.after != self.found.data


def this_home() -> Home:
    """Return where the files of this process's user are."""
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.expanduser raises where there is none
    return home_of(sys.platform, home, os.environ)


def find_places(home: Home, project: str | None, names: Sequence[str] = ()) -> Iterator[Place]:
    """Yield the files that exist, each once; `names` are the clients that are wanted."""
    seen = set()
    for place in places(home, project):
        if names and place.client.name not in names:
            continue
        for path in _matching(place.path):
            real = os.path.realpath(path)
            if os.path.lexists(path) and real not in seen:
                seen.add(real)
                yield Place(place.client, path, place.project)


def _matching(path: str) -> list[str]:
    """Return the path, or where it has a `*` for one part, all paths that are there."""
    folder, wild, rest = path.partition("/*/")
    return sorted(map(str, Path(folder).glob(f"*/{rest}"))) if wild else [path]


def form_of(path: str) -> str:
    """Return the name of a file's format; raises `Refused`."""
    form = _SUFFIXES.get(Path(path).suffix.lower())
    if form is None:
        known = ", ".join(_SUFFIXES)
        raise Refused(f"its format is not known by its name; known are {known}")
    return form


def prepare_wrap(place: Place, program: str, policy: str | None) -> Job:
    """Return what wrapping the servers of a file would change."""
    project = place.project
    gate = Gate(program, policy) if project is None else Gate(NAME, policy, project)
    try:
        found, form, text = _read(place)
        change = plan_wrap(text, FORMATS[form], place.client.keys, gate)
    except Refused as error:
        return Job(place, refused=str(error))
    if not change.servers and place.client is OTHER:
        return Job(place, refused="no servers were found in it, in any shape that is known")
    return Job(place, found, form, change, change.after.encode())


def prepare_unwrap(place: Place) -> Job:
    """Return what taking the gate away from all servers of a file would change."""
    try:
        found, form, text = _read(place)
        record = records.load(found.path)
        keys = place.client.keys if record is None else record.places
        added = {} if record is None else dict(record.added)
        change = plan_unwrap(text, FORMATS[form], keys, added)
    except Refused as error:
        return Job(place, refused=str(error))
    return Job(place, found, form, change, change.after.encode())


def prepare_undo(record: Record) -> Job:
    """Return what undoing our changes of a file would change.

    The whole file comes back only if it is as we left it; else each entry of ours is taken back,
    and what was added or removed since stays so.
    """
    client = next((each for each in CLIENTS if each.name == record.client), OTHER)
    place = Place(client, record.path)
    try:
        found, form, text = _read(place, record.form)
        added = dict(record.added)
        change = plan_unwrap(text, FORMATS[form], record.places, added, only_known=True)
    except Refused as error:
        return Job(place, refused=str(error))
    ours = digest(found.data) == record.after_hash
    return Job(place, found, form, change, record.before if ours else change.after.encode())


def _read(place: Place, form: str | None = None) -> tuple[config_file.Found, str, str]:
    try:
        found = config_file.read(Path(place.path).absolute())
    except FileNotFoundError:
        raise Refused("there is no such file") from None
    root = place.project and os.path.realpath(place.project)
    if root and not found.path.is_relative_to(root):
        # Whoever wrote the project made this link, whoever's it is after a checkout.
        raise Refused(f"a link of the project that leads out of it, to {found.path}")
    return found, form or form_of(place.path), decode(found.data)


def apply(job: Job) -> None:
    """Make a change of `prepare_wrap`, with its record before it; raises `Refused`."""
    if job.found is None or job.change is None:
        return
    path, keys = job.found.path, job.place.client.keys
    old = records.load(path)
    added = (dict(old.added) if old is not None else {}) | added_lists(job.change.servers)
    form = FORMATS[job.form]
    clean = job.found.data
    if old is not None:
        clean = plan_unwrap(decode(job.after), form, keys, added, only_known=True).after.encode()
    record = Record(
        str(path),
        job.place.client.name,
        job.form,
        list(keys),
        clean,
        digest(clean),
        digest(job.after),
        list(added.items()),
    )
    records.save(record)
    try:
        config_file.replace(job.found, job.after)
    except Refused:
        if _digest_now(path) != record.after_hash:
            records.forget(path) if old is None else records.save(old)
        raise


def apply_undo(job: Job) -> None:
    """Make a change of `prepare_unwrap` or `prepare_undo`; raises `Refused`."""
    if job.found is None:
        return
    if job.changes:
        config_file.replace(job.found, job.after)
    records.forget(job.found.path)


def _digest_now(path: Path) -> str | None:
    try:
        return digest(config_file.read(path).data)
    except (Refused, FileNotFoundError):
        return None


@dataclass(frozen=True, slots=True)
class Gone:
    """A wrapped entry whose `callgate` program cannot be started any more."""

    client: str
    file: str
    server: str
    program: str


def find_gone(home: Home, project: str | None) -> Iterator[Gone]:
    """Yield the wrapped servers that cannot start, for `doctor`; pass over unreadable files."""
    for place in find_places(home, project):
        try:
            _found, form, text = _read(place)
            root = FORMATS[form].read(text.removeprefix("\ufeff"))
            found = list(entries(root, place.client.keys))
        except Refused:
            continue
        for entry in found:
            if entry.state is State.WRAPPED and is_gone(entry.words[0]):
                yield Gone(place.client.title, place.path, entry.path[-1], entry.words[0])
