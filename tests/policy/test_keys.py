"""One table of keys: each has its row, everybody reads it from there, nobody has another."""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import pytest

from callgate.cli.reference import json_schema, markdown
from callgate.model import AuditSpec, GateSpec, LaneSpec, ResourceLimits
from callgate.policy import Policy
from callgate.policy.fields import Key, Limit
from callgate.policy.keys import KEYS, PROFILES, Entry, entries, key_of, model_in
from callgate.policy.schema import AgentPolicy, Audit, CallerPolicy, PolicyFile, ToolPolicy
from tests.policy.helpers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

PACKAGE = ROOT / "callgate"
TABLE = "policy/schema.py"

NAMES_A_KEY = {
    "policy/checks.py": {
        # warnings about keys that mean something to each other
        *("deny", "launcher", "max_timeout", "queue", "rate", "timeout", "token"),
        *("cpu", "containment.cpu"),
    },
    "policy/compile_launch.py": {
        # settings of a launch, no limits: each becomes something of its own
        *("containment.allow_degraded", "containment.level", "containment.monitor_interval"),
        *("containment.exec", "containment.cgroup_parent", "containment.kill_grace"),
        *("containment.mounts", "env.pass", "env.secret", "launcher", "protocol"),
        *("restart.backoff", "restart.max", "restart.on"),
    },
    "policy/compile_limits.py": {"deny", "isolate"},  # a word becomes a yes or no
    "policy/contained.py": {"launcher", "pass"},  # a part of the table
    "policy/document.py": {"token"},  # whose text no error shows
    "policy/explain.py": {"deny", "max_timeout", "timeout", "launcher"},  # how a default is lowered
    "policy/fields.py": {"deny", "launcher"},  # words of `on_limit` and of `by`
    "policy/manifest.py": {
        # what keys of other programs mean here
        *("concurrency", "max_timeout", "rate", "timeout"),
        *("containment.cpu", "containment.disk", "containment.memory", "containment.pids"),
        "containment.connections",
    },
    "policy/policy.py": {"command", "files"},  # who launches needs one; a slot's name
    "policy/problems.py": {"command", "token"},  # what no error shows
    "policy/resolve.py": {"deny", "queue"},  # a word of `on_limit`; who would wait in shadow
    "policy/source.py": {"on"},  # a boolean of YAML 1.1
    "policy/units.py": {"bandwidth", "rate"},  # kinds of values
    "cli/app.py": {"exec", "pass"},  # a command, the word of an option
    "cli/explain_plan.py": {"launcher"},  # who shows no plan
    "cli/reference.py": {"mounts", "rate"},  # how the page writes them
}
"""Module → the keys that it names, and why it must. A list of keys is none of the reasons."""

READS_MAX_TIMEOUT = {
    *(TABLE, "policy/checks.py", "policy/explain.py", "policy/manifest.py"),
    *("model.py", "router/lanes.py", "router/refusals.py"),  # the compiled member, enforced
}


