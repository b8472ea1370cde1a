from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from callgate.cli.reference import json_schema, markdown
from callgate.policy import Policy
from callgate.policy.schema import AgentPolicy, PolicyFile
from callgate.policy.source import read
from tests.policy.helpers import ROOT, outcome, problems

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

DESIGN = """
version: 1
profile: guarded                 # the seeds' values below
defaults:                        # fill the keys an agent leaves out
  timeout: 15s
  max_timeout: 60s
  concurrency: 3
  rate: 60/minute
  max_frame_bytes: 4MiB
  cancel_grace: 5s
global: {concurrency: 200}
callers:
  "*": {rate: 600/minute, concurrency: 32}
  ci-bot: {token: env:CI_BOT_TOKEN, rate: 30/minute, quota: 1000/hour}
agents:
  git-analyzer:
    command: [python, -m, git_analyzer]
    protocol: mcp
    concurrency: 5
    queue: 20
    rate: {limit: 100/minute, burst: 20, on_limit: wait, per: caller}
    tools:
      clone: {max_timeout: 120s, concurrency: 1, rate: 5/minute}
      "read_*": {timeout: 2s}
      "delete_*": deny
    env: {pass: [PATH, HOME], secret: [GITHUB_TOKEN]}
    containment: {level: standard, memory: 512Mi, cpu: 500m, pids: 64, disk: 1Gi, files: 10000,
      open_files: 256, mounts: [{path: /srv/repos, read_only: true}]}
    restart: {on: failure, max: 5, backoff: 1s..30s}
audit: {path: audit/, on_failure: fail_closed, rotate: 64MiB, keep: 30d, max_bytes: 1GiB}
state: local
mode: enforce
"""


def whole(block: str) -> str:
    """A page may show the keys of one agent alone."""
    first = block.partition(":")[0].strip()
    if first in AgentPolicy.model_fields and first not in PolicyFile.model_fields:
        return "agents:\n  web:\n" + textwrap.indent(block, "    ")
    return block


def examples() -> dict[str, str]:
    """Every policy that the documentation shows."""
    found = {"the design": DESIGN}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)):
            found[f"{page.relative_to(ROOT)}#{number}"] = whole(block)
    for file in sorted((ROOT / "examples").rglob("*.yaml")):
        found[str(file.relative_to(ROOT))] = file.read_text(encoding="utf-8")
    return found


EXAMPLES = examples()


def plain(text: str) -> Any:
    document, found = read(text)
    assert document is not None
    assert found == []
    return document.tree()


def accepts(text: str) -> bool:
    return bool(VALIDATOR.is_valid(plain(text)))


def test_the_schema_is_a_valid_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_policy_in_the_documentation_is_valid_and_the_schema_agrees(name: str) -> None:
    policy = Policy.parse(EXAMPLES[name], environ={"CI_BOT_TOKEN": "x"})

    assert policy.explain("web", "search")
    assert accepts(EXAMPLES[name])


def test_the_documentation_has_examples_to_check() -> None:
    assert [name for name in EXAMPLES if name.startswith("README.md")]


