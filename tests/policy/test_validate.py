from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from callgate.policy import Policy, PolicyError
from callgate.policy.fields import MAX_PATTERNS, MAX_TOOLS
from callgate.policy.problems import HIDDEN, MAX_PROBLEMS
from tests.policy.helpers import only_problem, places, problems

if TYPE_CHECKING:
    from pathlib import Path

BAD = """\
version: 2
profil: guarded
defaults:
  timeout: 15 sec
  concurency: 3
  rate: 60/min
global: 5
callers:
  "*": {rate: 600/minute, quota: 5}
  "a b": {}
agents:
  web:
    queue: -1
    tools:
      search: refuse
      fetch: {timeout: 0s}
    restart: {on: crash, backoff: 30s..1s}
audit: {}
mode: on
"""


def test_every_mistake_is_named_at_once_each_at_its_own_place() -> None:
    assert places(BAD) == [
        (1, 10),
        (2, 1),
        (4, 12),
        (5, 3),
        (6, 9),
        (7, 9),
        (9, 34),
        (10, 3),
        (13, 12),
        (15, 15),
        (16, 24),
        (17, 19),
        (17, 35),
        (18, 1),
        (19, 7),
    ]


def test_each_mistake_says_what_was_found_and_what_to_write() -> None:
    said = {problem.path: problem for problem in problems(BAD)}

    assert said["version"].message == "version: found 2, expected 1"
    assert said["profil"].suggestion == "profile"
    assert said["defaults.timeout"].suggestion == "15s"
    assert said["defaults.concurency"].suggestion == "concurrency"
    assert said["defaults.rate"].suggestion == "60/minute"
    assert said["global"].expected == "a mapping"
    assert said["callers.*.quota"].found == "5"
    assert said["callers.a b"].found == '"a b"'
    assert said["agents.web.queue"].expected == "a whole number from 0 to 100000"
    assert said["agents.web.tools.search"].expected == "deny, allow or a mapping of limits"
    assert "above zero" in said["agents.web.tools.fetch.timeout"].expected
    assert said["agents.web.restart.on"].expected == "failure, always or never"
    assert said["agents.web.restart.backoff"].suggestion == "1s..30s"
    assert said["audit.path"].expected == "the key `path`"
    assert said["mode"].suggestion == "true"


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("agent: {}", "agents"),
        ("Agents: {}", "agents"),
        ("globl: {}", "global"),
        ("agents: {web: {max_timeut: 1s}}", "max_timeout"),
        ("agents: {web: {tools: {a: {max_input_byte: 1}}}}", "max_input_bytes"),
        ("agents: {web: {rate: {limit: 1/day, bust: 5}}}", "burst"),
        ("agents: {web: {containment: {memry: 1Gi}}}", "memory"),
        ("agents: {web: {containment: {mounts: [{path: a, readonly: true}]}}}", "read_only"),
        ("callers: {bot: {tokn: env:A}}", "token"),
        ("audit: {path: a, rotat: 1Mi}", "rotate"),
        ("profile: gaurded", "guarded"),
        ("mode: shadwo", "shadow"),
        ("agents: {web: {protocol: mpc}}", "mcp"),
        ("agents: {web: {rate: {limit: 1/day, on_limit: waits}}}", "wait"),
        ("agents: {'*': {}}", "defaults"),
        ("zzzzzz: 1", None),
    ],
)
def test_what_is_misspelt_is_suggested(text: str, suggestion: str | None) -> None:
    assert only_problem(text).suggestion == suggestion


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        ("agents:\n  web:\n    rate: {limit: 5/week}\n", "agents.web.rate.limit", (3, 19)),
        ("agents:\n  web:\n    rate: 5/week\n", "agents.web.rate", (3, 11)),
        ("agents:\n  web:\n    command: [a, 1]\n", "agents.web.command", (3, 18)),
        (
            "agents:\n  web:\n    env:\n      pass:\n      - A\n      - 1x\n",
            "agents.web.env",
            (6, 9),
        ),
        (
            "defaults: {containment: {mounts: [{path: a}, {}]}}",
            "defaults.containment.mounts[1].path",
            (1, 46),
        ),
        ("x: &a {timeout: 1}\nagents: {web: *a}\n", "x", (1, 1)),
        ("agents:\n  'a b': {}\n", "agents.a b", (2, 3)),
        ("agents:\n  web:\n    tools:\n      '': deny\n", "agents.web.tools.", (4, 7)),
    ],
)
def test_a_place_is_that_of_the_very_value_or_key(
    text: str, path: str, place: tuple[int, int]
) -> None:
    first = problems(text)[0]

    assert (first.line, first.column) == place
    assert first.path == path


