from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.policy import Policy, Row
from callgate.policy.explain import BY_LAUNCHER, NOT_IN_PROCESS
from callgate.policy.purpose import RUN
from callgate.policy.units import duration_text, size_text
from tests.policy.helpers import lane, rows, write

if TYPE_CHECKING:
    from pathlib import Path

    from callgate.model import LaneSpec

TEXT = """\
version: 1
defaults:
  timeout: 20s
  max_output_bytes: 1Mi
  restart: {max: 9}
global:
  concurrency: 200
  max_timeout: 50s
callers:
  "*":
    rate: 600/minute
  bot:
    rate: {limit: 30/minute, mode: shadow}
    quota: 1000/hour
    token: env:BOT_TOKEN
agents:
  web:
    command: [python, -m, web]
    queue: 20
    rate: {limit: 100/minute, burst: 20, on_limit: wait, per: caller}
    bandwidth: 10Mbps
    tools:
      search:
        max_timeout: 70s
        concurrency: 1
      "sea*":
        max_input_bytes: 4Ki
      "delete_*": deny
    env: {pass: [PATH, HOME], secret: [TOKEN]}
    containment:
      memory: 256Mi
      mounts: [{path: a}, {path: b}]
"""

SEARCH = {
    # key: value, source, enforced
    "access": ("allow", "p.yaml:23", "enforced"),
    "timeout": ("20s", "p.yaml:3", "enforced"),
    "max_timeout": ("50s", "p.yaml:8", "enforced"),
    "rate caller:*": ("600/minute", "p.yaml:11", "enforced"),
    "rate agent:web@*": ("100/minute, burst 20, wait, per caller", "p.yaml:20", "enforced"),
    "concurrency global": ("200", "p.yaml:7", "enforced"),
    "concurrency agent:web": ("3", "profile guarded", "enforced"),
    "concurrency tool:web/search": ("1", "p.yaml:25", "enforced"),
    "queue": ("20", "p.yaml:19", "enforced"),
    "max_input_bytes": ("4Ki", "p.yaml:27", "enforced"),
    "max_output_bytes": ("1Mi", "p.yaml:4", "enforced"),
    "cancel_grace": ("5s", "profile guarded", "enforced"),
    "on_ignored_cancel": ("release", "profile guarded", "enforced"),
    "command": ("set", "p.yaml:18", "absent"),
    "protocol": ("mcp", "profile guarded", "absent"),
    "max_frame_bytes": ("4Mi", "profile guarded", "absent"),
    "bandwidth": ("10Mbps", "p.yaml:21", "absent"),
    "handshake": ("1m", "profile guarded", "absent"),
    "denials": ("result", "profile guarded", "absent"),
    "tasks": ("refuse", "profile guarded", "absent"),
    "requests.timeout": ("5m", "profile guarded", "absent"),
    "env.pass": ("PATH, HOME", "p.yaml:29", "absent"),
    "env.secret": ("TOKEN", "p.yaml:29", "absent"),
    "containment.memory": ("256Mi", "p.yaml:31", "absent"),
    "containment.cpu": ("1000m", "launcher default", "absent"),
    "containment.disk": ("1Gi", "launcher default", "absent"),
    "containment.pids": ("64", "launcher default", "absent"),
    "containment.mounts": ("2", "p.yaml:32", "absent"),
    "restart.max": ("9", "p.yaml:5", "absent"),
}


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return Policy.load(write(tmp_path, {"p.yaml": TEXT}))


def test_every_effective_limit_is_shown_with_the_line_it_came_from(policy: Policy) -> None:
    found = rows(policy)

    shown = {name: (row.value, row.source, row.enforced) for name, row in found.items()}
    assert shown == SEARCH


def test_what_nothing_here_enforces_is_absent_and_says_so(policy: Policy) -> None:
    for row in policy.explain("web", "search"):
        assert (row.enforced == "absent") == (row.note == NOT_IN_PROCESS)


def test_a_limit_that_was_lowered_says_from_what(policy: Policy) -> None:
    assert rows(policy)["max_timeout"].note == "lowered from 70s (p.yaml:24)"


def test_a_caller_sees_its_own_limits(policy: Policy) -> None:
    found = rows(policy, caller="bot")

    assert found["rate caller:bot"].enforced == "shadow"
    assert found["rate caller:bot"].source == "p.yaml:13"
    assert found["quota"].value == "1000/hour"
    assert found["quota"].scope == "caller:bot"
    assert found["token"].value == "env:BOT_TOKEN"
    assert (found["token"].source, found["token"].enforced) == ("p.yaml:15", "absent")
    assert "rate agent:web@bot" in found


