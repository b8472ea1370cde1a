from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import yaml

from callgate.setup.clients import CLIENTS, OTHER
from callgate.setup.formats.nodes import Refused
from callgate.setup.plan import Change, added_lists, decode, plan_unwrap, plan_wrap
from callgate.setup.servers import Gate
from callgate.setup.work import FORMATS, form_of
from tests.setup.configurations import CASES, Case

GATE = Gate("/home/me/.local/bin/callgate", "/home/me/.config/callgate/callgate.yaml")
KEYS = {client.name: client.keys for client in (*CLIENTS, OTHER)}


def wrap(case: Case, gate: Gate = GATE) -> Change:
    return plan_wrap(decode(case.data), FORMATS[form_of(case.file)], KEYS[case.client], gate)


def parse(case: Case, text: str) -> Any:
    """By somebody else's parser where there is one."""
    text = text.removeprefix("\ufeff")
    form = form_of(case.file)
    if form == "toml":
        return tomllib.loads(text)
    if form == "yaml":
        return yaml.safe_load(text)
    try:
        return json.loads(text)
    except ValueError:
        return FORMATS["json"].read(text).value()


def started(entry: dict[str, Any]) -> list[str]:
    """The words that a client starts for an entry."""
    if isinstance(entry.get("transport"), dict):
        entry = entry["transport"]
    if isinstance(entry.get("command"), dict):
        entry = entry["command"]
    program = next(entry[key] for key in ("command", "cmd", "path") if key in entry)
    return program if isinstance(program, list) else [program, *entry.get("args", [])]