def test_a_value_under_an_alias_is_wrong_where_it_is_written() -> None:
    text = "agents:\n  a: &a\n    timeout: 5\n  b: *a\n"

    assert set(places(text)) == {(3, 14)}


@pytest.mark.parametrize(
    "value",
    [
        "5",
        "'5'",
        "1.5",
        "true",
        "[]",
        "{}",
        "soon",
        "{limit: 1s, mode: on}",
        "{mode: shadow}",
        "0s",
        "{limit: 1s, burst: 2}",
        "-1s",
    ],
)
def test_what_is_no_timeout_is_refused(value: str) -> None:
    assert problems(f"agents: {{web: {{timeout: {value}}}}}")


@pytest.mark.parametrize(
    "value", ["0", "-1", "1.5", "'3'", "true", "[3]", "three", "1000001", "{}"]
)
def test_what_is_no_concurrency_is_refused(value: str) -> None:
    assert problems(f"agents: {{web: {{concurrency: {value}}}}}")


@pytest.mark.parametrize("value", ["-1", "100001", "unlimited", "1.0", "'5'", "true", "{limit: 5}"])
def test_what_is_no_queue_is_refused(value: str) -> None:
    assert problems(f"agents: {{web: {{queue: {value}}}}}")


@pytest.mark.parametrize(
    "value",
    [
        "60",
        "60/min",
        "{limit: 60/minute, burst: 0}",
        "{limit: 60/minute, burst: 1.5}",
        "{burst: 5}",
        "{limit: 60/minute, on_limit: queue}",
        "{limit: 60/minute, per: agent}",
        "0/minute",
        "[]",
    ],
)
def test_what_is_no_rate_is_refused(value: str) -> None:
    assert problems(f"agents: {{web: {{rate: {value}}}}}")


@pytest.mark.parametrize("where", ["global: {rate: %s}", "callers: {bot: {rate: %s}}"])
def test_only_an_agent_or_a_tool_splits_its_rate_by_caller(where: str) -> None:
    assert only_problem(where % "{limit: 1/day, per: caller}").path.endswith("rate.per")


@pytest.mark.parametrize("key", ["timeout", "queue", "tools", "env", "command"])
def test_a_ceiling_is_no_place_for_an_agents_keys(key: str) -> None:
    assert "unknown key" in only_problem(f"global: {{{key}: 1}}").found


@pytest.mark.parametrize("name", ["a b", "a/b", "a*", "", "é", "x" * 129, "a:b"])
def test_what_is_no_agents_name_is_refused(name: str) -> None:
    assert problems(f"agents: {{'{name}': {{}}}}")


@pytest.mark.parametrize("name", ["a b", "a*", "", "~a", "é", "x" * 129, "**"])
def test_what_is_no_callers_name_is_refused(name: str) -> None:
    assert problems(f"callers: {{'{name}': {{}}}}")


@pytest.mark.parametrize("name", ["web", "a.b-c_d", "A1", "x" * 128])
def test_an_agents_name_is_accepted(name: str) -> None:
    assert Policy.parse(f"agents: {{{name}: {{}}}}").agents == {name}


@pytest.mark.parametrize("name", ["ci-bot", "a@b.c", "spiffe://x/y", "x" * 128])
def test_a_callers_name_is_accepted(name: str) -> None:
    assert Policy.parse(f"callers: {{'{name}': {{}}}}").callers == {name}


def test_tools_and_patterns_end_at_their_limits() -> None:
    def tools(names: int, patterns: int) -> str:
        entries = [f"n{n}: deny" for n in range(names)] + [
            f'"p{n}*": deny' for n in range(patterns)
        ]
        return f"agents: {{web: {{tools: {{{', '.join(entries)}}}}}}}"

    most = Policy.parse(tools(MAX_TOOLS - MAX_PATTERNS, MAX_PATTERNS))
    assert most.tool_key("web", "p255x") == "p255*"
    assert only_problem(tools(MAX_TOOLS + 1, 0)).path == "agents.web.tools"
    assert only_problem(tools(0, MAX_PATTERNS + 1)).path == "agents.web.tools"


@pytest.mark.parametrize(
    "text",
    [
        "defaults:\n",
        "agents: {web: {rate: }}",
        "agents: {web: {tools: {a: }}}",
        "audit: {path: a, keep: }",
        "agents: {web: {rate: {limit: 1/day, burst: ~}}}",
        "agents: {web: {command: }}",
        "mode: null",
    ],
)
def test_a_key_without_a_value_is_an_error(text: str) -> None:
    (problem, *_) = problems(text)

    assert problem.found == "nothing"
    assert "leave the key out" in problem.expected


