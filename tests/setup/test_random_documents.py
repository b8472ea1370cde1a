from __future__ import annotations

import json
import tomllib
from typing import Any

import tomlkit
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from callgate.setup.formats.jsonc import Jsonc
from callgate.setup.formats.nodes import Refused
from callgate.setup.formats.toml import Toml
from callgate.setup.formats.yaml import Yaml
from callgate.setup.plan import added_lists, plan_unwrap, plan_wrap
from callgate.setup.servers import Gate

GATE = Gate("/opt/bin/callgate", "/home/me/a b.yaml")
PLACES = (("mcpServers",),)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = texts.filter(lambda word: word.rpartition("/")[2].lower() != "callgate")
leaves = st.none() | st.booleans() | st.integers() | texts
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
programs = words.filter(lambda word: word != "" and " " not in word)
rest = st.dictionaries(st.sampled_from(["env", "cwd", "type", "timeout"]), values, max_size=2)


@st.composite
def servers(draw: st.DrawFn) -> dict[str, Any]:
    """An entry that is to be wrapped, its keys in any order."""
    entry = draw(rest)
    if draw(st.booleans()):
        entry["command"] = [draw(programs), *draw(st.lists(words, max_size=3))]
    else:
        entry["command"] = draw(programs)
        if draw(st.booleans()):
            entry["args"] = draw(st.lists(words, max_size=3))
    return dict(draw(st.permutations(list(entry.items()))))


documents = st.builds(
    lambda around, found: {**around, "mcpServers": found},
    st.dictionaries(texts.filter(lambda key: key != "mcpServers"), values, max_size=2),
    st.dictionaries(texts, servers(), max_size=3),
)

spaces = st.sampled_from(
    ["", "", " ", "\n", "\r\n\t", " // c {\n", '/* " */', "/*\n[ */ ", "//\r\n", "\t /**/\t"]
)


def write(value: Any, draw: st.DrawFn) -> str:
    """The value as JSON with comments, trailing commas and spaces anywhere."""

    def space() -> str:
        return draw(spaces)

    if isinstance(value, list | dict):
        brackets = "[]" if isinstance(value, list) else "{}"
        parts = (
            [write(each, draw) for each in value]
            if isinstance(value, list)
            else [
                f"{space()}{json.dumps(key, ensure_ascii=draw(st.booleans()))}{space()}:"
                f"{write(each, draw)}"
                for key, each in value.items()
            ]
        )
        comma = "," if draw(st.booleans()) and parts else ""
        return f"{space()}{brackets[0]}{','.join(parts)}{comma}{space()}{brackets[1]}{space()}"
    return f"{space()}{json.dumps(value, ensure_ascii=draw(st.booleans()))}{space()}"


@st.composite
def written(draw: st.DrawFn) -> tuple[Any, str]:
    document = draw(documents)
    return document, draw(st.sampled_from(["", "\ufeff"])) + write(document, draw)


def expected(document: Any, agents: dict[str, str | None]) -> Any:
    result = json.loads(json.dumps(document))
    for name, entry in result["mcpServers"].items():
        assert GATE.policy is not None
        ours = [GATE.program, "run", "--agent", agents[name], "--policy", GATE.policy, "--"]
        if isinstance(entry["command"], list):
            entry["command"] = [*ours, *entry["command"]]
        else:
            entry["args"] = [*ours[1:], entry["command"], *entry.get("args", [])]
            entry["command"] = ours[0]
    return result


def check(document: Any, text: str) -> str:
    change = plan_wrap(text, Jsonc(), PLACES, GATE)
    agents = {each.name: each.agent for each in change.servers}

    assert {each.status for each in change.servers} <= {"wrap"}
    read = Jsonc().read(change.after.removeprefix("\ufeff")).value()
    assert read == plain(expected(document, agents))
    back = plan_unwrap(change.after, Jsonc(), PLACES, added_lists(change.servers))
    assert back.after == text
    return json.dumps(expected(document, agents))


def plain(value: Any) -> Any:
    """The value as the reader has it: a number is what it is written as."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return ("number", str(value)) if is_number else value


@given(written())
def test_any_json_with_comments_is_wrapped_as_expected_and_comes_back(
    case: tuple[Any, str],
) -> None:
    check(*case)


@given(documents, st.sampled_from([None, 0, 2, "\t"]))
def test_any_plain_json_is_wrapped_as_another_parser_reads_it(
    document: Any, indent: int | str | None
) -> None:
    text = json.dumps(document, indent=indent)

    change = plan_wrap(text, Jsonc(), PLACES, GATE)

    agents = {each.name: each.agent for each in change.servers}
    assert json.loads(change.after) == expected(document, agents)
    check(document, text)


def without_null(value: Any) -> Any:
    """TOML has none."""
    if isinstance(value, dict):
        return {key: without_null(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_null(each) for each in value if each is not None]
    return value


@settings(max_examples=40)  # each value's position takes a parse of its own
@given(documents)
def test_any_toml_is_wrapped_as_another_parser_reads_it_and_comes_back(document: Any) -> None:
    document = without_null(document)
    try:
        text = tomlkit.dumps(document)
        assume(tomllib.loads(text) == document)
    except (ValueError, TypeError):
        assume(False)

    change = plan_wrap(text, Toml(), PLACES, GATE)

    agents = {each.name: each.agent for each in change.servers}
    assert tomllib.loads(change.after) == expected(document, agents)
    back = plan_unwrap(change.after, Toml(), PLACES, added_lists(change.servers))
    assert back.after == text


@given(documents, st.sampled_from([None, True, False]))
def test_any_yaml_is_wrapped_as_another_parser_reads_it_and_comes_back_or_is_refused(
    document: Any, flow: Any
) -> None:
    text = yaml.safe_dump(document, default_flow_style=flow, allow_unicode=True)
    assume(yaml.safe_load(text) == document)

    try:
        change = plan_wrap(text, Yaml(), PLACES, GATE)
    except Refused:
        return

    agents = {each.name: each.agent for each in change.servers}
    assert yaml.safe_load(change.after) == expected(document, agents)
    back = plan_unwrap(change.after, Yaml(), PLACES, added_lists(change.servers))
    assert back.after == text