GOOD = [
    "version: 1",
    "agents: {web: {timeout: unlimited, rate: {limit: unlimited, mode: off}}}",
    "agents: {web: {concurrency: {limit: 5, mode: shadow}}}",
    "agents: {web: {max_input_bytes: 1024, max_output_bytes: {limit: 1.5MiB}}}",
    "agents: {web: {containment: {cpu: 0.5, memory: unlimited, core_size: 1}}}",
    "agents: {web: {containment: {cpu: 2, mounts: [{path: a}]}}}",
    "agents: {web: {tools: {a: deny, b: allow, c: {deny: true}, d: {isolate: task}, 'e*': {}}}}",
    "agents: {web: , mail: {}}",
    "callers: {bot: , '*': {mode: shadow}}",
    "audit: {path: a, keep: unlimited, max_bytes: unlimited, stdout: true, otel: false}",
    "audit: {path: a, keep: 7d, on_failure: drop}",
    "agents: {web: {restart: {on: never, max: 0, backoff: 0s..1h}}}",
    "agents: {web: {requests: {timeout: 9s}, denials: error, tasks: pass, handshake: 0s}}",
    "global: {rate: {limit: 5/day, burst: 2, on_limit: wait}}",
    "agents: {web: {bandwidth: 10Mbps, max_frame_bytes: 16MiB, cancel_grace: 0s}}",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_check_accepts_the_schema_accepts(text: str) -> None:
    Policy.parse(text)

    assert accepts(text)


BAD = [
    "version: 2",
    "version: '1'",
    "version: true",
    "profile: lax",
    "mode: maybe",
    "state: redis://x",
    "zzz: 1",
    "[]",
    "5",
    "defaults: []",
    "defaults: {tools: {}}",
    "defaults: {timeout: 15}",
    "defaults: {timeout: 15 s}",
    "defaults: {timeout: 0s}",
    "defaults: {timeout: {limit: 5s, mode: on_fire}}",
    "defaults: {timeout: {mode: shadow}}",
    "defaults: {timeout: {limit: 5s, burst: 1}}",
    "defaults: {concurrency: 0}",
    "defaults: {concurrency: 1000001}",
    "defaults: {concurrency: 1.5}",
    "defaults: {concurrency: '3'}",
    "defaults: {concurrency: true}",
    "defaults: {queue: -1}",
    "defaults: {queue: unlimited}",
    "defaults: {queue: 100001}",
    "defaults: {rate: 60}",
    "defaults: {rate: 60/min}",
    "defaults: {rate: 0/minute}",
    "defaults: {rate: {limit: 60/minute, burst: 0}}",
    "defaults: {rate: {limit: 60/minute, on_limit: drop}}",
    "defaults: {rate: {limit: 60/minute, per: agent}}",
    "defaults: {max_input_bytes: 0}",
    "defaults: {max_input_bytes: 0Ki}",
    "defaults: {max_input_bytes: -1}",
    "defaults: {max_input_bytes: 5 MB}",
    "defaults: {bandwidth: 10}",
    "defaults: {bandwidth: 0Mbps}",
    "defaults: {cancel_grace: unlimited}",
    "defaults: {on_ignored_cancel: shoot}",
    "defaults: {protocol: http}",
    "defaults: {denials: silence}",
    "defaults: {tasks: maybe}",
    "defaults: {requests: {rate: 5/day}}",
    "defaults: {env: {pass: [1]}}",
    "defaults: {env: {pass: ['A=B']}}",
    "defaults: {env: {pass: A}}",
    "defaults: {containment: {level: weak}}",
    "defaults: {containment: {cpu: 0}}",
    "defaults: {containment: {cpu: 0m}}",
    "defaults: {containment: {cpu: fast}}",
    "defaults: {containment: {mounts: [{read_only: true}]}}",
    "defaults: {containment: {mounts: [{path: ''}]}}",
    "defaults: {containment: {allow_degraded: 'yes'}}",
    "defaults: {restart: {on: sunday}}",
    "defaults: {restart: {max: -1}}",
    "defaults: {restart: {backoff: 5s}}",
    "global: {rate: {limit: 1/day, per: caller}}",
    "global: {timeout: 5s}",
    "global: {quota: 5/day}",
    "callers: {bot: {token: secret}}",
    "callers: {bot: {quota: 5}}",
    "callers: {bot: {quota: {limit: 5/day, burst: 2}}}",
    "callers: {'a b': {}}",
    "callers: {'~a': {}}",
    "callers: []",
    "agents: {'a b': {}}",
    "agents: {'*': {}}",
    "agents: {web: 5}",
    "agents: {web: {command: []}}",
    "agents: {web: {command: [1]}}",
    "agents: {web: {command: 'python x'}}",
    "agents: {web: {command: ['']}}",
    "agents: {web: {manifest: ''}}",
    "agents: {web: {tools: {a: refuse}}}",
    "agents: {web: {tools: {a: true}}}",
    "agents: {web: {tools: {a: {queue: 5}}}}",
    "agents: {web: {tools: {a: {isolate: thread}}}}",
    "agents: {web: {tools: {'': deny}}}",
    "agents: {web: {tools: []}}",
    "audit: {}",
    "audit: {path: ''}",
    "audit: {path: a, on_failure: panic}",
    "audit: {path: a, rotate: unlimited}",
    "audit: {path: a, stdout: 1}",
    "defaults:",
    "agents: {web: {tools: {a: }}}",
    "agents: {web: {rate: }}",
]

ONLY_CHECK = {
    "version: 1.0": "one number in JSON",
    "defaults: {restart: {backoff: 9s..1s}}": "an order of two values",
    "defaults: {timeout: 3651d}": "a bound after the unit",
    "defaults: {rate: 9999999999/day}": "a bound after the unit",
    "defaults: {max_input_bytes: 9999999Ti}": "a bound after the unit",
    "defaults: {max_input_bytes: 0.1B}": "rounded to nothing",
    "defaults: {containment: {cpu: 0.0001}}": "rounded to nothing",
    "agents: {{web: {{tools: {{{}}}}}}}".format(
        ", ".join(f"'p{n}*': deny" for n in range(257))
    ): "a count",
}


@pytest.mark.parametrize("text", BAD)
def test_what_check_rejects_the_schema_rejects(text: str) -> None:
    assert problems(text)
    assert not accepts(text)


@pytest.mark.parametrize("text", ONLY_CHECK)
def test_what_only_check_can_see_is_known(text: str) -> None:
    assert problems(text)
    assert accepts(text)


values = st.sampled_from(
    [
        "5",
        "0",
        "-1",
        "1.5",
        "true",
        "unlimited",
        "15s",
        "60/minute",
        "512Mi",
        "500m",
        "deny",
        "task",
        "mcp",
        "[]",
        "{}",
        "[A]",
        "{limit: 5}",
        "{limit: 15s, mode: shadow}",
        "1s..30s",
        "env:A",
        "a/",
        "{limit: 60/minute, burst: 5, on_limit: wait}",
        "local",
        "guarded",
        "shadow",
        "error",
        "10Mbps",
    ]
)
paths = st.sampled_from(
    [
        "{%s: %s}",
        "{defaults: {%s: %s}}",
        "{agents: {web: {%s: %s}}}",
        "{global: {%s: %s}}",
        "{callers: {bot: {%s: %s}}}",
        "{agents: {web: {tools: {a: {%s: %s}}}}}",
        "{agents: {web: {containment: {%s: %s}}}}",
        "{agents: {web: {restart: {%s: %s}}}}",
    ]
)
keys = st.sampled_from(
    [
        "version",
        "profile",
        "mode",
        "state",
        "timeout",
        "max_timeout",
        "concurrency",
        "queue",
        "rate",
        "quota",
        "token",
        "max_input_bytes",
        "bandwidth",
        "protocol",
        "deny",
        "isolate",
        "command",
        "memory",
        "cpu",
        "pids",
        "level",
        "mounts",
        "on",
        "max",
        "backoff",
        "env",
        "tools",
        "denials",
    ]
)


@given(paths, keys, values)
def test_check_and_schema_agree_on_any_key_with_any_value(path: str, key: str, value: str) -> None:
    text = path % (key, value)

    assert accepts(text) == isinstance(outcome(text), Policy)


def descriptions(node: Any, path: str = "") -> list[str]:
    """Paths of properties without a description."""
    if isinstance(node, list):
        return [each for part in node for each in descriptions(part, path)]
    if not isinstance(node, dict):
        return []
    properties = node.get("properties", {})
    missing = [
        f"{path}.{name}"
        for name, value in properties.items()
        if "description" not in value and name != "limit"
    ]
    return missing + [
        each for name, value in node.items() for each in descriptions(value, f"{path}.{name}")
    ]


def test_every_key_has_a_description_for_the_editor() -> None:
    assert descriptions(SCHEMA) == []


def test_the_reference_page_is_what_the_models_say() -> None:
    page = ROOT / "docs" / "reference" / "policy.md"

    assert page.read_text(encoding="utf-8") == markdown()


def test_the_reference_page_has_every_key_of_the_schema() -> None:
    page = markdown()
    names = {
        name
        for definition in [SCHEMA, *SCHEMA["$defs"].values()]
        for option in [definition, *definition.get("anyOf", [])]
        for name in option.get("properties", {})
    }

    limits = {"limit", "burst", "on_limit", "per", "mode"}
    assert {name for name in names - limits if f"| `{name}` |" not in page} == set()
    assert all(f"`{name}" in page or f"{name}:" in page for name in limits)
