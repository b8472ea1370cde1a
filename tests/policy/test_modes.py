from __future__ import annotations

import pytest

from callgate.model import BytesSpec, LaneSpec, Scope, TimeSpec
from tests.policy.helpers import NS, lane

AGENT = Scope("agent", "web")
GLOBAL = Scope("global")


def shadows(spec: LaneSpec) -> dict[str, bool]:
    """Which of the limits are there, and whether they are in shadow."""
    found = {f"rate {rate.scope.kind}": rate.shadow for rate in spec.rates}
    found |= {f"concurrency {slot.scope.kind}": slot.shadow for slot in spec.slots}
    for name in ("timeout", "max_timeout", "quota", "max_input_bytes", "max_output_bytes"):
        limit = getattr(spec, name)
        if limit is not None:
            found[name] = limit.shadow
    return found


EVERYTHING = """
global: {{rate: 9/day, concurrency: 9{in_global}}}
callers: {{bot: {{rate: 9/day, concurrency: 9, quota: 9/day{in_caller}}}}}
agents:
  web:
    max_input_bytes: 9
    max_output_bytes: 9
    tools: {{search: {{rate: 9/day, concurrency: 9{in_tool}}}, doomed: {{deny: true{in_tool}}}}}
    {in_agent}
{in_policy}
"""


def everything(**where: str) -> str:
    blank = {f"in_{level}": "" for level in ("global", "caller", "tool", "agent", "policy")}
    return EVERYTHING.format(**blank | where)


ALL = {
    "rate global",
    "rate caller",
    "rate agent",
    "rate tool",
    "concurrency global",
    "concurrency caller",
    "concurrency agent",
    "concurrency tool",
    "timeout",
    "max_timeout",
    "quota",
    "max_input_bytes",
    "max_output_bytes",
}


def test_without_a_mode_everything_is_enforced() -> None:
    found = shadows(lane(everything(), caller="bot"))

    assert found == dict.fromkeys(ALL, False)


def test_a_policy_in_shadow_has_every_limit_in_shadow() -> None:
    found = shadows(lane(everything(in_policy="mode: shadow"), caller="bot"))

    assert found == dict.fromkeys(ALL, True)


def test_a_policy_that_is_off_has_no_limit() -> None:
    spec = lane(everything(in_policy="mode: off"), caller="bot")

    assert shadows(spec) == {}
    assert not lane(everything(in_policy="mode: off"), tool="doomed").denied


def test_an_agents_mode_is_that_of_its_own_limits_and_its_tools() -> None:
    found = shadows(lane(everything(in_agent="mode: shadow"), caller="bot"))

    assert {name for name, shadow in found.items() if not shadow} == {
        "rate global",
        "rate caller",
        "concurrency global",
        "concurrency caller",
        "quota",
    }


def test_a_callers_mode_is_that_of_its_own_limits() -> None:
    found = shadows(lane(everything(in_caller=", mode: shadow"), caller="bot"))

    assert {name for name, shadow in found.items() if shadow} == {
        "rate caller",
        "concurrency caller",
        "quota",
    }


def test_the_mode_of_global_is_that_of_what_is_written_there() -> None:
    found = shadows(lane(everything(in_global=", mode: shadow"), caller="bot"))

    assert {name for name, shadow in found.items() if shadow} == {
        "rate global",
        "concurrency global",
    }


def test_a_tools_mode_is_that_of_its_limits() -> None:
    found = shadows(lane(everything(in_tool=", mode: shadow"), caller="bot"))

    assert {name for name, shadow in found.items() if not shadow} == {
        "rate global",
        "rate caller",
        "rate agent",
        "concurrency global",
        "concurrency caller",
        "concurrency agent",
        "quota",
    }