def test_an_unnamed_caller_sees_the_template_under_its_own_name(policy: Policy) -> None:
    found = rows(policy, caller="alice")

    assert found["rate caller:alice"].source == "p.yaml:11"
    assert "quota" not in found


def test_a_denied_tool_is_shown_as_denied_by_its_pattern(policy: Policy) -> None:
    access = rows(policy, tool="delete_all")["access"]

    assert (access.value, access.source, access.scope) == (
        "deny",
        "p.yaml:28",
        "tool:web/delete_all",
    )


def test_a_tool_that_no_entry_matches_is_allowed_and_says_why(policy: Policy) -> None:
    access = rows(policy, tool="other")["access"]

    assert (access.value, access.source) == ("allow", "no entry")


def test_an_agent_without_a_tool_has_no_access_row(policy: Policy) -> None:
    found = rows(policy, tool=None)

    assert "access" not in found
    assert found["timeout"].value == "20s"
    assert "concurrency tool:web/None" not in found


def test_an_agent_without_containment_shows_none() -> None:
    found = rows(Policy.parse("agents: {web: {}}"))

    assert not [name for name in found if name.startswith("containment")]


def test_an_agent_that_the_policy_does_not_name_gets_the_defaults(policy: Policy) -> None:
    found = {row.key: row for row in policy.explain("unheard-of", "tool")}

    assert found["timeout"].source == "p.yaml:3"
    assert found["queue"].value == "20"


def test_a_default_above_its_ceiling_is_shown_as_it_holds() -> None:
    policy = Policy.parse("agents: {web: {timeout: 50s}}\nglobal: {max_timeout: 5s}")

    row = rows(policy)["timeout"]

    assert row.value == "5s"
    assert row.note == "50s lowered by max_timeout (<policy>:2)"


def test_an_unlimited_timeout_under_a_ceiling_is_shown_as_the_ceiling() -> None:
    policy = Policy.parse("agents: {web: {timeout: unlimited, max_timeout: 9s}}")

    row = rows(policy)["timeout"]

    assert (row.value, row.enforced) == ("9s", "enforced")


def test_a_ceiling_in_shadow_lowers_nothing() -> None:
    text = "agents: {web: {timeout: 50s, max_timeout: {limit: 9s, mode: shadow}}}"

    found = rows(Policy.parse(text))

    assert (found["timeout"].value, found["timeout"].enforced) == ("50s", "enforced")
    assert (found["max_timeout"].value, found["max_timeout"].enforced) == ("9s", "shadow")


def test_a_hidden_lower_shadow_is_mentioned() -> None:
    text = (
        "global: {max_input_bytes: {limit: 5, mode: shadow}}\n"
        "agents: {web: {max_input_bytes: 50}}\n"
    )

    assert rows(Policy.parse(text))["max_input_bytes"].note == (
        "a lower limit in shadow is not recorded beside it"
    )


@pytest.mark.parametrize(("mode", "shown"), [("shadow", "shadow"), ("off", "off")])
def test_a_limit_that_is_not_enforced_never_looks_enforced(mode: str, shown: str) -> None:
    limits = "rate: 5/day, max_input_bytes: 5, tools: {search: deny}"
    text = f"mode: {mode}\nagents: {{web: {{{limits}}}}}"

    found = rows(Policy.parse(text))

    for name in ("access", "timeout", "max_timeout", "rate agent:web", "max_input_bytes"):
        assert (found[name].enforced, found[name].mode) == (shown, mode)


def test_an_unlimited_limit_is_off() -> None:
    row = rows(Policy.parse("agents: {web: {concurrency: unlimited}}"))["concurrency agent:web"]

    assert (row.value, row.enforced) == ("unlimited", "off")


@pytest.mark.parametrize("value", ["restart", "kill"])
def test_in_process_there_is_nobody_to_restart_or_kill(value: str) -> None:
    row = rows(Policy.parse(f"agents: {{web: {{on_ignored_cancel: {value}}}}}"))[
        "on_ignored_cancel"
    ]

    assert (row.value, row.enforced) == (value, "absent")