def fields(model: type[BaseModel] = PolicyFile, path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field below a model, by its path; of a limit its short form and its parts."""
    for name, field in model.model_fields.items():
        here, inner = f"{path}{field.alias or name}", model_in(field.annotation)
        if name != "limit":
            yield here, field
        if inner is not None:
            yield from fields(inner, f"{here}.")


FIELDS = dict(fields())


def a_value(entry: Entry, field: FieldInfo) -> Any:
    """Something that may be written for a key."""
    kinds = (field.annotation, *get_args(field.annotation))
    for kind in kinds:
        if get_origin(kind) is Literal:
            return get_args(kind)[-1]
    if bool in kinds:
        return True
    if entry.name == "cgroup_parent":
        return "/sys/fs/cgroup/agents"
    by_kind = {
        "duration": "9s",
        "size": "9Mi",
        "processors": "900m",
        "bandwidth": "9Mbps",
        "rate": "9/minute",
        "range": "9s..90s",
        "count": 9,
        "`env:NAME`": "env:BOT",
        "list": [{"path": "a"}] if entry.name == "mounts" else ["A"],
    }
    return "local" if entry.unit is None else by_kind[entry.unit.kind]


def levels(entry: Entry) -> list[tuple[str, ...]]:
    """Where a key may be written."""
    places: dict[tuple[str, ...], type[BaseModel]] = {
        ("defaults",): AgentPolicy,
        ("agents", "web"): AgentPolicy,
        ("agents", "web", "tools", "search"): ToolPolicy,
        ("callers", "bot"): CallerPolicy,
    }
    own = AgentPolicy.__annotations__
    found = [place for place, model in places.items() if entry in entries(model)]
    return [place for place in found if place != ("defaults",) or entry.field not in own]


def written(place: tuple[str, ...], entry: Entry, value: Any) -> str:
    tree: dict[str, Any] = {"agents": {"web": {"tools": {"search": {}}}}, "callers": {"bot": {}}}
    node = tree
    for part in (*place, *entry.path[:-1]):
        node = node.setdefault(part, {})
    node[entry.name] = value
    return json.dumps(tree, indent=1)


@pytest.mark.parametrize("path", sorted(FIELDS))
def test_each_field_of_the_file_has_its_row_with_a_sentence(path: str) -> None:
    assert key_of(FIELDS[path]).says.endswith(".")


PLACED = [(place, name) for name, entry in KEYS.items() for place in levels(entry)]


@pytest.mark.parametrize(("place", "name"), PLACED, ids=str)
def test_a_key_that_is_written_is_a_row_of_explain_with_its_line(
    place: tuple[str, ...], name: str
) -> None:
    entry = KEYS[name]
    models: dict[str, type[BaseModel]] = {"callers": CallerPolicy, "tools": ToolPolicy}
    model = models.get(place[-2] if place[1:] else "", AgentPolicy)
    field = fields_by_name(model, entry.section)[entry.field]
    text = written(place, entry, a_value(entry, field))
    line = next(n for n, row in enumerate(text.splitlines(), 1) if f'"{entry.name}":' in row)

    rows = Policy.parse(text, source="p.json", environ={"BOT": "x"}).explain("web", "search", "bot")

    shown = "access" if name == "deny" else name
    lines = {row.source for row in rows if row.key == shown}
    if name == "deny":
        line = next(n for n, row in enumerate(text.splitlines(), 1) if '"search":' in row)
    assert f"p.json:{line}" in lines


def fields_by_name(model: type[BaseModel], section: str) -> dict[str, FieldInfo]:
    if section:
        inner = model_in(model.model_fields[section].annotation)
        assert inner is not None
        model = inner
    return dict(model.model_fields)


def test_each_row_is_shown_by_the_page_and_says_its_sentence_to_editors() -> None:
    page, schema = markdown(), json.dumps(json_schema(), ensure_ascii=False)
    for path, field in FIELDS.items():
        key = key_of(field)
        assert json.dumps(key.says, ensure_ascii=False) in schema, path
        if not of_a_limit(path):
            name = re.escape(path.rpartition(".")[2])
            row = rf"^\| `{name}` \| .* \| ?{key.by or ''} ?\| {re.escape(key.says)} \|$"
            assert re.search(row, page, re.MULTILINE), path


def of_a_limit(path: str) -> bool:
    above = FIELDS.get(path.rpartition(".")[0])
    inner = None if above is None else model_in(above.annotation)
    return inner is not None and issubclass(inner, Limit)


def test_the_profiles_are_what_the_rows_say() -> None:
    for name, profile in PROFILES.items():
        for entry in KEYS.values():
            stated = getattr(entry.key, name)
            part = getattr(profile, entry.section) if entry.section else profile
            has_it = part is not None and entry.field in part.model_fields_set
            assert has_it == (stated is not None or entry.key.guarded is not None), entry.dotted


def test_each_enforced_limit_has_its_member_in_the_spec_that_its_enforcer_reads() -> None:
    specs: dict[str, Any] = {"router": LaneSpec, "gate": GateSpec, "launcher": ResourceLimits}
    specs["nothing"] = ResourceLimits  # what this launcher cannot do, another one may
    for entry in KEYS.values():
        if entry.is_limit:
            assert entry.key.by is not None
            assert entry.member in specs[entry.key.by].__struct_fields__, entry.dotted
    audit = {entry.member for entry in entries(Audit)} - {"on_failure"}
    assert audit == set(AuditSpec.__struct_fields__) - {"fail_closed"}


def test_a_key_that_nothing_enforces_is_absent_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Key("Nobody enforces this.", "nothing", guarded="1s")
    entry = Entry("", "handshake", "handshake", bare, "capped", "handshake_ns")
    policy = Policy.default()
    monkeypatch.setattr("callgate.policy.explain.KEYS", {"handshake": entry})
    monkeypatch.setattr("callgate.policy.resolve.KEYS", {"handshake": entry})

    (row,) = policy.explain("web")

    assert (row.enforced, row.note) == ("absent", "by nothing yet")


def keys_named_in(path: str) -> set[str]:
    """Keys that stand in a module as texts of their own."""
    known = {entry.name for entry in KEYS.values()} | set(KEYS)
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str)} & known


def modules() -> list[str]:
    """What deals with keys as such: the policy's room, and the commands about the file."""
    about = ("app", "explain_plan", "output", "reference", "table", "watch")
    found = [*PACKAGE.glob("policy/*.py"), *(PACKAGE / f"cli/{name}.py" for name in about)]
    return [path.relative_to(PACKAGE).as_posix() for path in found]


@pytest.mark.parametrize("module", sorted({*modules()} - {TABLE}))
def test_a_module_names_only_the_keys_that_it_has_a_reason_to_name(module: str) -> None:
    assert keys_named_in(module) == NAMES_A_KEY.get(module, set())


def test_a_key_stands_in_the_table_and_where_it_is_enforced() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\bmax_timeout\b", path.read_text(encoding="utf-8"))
    }

    assert found == READS_MAX_TIMEOUT
