"""What one policy allows that another did not."""

from __future__ import annotations

import pytest

from callgate.policy import Policy

STRICT = (
    "agents: {web: {%s}}\n"
    "audit: {path: a}\ncallers: {bob: {quota: 10/hour, token: env:T}}\nglobal: {concurrency: 9}\n"
)

WAYS = [
    ("rate: 10/minute", "rate: 11/minute", "rate"),
    ("rate: {limit: 10/minute, burst: 1}", "rate: 10/minute", "rate"),
    ("rate: 10/minute", "rate: {limit: 10/minute, mode: shadow}", "rate"),
    ("timeout: 1s", "timeout: 2s", "timeout"),
    ("max_timeout: 1s", "max_timeout: unlimited", "max_timeout"),
    ("max_input_bytes: 1Ki", "", "max_input_bytes"),
    ("tools: {x: deny}", "tools: {x: allow}", "deny"),
    ("tools: {'*': deny}", "tools: {'*': deny, 'read_*': allow}", "deny"),
    ("tools: {x: deny}", "mode: shadow, tools: {x: deny}", "deny"),
    ("tools: {x: {rate: 1/hour}}", "tools: {x: {}}", "rate"),
    ("tasks: refuse", "tasks: pass", "tasks"),
    ("containment: {level: standard}", "containment: {level: network}", "containment.level"),
    ("containment: {level: standard}", "", "containment.level"),
    ("containment: {memory: 1Mi}", "containment: {memory: 2Mi}", "containment.memory"),
    (
        "containment: {mounts: [{path: /a, read_only: true}]}",
        "containment: {mounts: [{path: /a}]}",
        "containment.mounts",
    ),
    ("env: {pass: [A]}", "env: {pass: [A, B]}", "env.pass"),
    ("env: {pass: [A]}", "", "env"),
]


@pytest.mark.parametrize(("before", "after", "key"), WAYS)
def test_each_way_to_allow_more_is_found_and_none_of_the_ways_back(
    before: str, after: str, key: str
) -> None:
    old, new = Policy.parse(STRICT % before), Policy.parse(STRICT % after)

    assert key in {each.key for each in new.loosened(old, "web")}
    assert key not in {each.key for each in old.loosened(new, "web")}
    assert new.loosened(new, "web") == []


def test_what_holds_beside_the_agent_counts_too() -> None:
    old, new = Policy.parse(STRICT % ""), Policy.parse("agents: {web: {}}")

    found = {(each.key, each.scope) for each in new.loosened(old, "web")}

    assert found == {
        ("audit", ""),
        ("concurrency", "global"),
        ("quota", "caller:bob"),
        ("token", "caller:bob"),
    }


def test_a_denial_of_a_tool_that_only_the_agent_names_is_compared_by_its_name() -> None:
    old = Policy.parse("agents: {web: {tools: {'a*': deny}}}")
    new = Policy.parse("agents: {web: {tools: {'a*': deny, '*bb': allow}}}")

    assert [each.scope for each in new.loosened(old, "web", ["abb"])] == ["tool:web/abb"]