def test_a_command_is_never_shown() -> None:
    policy = Policy.parse("agents: {web: {command: [run, --password, hunter2]}}")

    assert "hunter2" not in repr(policy.explain("web", "search"))


def shown_limits(found: list[Row]) -> set[tuple[str, str, bool]]:
    """(key and scope, value, shadow) of everything that `explain` calls active."""
    keys = ("rate", "concurrency", "max_input_bytes", "max_output_bytes", "max_timeout", "quota")
    return {
        (f"{row.key} {row.scope}", row.value.split(",")[0], row.enforced == "shadow")
        for row in found
        if row.key in keys and row.enforced in ("enforced", "shadow")
    }


def lane_limits(spec: LaneSpec, caller: str) -> set[tuple[str, str, bool]]:
    """The same of what the router works with."""
    found = {(f"rate {r.scope.describe(caller)}", r.text, r.shadow) for r in spec.rates}
    found |= {
        (f"concurrency {s.scope.describe(caller)}", str(s.limit), s.shadow) for s in spec.slots
    }
    for name in ("max_input_bytes", "max_output_bytes"):
        size = getattr(spec, name)
        if size is not None:
            place = size.scope.describe(caller)
            found.add((f"{name} {place}", size_text(size.limit), size.shadow))
    if spec.max_timeout is not None:
        time = spec.max_timeout
        place = time.scope.describe(caller)
        found.add((f"max_timeout {place}", duration_text(time.limit_ns), time.shadow))
    if spec.quota is not None:
        found.add((f"quota caller:{caller}", spec.quota.text, spec.quota.shadow))
    return found


modes = st.sampled_from(["", ", mode: shadow", ", mode: off", ", mode: enforce"])


@st.composite
def blocks(draw: st.DrawFn, keys: tuple[str, ...]) -> str:
    """A mapping with some of the keys, each with some value and mode."""
    values = {
        "rate": ["5/minute", "50/hour", "unlimited"],
        "quota": ["9/day", "unlimited"],
        "concurrency": ["2", "20", "unlimited"],
        "max_timeout": ["3s", "30s", "unlimited"],
        "max_input_bytes": ["5", "64Ki", "unlimited"],
        "max_output_bytes": ["7", "1Mi"],
    }
    parts = [
        f"{key}: {{limit: {draw(st.sampled_from(values[key]))}{draw(modes)}}}"
        for key in draw(st.lists(st.sampled_from(keys), unique=True))
    ]
    mode = draw(modes).removeprefix(", ")
    return "{" + ", ".join([*parts, *([mode] if mode else [])]) + "}"


SIZES = ("max_timeout", "max_input_bytes", "max_output_bytes", "rate", "concurrency")


@given(st.data())
def test_what_is_shown_is_what_the_router_works_with(data: st.DataObject) -> None:
    ceilings, own = blocks(SIZES), blocks(SIZES)
    text = (
        f"global: {data.draw(ceilings)}\n"
        f"callers: {{bot: {data.draw(blocks((*SIZES, 'quota')))}}}\n"
        f"defaults: {data.draw(own)}\n"
        f"agents:\n  web:\n    max_output_bytes: 99\n"
        f"    tools: {{search: {data.draw(own)}, 'sea*': {data.draw(own)}}}\n"
        f"mode: {data.draw(st.sampled_from(['enforce', 'shadow', 'off']))}\n"
    )
    policy = Policy.parse(text)

    assert shown_limits(policy.explain("web", "search", "bot")) == lane_limits(
        lane(policy, caller="bot"), "bot"
    )


def test_for_run_what_the_gate_and_the_launcher_enforce_is_enforced(tmp_path: Path) -> None:
    path = write(tmp_path, {"p.yaml": TEXT})
    found = rows(Policy.load(path, purpose=RUN))

    assert found["max_frame_bytes"].enforced == "enforced"
    assert found["containment.memory"].enforced == "enforced"
    assert found["containment.memory"].note == BY_LAUNCHER
    assert {row.key for row in found.values() if row.enforced == "absent"} == set()


def test_for_run_what_the_launcher_holds_is_enforced_and_a_shadowed_gate_key_is_off() -> None:
    text = (
        "agents: {web: {containment: {io_read: 1Mi}, max_frame_bytes: {limit: 1Mi, mode: shadow}}}"
    )
    found = rows(Policy.parse(text, purpose=RUN))

    assert found["containment.io_read"].enforced == "enforced"
    assert found["max_frame_bytes"].enforced == "off"