@pytest.mark.parametrize(
    ("where", "denied", "shadow"),
    [
        ({}, True, False),
        ({"in_tool": ", mode: shadow"}, False, True),
        ({"in_tool": ", mode: off"}, False, False),
        ({"in_agent": "mode: shadow"}, False, True),
        ({"in_policy": "mode: shadow"}, False, True),
        ({"in_policy": "mode: shadow", "in_tool": ", mode: enforce"}, True, False),
        ({"in_caller": ", mode: off", "in_global": ", mode: off"}, True, False),
    ],
)
def test_a_deny_has_a_mode_like_any_limit(
    *, where: dict[str, str], denied: bool, shadow: bool
) -> None:
    spec = lane(everything(**where), tool="doomed", caller="bot")

    assert (spec.denied, spec.denied_shadow) == (denied, shadow)


@pytest.mark.parametrize(
    ("policy", "agent", "own", "expected"),
    [
        ("enforce", "enforce", "shadow", True),
        ("shadow", "shadow", "enforce", False),
        ("off", "shadow", None, True),
        ("shadow", "enforce", None, False),
        ("off", "off", "shadow", True),
        ("shadow", None, None, True),
        ("off", None, "enforce", False),
        ("enforce", "enforce", "off", None),
        ("enforce", "off", None, None),
    ],
)
def test_a_limits_own_mode_wins_over_its_agents_and_that_over_the_policys(
    *,
    policy: str,
    agent: str | None,
    own: str | None,
    expected: bool | None,
) -> None:
    in_agent = f", mode: {agent}" if agent else ""
    in_limit = f", mode: {own}" if own else ""
    text = f"mode: {policy}\nagents: {{web: {{concurrency: {{limit: 5{in_limit}}}{in_agent}}}}}\n"

    assert [slot.shadow for slot in lane(text).slots] == ([] if expected is None else [expected])


def test_the_mode_of_defaults_is_that_of_agents_which_say_none() -> None:
    text = "defaults: {mode: shadow}\nagents: {web: {}, mail: {mode: enforce}}\n"

    assert [slot.shadow for slot in lane(text).slots] == [True]
    assert [slot.shadow for slot in lane(text, agent="mail").slots] == [False]


class TestCeilings:
    """A shadow never replaces an enforced limit."""

    def test_a_lower_ceiling_in_shadow_leaves_the_enforced_one(self) -> None:
        text = (
            "global: {max_input_bytes: {limit: 5, mode: shadow}}\n"
            "agents: {web: {max_input_bytes: 50}}\n"
        )

        assert lane(text).max_input_bytes == BytesSpec(AGENT, 50)

    def test_a_higher_ceiling_that_is_enforced_beats_a_lower_one_of_the_agent_in_shadow(
        self,
    ) -> None:
        text = (
            "global: {max_timeout: 50s}\nagents: {web: {max_timeout: {limit: 5s, mode: shadow}}}\n"
        )

        assert lane(text).max_timeout == TimeSpec(GLOBAL, 50 * NS["s"])

    def test_without_an_enforced_one_the_lowest_in_shadow_is_recorded(self) -> None:
        text = (
            "mode: shadow\nglobal: {max_output_bytes: 5}\nagents: {web: {max_output_bytes: 50}}\n"
        )

        assert lane(text).max_output_bytes == BytesSpec(GLOBAL, 5, shadow=True)

    def test_one_that_is_off_says_nothing(self) -> None:
        text = (
            "global: {max_output_bytes: {limit: 5, mode: off}}\n"
            "agents: {web: {max_output_bytes: 50}}\n"
        )

        assert lane(text).max_output_bytes == BytesSpec(AGENT, 50)

    def test_switching_off_ones_own_does_not_lift_the_ceiling(self) -> None:
        text = "global: {max_timeout: 50s}\nagents: {web: {max_timeout: {limit: 5s, mode: off}}}\n"

        assert lane(text).max_timeout == TimeSpec(GLOBAL, 50 * NS["s"])

    def test_in_one_scope_a_shadow_stands_beside_the_enforced_ones_of_others(self) -> None:
        text = "global: {rate: {limit: 1/day, mode: shadow}}\nagents: {web: {rate: 9/day}}\n"

        assert [(rate.scope.kind, rate.shadow) for rate in lane(text).rates] == [
            ("global", True),
            ("agent", False),
        ]