def at(document: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def test_there_are_thirty_configurations_over_all_formats() -> None:
    assert len(CASES) >= 30
    assert {form_of(case.file) for case in CASES} == set(FORMATS)
    assert {case.client for case in CASES} == {client.name for client in (*CLIENTS, OTHER)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_server_starts_behind_the_gate_and_nothing_else_changes(case: Case) -> None:
    change = wrap(case)

    before, after = parse(case, change.before), parse(case, change.after)
    wrapped = {each.path: each for each in change.servers if each.status == "wrap"}
    expected = {
        path: case.wrapped.get(path[-1], case.wrapped.get("/".join(path))) for path in wrapped
    }
    assert len(wrapped) == len(case.wrapped)
    for path, words in expected.items():
        entry = at(after, path)
        assert started(at(before, path)) == words
        agent = wrapped[path].agent
        assert started(entry) == [
            GATE.program, "run", "--agent", agent, "--policy", GATE.policy, "--", *(words or ())
        ]  # fmt: skip
        for document in (before, after):  # compare the rest
            at(document, path[:-1])[path[-1]] = {
                key: value
                for key, value in at(document, path).items()
                if key not in {"command", "cmd", "args", "transport"}
            }
    assert before == after


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_left_alone_is_said(case: Case) -> None:
    left = {each.path[-1]: each for each in wrap(case).servers if each.status != "wrap"}

    assert {name: each.status for name, each in left.items()} == case.left
    assert all(each.why for each in left.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unwrapping_gives_the_identical_bytes(case: Case) -> None:
    change = wrap(case)
    form = FORMATS[form_of(case.file)]

    back = plan_unwrap(
        change.after, form, KEYS[case.client], added_lists(change.servers), only_known=True
    )

    assert back.after.encode() == case.data


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unwrapping_without_any_memory_starts_the_same_programs(case: Case) -> None:
    change = wrap(case)
    form = FORMATS[form_of(case.file)]
    ours = {each.path: None for each in change.servers if each.status == "wrap"}

    back = plan_unwrap(change.after, form, KEYS[case.client], ours, only_known=True)

    for path in ours:
        assert started(at(parse(case, back.after), path)) == started(
            at(parse(case, change.before), path)
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wrapping_twice_changes_nothing(case: Case) -> None:
    once = wrap(case)
    form = FORMATS[form_of(case.file)]

    twice = plan_wrap(once.after, form, KEYS[case.client], GATE)

    assert twice.after == once.after
    assert not twice.changed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_line_ends_and_the_mark_stay(case: Case) -> None:
    after = wrap(case).after

    assert after.startswith("\ufeff") == case.bom
    assert ("\r\n" in after) == ("\r\n" in case.text)
    if "\r\n" in case.text:
        assert after.count("\n") == after.count("\r\n")


def test_agents_are_named_by_their_key_and_each_has_a_name_that_a_policy_can_have() -> None:
    case = next(case for case in CASES if case.name.startswith("unicode"))

    agents = [each.agent for each in wrap(case).servers]

    assert agents == ["agent", "policy", "a-b", "a-b-2"]


def test_a_projects_server_is_another_agent_than_the_users() -> None:
    case = next(case for case in CASES if case.name == "claude code, user and local")
    project = next(case for case in CASES if case.name == "a project's file with variables")

    agents = {each.path: each.agent for each in wrap(case).servers}
    of_project = wrap(project, Gate("callgate", None, "/home/me/shop")).servers

    assert agents["mcpServers", "db"] == "db"
    assert agents["projects", "/home/me/shop", "mcpServers", "db"] == "shop.db"
    assert [each.agent for each in of_project] == ["shop.api"]


MCP = ("mcpServers",)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.json", ""),
        ("a.json", "  \n"),
        ("a.json", "// nothing"),
        ("a.json", '{"mcpServers": {"a": {"command": "x"}}'),
        ("a.json", '{"mcpServers": {"a": {"command": "x"}}} {}'),
        ("a.json", '{"mcpServers": {"a": {"command": "x}}}'),
        ("a.json", '{"mcpServers" {"a": {"command": "x"}}}'),
        ("a.json", '{"mcpServers": {"a": {"command": x}}}'),
        ("a.json", '{"mcpServers": {"a": {"command": "x", "args": ["\\q"]}}}'),
        ("a.json", "<<<<<<< HEAD\n{}\n=======\n"),
        ("a.json", "[" * 100_000),
        ("a.json", '{"a":' * 100_000),
        ("a.json", '{"mcpServers": {"a": {"command": "x"}}, "mcpServers": {}}'),
        ("a.json", '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}'),
        ("a.json", '{"mcpServers": {"a": {"command": "x", "command": "y"}}}'),
        ("a.json", '{"mcpServers": {"a": {"command": "x", "args": [], "args": ["y"]}}}'),
        ("a.toml", "[mcpServers.a]\ncommand = x\n"),
        ("a.toml", "[mcpServers.a]\ncommand = 'x'\n[mcpServers.a]\ncommand = 'y'\n"),
        ("a.yaml", "mcpServers: {a: {command: x}"),
        ("a.yaml", "mcpServers:\n  a: &a {command: x}\n  b: *a\n"),
        ("a.yaml", "mcpServers:\n  a:\n    command: >-\n      x\n"),
        ("a.yaml", "mcpServers:\n  a:\n    command: !!str x\n"),
        ("a.yaml", "mcpServers:\n  a: {command: x}\n  a: {command: y}\n"),
        ("a.yaml", ""),
    ],
)
def test_what_cannot_be_read_or_may_be_read_in_two_ways_is_refused(file: str, text: str) -> None:
    with pytest.raises(Refused):
        plan_wrap(text, FORMATS[form_of(file)], [MCP], GATE)


@pytest.mark.parametrize(
    "data", [DATA.encode("utf-16") for DATA in ("{}",)] + [b'{"a": "\xff"}', b"{\0}"]
)
def test_what_is_not_utf_8_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        decode(data)


def test_a_server_that_was_wrapped_in_another_way_is_not_unwrapped() -> None:
    text = '{"mcpServers": {"a": {"command": "uvx", "args": ["callgate", "run", "--", "x"]}}}'

    with pytest.raises(Refused):
        plan_unwrap(text, FORMATS["json"], [MCP], {})


def test_an_undo_takes_back_only_what_is_ours_and_keeps_what_others_wrote_since() -> None:
    text = '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y", "args": ["z"]}}}'
    change = plan_wrap(text, FORMATS["json"], [MCP], GATE)
    since = change.after.replace('"b": {', '"b": {"env": {"NEW": "1"}, ').replace(
        '{"mcpServers": {', '{"mcpServers": {"c": {"command": "new"}, '
    )

    back = plan_unwrap(
        since, FORMATS["json"], [MCP], added_lists(change.servers), only_known=True
    ).after

    assert back == (
        '{"mcpServers": {"c": {"command": "new"}, "a": {"command": "x"}, '
        '"b": {"env": {"NEW": "1"}, "command": "y", "args": ["z"]}}}'
    )


def test_an_undo_of_a_server_that_somebody_removed_does_not_bring_it_back() -> None:
    text = '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}'
    change = plan_wrap(text, FORMATS["json"], [MCP], GATE)
    start, end = change.after.index('"a":'), change.after.index('"b":')
    since = change.after[:start] + change.after[end:]

    back = plan_unwrap(
        since, FORMATS["json"], [MCP], added_lists(change.servers), only_known=True
    ).after

    assert back == '{"mcpServers": {"b": {"command": "y"}}}'


@pytest.mark.parametrize(
    "since", ['"disabled": true', '"sandboxEnabled": true', '"url": "https://example.com"']
)
def test_an_undo_finds_a_server_that_was_disabled_or_moved_since(since: str) -> None:
    text = '{"mcpServers": {"a": {"command": "x"}}}'
    change = plan_wrap(text, FORMATS["json"], [MCP], GATE)
    added = added_lists(change.servers)
    after = change.after.replace('"a": {', f'"a": {{{since}, ')

    back = plan_unwrap(after, FORMATS["json"], [MCP], added, only_known=True).after

    assert back == text.replace('"a": {', f'"a": {{{since}, ')