def test_an_agent_or_a_caller_may_stand_without_keys() -> None:
    policy = Policy.parse("agents:\n  web:\ncallers:\n  bot:\n")

    assert policy.agents == {"web"}
    assert policy.callers == {"bot"}


@pytest.mark.parametrize("text", ["[]", "5", "text", "- version: 1"])
def test_a_policy_is_a_mapping(text: str) -> None:
    assert only_problem(text).expected == "a mapping"


@pytest.mark.parametrize("value", ["redis://h", "rediss://u:hunter2@h", "unix:///x", "memory", "1"])
def test_a_state_that_is_not_there_yet_is_refused(value: str) -> None:
    problem = only_problem(f"state: {value}")

    assert problem.expected.startswith("local")
    assert problem.found == HIDDEN


@pytest.mark.parametrize(
    "text",
    [
        "callers: {bot: {token: hunter2}}",
        "callers: {bot: {token: 'env: hunter2'}}",
        "callers: {bot: {token: [hunter2]}}",
        "callers: {bot: {token: {hunter2: 1}}}",
        "callers: {bot: {token: !x hunter2}}",
        "callers: {bot: {token: &a hunter2, rate: *a}}",
        "callers: {bot: {token: hunter2, rate: hunter2}}",
        "callers: {bot: {rate: &a hunter2, token: *a}}",
        "callers: {bot: {token: &a hunter2, *a : 1}}",
        "callers: {bot: {token: {hunter2: off}}}",
        "callers: {bot: {token: {hunter2: 1, hunter2: 2}}}",
        "agents: {web: {command: [hunter2, 5]}}",
        "agents: {web: {command: hunter2}}",
        "agents: {web: {command: {hunter2: 1}}}",
        "agents: {web: {command: [&a hunter2], timeout: *a}}",
        "agents: {web: {command: [&a hunter2], *a : 1}}",
        "agents: {web: {command: [a, &a hunter2], tools: {x: *a}}}",
        "agents: {web: {env: {pass: ['hunter2=x']}}}",
        "agents: {web: {env: {hunter2: x}}}",
        "agents: {web: {env: {secret: [&a 'hunter2!']}, protocol: *a}}",
        "agents: {web: {env: &a {hunter2: x}, containment: *a}}",
        "state: redis://:hunter2@host",
        "{state: &a 'redis://:hunter2@host', profile: *a}",
        "{state: &a 'redis://:hunter2@host', mode: *a, *a : 1}",
    ],
)
def test_what_stands_under_a_secret_key_is_in_no_error(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.parse(text)

    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.as_dict())


def test_a_number_that_is_a_token_is_not_shown_elsewhere_either() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.parse("callers: {bot: {token: &a 90125, rate: *a}}")

    assert "90125" not in str(caught.value)


def test_an_agent_that_is_named_like_a_word_of_its_command_is_still_named() -> None:
    problem = only_problem("agents: {web: {command: [web], timeout: 5}}")

    assert problem.path == "agents.web.timeout"
    assert problem.found == "5"


def test_a_long_value_is_not_repeated() -> None:
    assert (
        only_problem(f"agents: {{web: {{timeout: {'x' * 500}}}}}").found
        == "a text of 500 characters"
    )


def test_beyond_two_hundred_the_rest_is_counted() -> None:
    text = "".join(f"k{n}: 1\n" for n in range(MAX_PROBLEMS + 5))

    with pytest.raises(PolicyError) as caught:
        Policy.parse(text, source="p.yaml")

    assert len(caught.value.problems) == MAX_PROBLEMS
    assert caught.value.more == 5
    assert str(caught.value).endswith("p.yaml: and 5 more")


def test_an_error_is_a_line_that_editors_can_jump_to(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nmode: hadow\n", encoding="utf-8")

    with pytest.raises(PolicyError) as caught:
        Policy.load(file)

    expected = "enforce, shadow or off"
    line = f'{file}:2:7: mode: found "hadow", expected {expected} (did you mean "shadow"?)'
    assert str(caught.value) == line
    assert caught.value.code == "policy.invalid"


def test_the_structure_has_what_the_text_has() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.parse("mode: hadow", source="p.yaml")

    structure = caught.value.as_dict()
    assert structure["code"] == "policy.invalid"
    assert structure["source"] == "p.yaml"
    assert structure["problems"] == [
        {
            "path": "mode",
            "line": 1,
            "column": 7,
            "found": '"hadow"',
            "expected": "enforce, shadow or off",
            "suggestion": "shadow",
        }
    ]


def test_problems_of_form_and_of_content_are_told_together() -> None:
    text = "agents:\n  web: {timeout: 5}\n  web: {}\nmode: yes\n"

    assert places(text) == [(2, 18), (3, 3), (4, 7)]
