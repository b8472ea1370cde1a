from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from callgate.model import AuditSpec, BytesSpec, RateSpec, Scope, SlotSpec, TimeSpec
from callgate.policy import Policy
from callgate.policy.purpose import ROUTER, RUN, SERVE, ProfileName, Purpose
from tests.policy.helpers import NS, lane

if TYPE_CHECKING:
    from pathlib import Path

AGENT = Scope("agent", "web")
TOOL = Scope("tool", "web", "search")
GLOBAL = Scope("global")
CALLER = Scope("caller")
NAMES: tuple[ProfileName, ...] = ("guarded", "interactive")
MIB = 1024 * 1024

LEVELS = [
    ("profile", "profile: guarded", 15),
    ("defaults", "defaults: {timeout: 14s}", 14),
    ("agent", "    timeout: 13s", 13),
    ("short pattern", '      "s*": {timeout: 12s}', 12),
    ("long pattern", '      "sea*": {timeout: 11s}', 11),
    ("tool", "      search: {timeout: 10s}", 10),
]


@pytest.mark.parametrize("top", range(len(LEVELS)), ids=[level[0] for level in LEVELS])
def test_the_most_specific_statement_wins(top: int) -> None:
    stated = [text for _, text, _ in LEVELS[: top + 1]]
    head = [line for line in stated if not line.startswith(" ")]
    agent = [line for line in stated if line.startswith("    ") and line[4] != " "]
    tools = [line for line in stated if line.startswith("      ")]
    text = "\n".join(
        [*head, "agents:", "  web:", *agent, *(["    tools:", *tools] if tools else [])]
    )

    assert lane(text).timeout == TimeSpec(TOOL if tools else AGENT, LEVELS[top][2] * NS["s"])


@pytest.mark.parametrize(
    ("key", "defaults", "own", "attribute", "value"),
    [
        ("timeout", "9s", "8s", "timeout", TimeSpec(AGENT, 8 * NS["s"])),
        ("max_timeout", "9s", "99s", "max_timeout", TimeSpec(AGENT, 99 * NS["s"])),
        ("concurrency", "9", "8", "slots", (SlotSpec(AGENT, 8),)),
        ("queue", "9", "0", "queue", 0),
        ("rate", "9/day", "8/day", "rates", (RateSpec(AGENT, "8/day", 8, NS["d"], 8),)),
        ("max_input_bytes", "9", "8", "max_input_bytes", BytesSpec(AGENT, 8)),
        ("max_output_bytes", "9", "18", "max_output_bytes", BytesSpec(AGENT, 18)),
        ("cancel_grace", "9s", "0s", "cancel_grace_ns", 0),
        ("on_ignored_cancel", "kill", "restart", "on_ignored_cancel", "restart"),
    ],
)
def test_an_agents_own_key_replaces_the_defaults(
    key: str, defaults: str, own: str, attribute: str, value: object
) -> None:
    text = f"defaults: {{{key}: {defaults}}}\nagents:\n  web: {{{key}: {own}}}\n  mail: {{}}\n"

    assert getattr(lane(text), attribute) == value
    assert getattr(lane(text, agent="mail"), attribute) != value


def test_an_agent_that_is_not_in_the_file_gets_the_defaults() -> None:
    policy = Policy.parse("defaults: {timeout: 9s, concurrency: 2}\nagents: {web: {timeout: 1s}}")

    stranger = lane(policy, agent="*", tool="*")

    assert policy.agent_key("stranger") == "*"
    assert stranger.timeout == TimeSpec(Scope("agent", "*"), 9 * NS["s"])
    assert stranger.slots == (SlotSpec(Scope("agent", "*"), 2),)


def test_a_keys_of_the_longest_pattern_are_filled_from_the_next_one() -> None:
    text = 'agents: {web: {tools: {"*": {timeout: 1s, concurrency: 9}, "s*": {timeout: 2s}}}}'

    found = lane(text)

    assert found.timeout == TimeSpec(TOOL, 2 * NS["s"])
    assert found.slots[-1] == SlotSpec(TOOL, 9)


@pytest.mark.parametrize("key", ["max_timeout", "max_input_bytes", "max_output_bytes"])
class TestCeilings:
    """`global`, the caller and the manifest only lower."""

    def spec(self, text: str, key: str, caller: str = "*") -> tuple[Scope, int]:
        found = getattr(lane(text, caller=caller), key)
        return found.scope, found.limit_ns if key == "max_timeout" else found.limit

    def value(self, key: str, size: int) -> tuple[str, int]:
        return (f"{size}s", size * NS["s"]) if key == "max_timeout" else (f"{size}B", size)

    @pytest.mark.parametrize("lowest", ["own", "global", "caller"])
    def test_the_lowest_of_all_that_apply_holds(self, key: str, lowest: str) -> None:
        text = {
            name: self.value(key, 5 if name == lowest else 50)[0]
            for name in ("own", "global", "caller")
        }
        policy = (
            f"global: {{{key}: {text['global']}}}\n"
            f"callers: {{bot: {{{key}: {text['caller']}}}}}\n"
            f"agents: {{web: {{tools: {{search: {{{key}: {text['own']}}}}}}}}}\n"
        )

        scope = {"own": TOOL, "global": GLOBAL, "caller": CALLER}[lowest]
        assert self.spec(policy, key, caller="bot") == (scope, self.value(key, 5)[1])

    def test_unlimited_lifts_no_ceiling(self, key: str) -> None:
        text, number = self.value(key, 7)
        policy = f"global: {{{key}: {text}}}\nagents: {{web: {{{key}: unlimited}}}}\n"

        assert self.spec(policy, key) == (GLOBAL, number)

    def test_a_ceiling_of_another_caller_is_not_ones_own(self, key: str) -> None:
        low, _ = self.value(key, 3)
        high, number = self.value(key, 30)
        policy = f"callers: {{bot: {{{key}: {low}}}}}\nagents: {{web: {{{key}: {high}}}}}\n"

        assert self.spec(policy, key, caller="*") == (AGENT, number)

    def test_the_star_is_a_template_for_unnamed_callers_only(self, key: str) -> None:
        low, low_number = self.value(key, 3)
        high, number = self.value(key, 30)
        policy = (
            f"callers: {{'*': {{{key}: {low}}}, bot: {{}}}}\nagents: {{web: {{{key}: {high}}}}}\n"
        )

        assert self.spec(policy, key, caller="*") == (CALLER, low_number)
        assert self.spec(policy, key, caller="bot") == (AGENT, number)


SCOPES = """
global: {rate: 1000/hour, concurrency: 200}
callers:
  "*": {rate: 600/minute, concurrency: 32}
  bot: {rate: 30/minute, quota: 1000/hour}
agents:
  web:
    rate: {limit: 100/minute, burst: 20, on_limit: wait, per: caller}
    concurrency: 5
    tools:
      search: {rate: 5/minute, concurrency: 1}
"""


def test_rates_of_different_scopes_all_apply() -> None:
    assert lane(SCOPES).rates == (
        RateSpec(GLOBAL, "1000/hour", 1000, NS["h"], 1000),
        RateSpec(CALLER, "600/minute", 600, NS["m"], 600),
        RateSpec(Scope("agent", "web", per_caller=True), "100/minute", 100, NS["m"], 20, wait=True),
        RateSpec(TOOL, "5/minute", 5, NS["m"], 5),
    )


def test_concurrencies_of_different_scopes_all_apply() -> None:
    assert lane(SCOPES).slots == (
        SlotSpec(GLOBAL, 200),
        SlotSpec(CALLER, 32),
        SlotSpec(AGENT, 5),
        SlotSpec(TOOL, 1),
    )


def test_a_named_caller_has_its_own_entry_and_nothing_of_the_template() -> None:
    found = lane(SCOPES, caller="bot")

    assert [rate.text for rate in found.rates if rate.scope == CALLER] == ["30/minute"]
    assert [slot for slot in found.slots if slot.scope == CALLER] == []
    assert found.quota is not None
    assert (found.quota.limit, found.quota.period_ns) == (1000, NS["h"])
    assert lane(SCOPES).quota is None


def test_a_tools_rate_is_beside_the_agents_and_the_most_specific_of_tools_wins() -> None:
    text = 'agents: {web: {rate: 9/day, tools: {"s*": {rate: 8/day}, search: {rate: 7/day}}}}'

    assert [rate.text for rate in lane(text).rates] == ["9/day", "7/day"]


def test_unlimited_and_off_leave_no_counter() -> None:
    text = (
        "agents: {web: {rate: unlimited, concurrency: {limit: 5, mode: off}, timeout: unlimited}}"
    )

    found = lane(text)

    assert found.rates == ()
    assert found.slots == ()
    assert found.timeout is None


def test_the_profiles_have_the_designs_values() -> None:
    guarded, interactive = (lane(Policy.profile(name)) for name in ("guarded", "interactive"))

    assert (guarded.timeout, guarded.max_timeout) == (
        TimeSpec(AGENT, 15 * NS["s"]),
        TimeSpec(AGENT, 60 * NS["s"]),
    )
    assert guarded.rates == (RateSpec(AGENT, "60/minute", 60, NS["m"], 60),)
    assert (guarded.slots, guarded.queue) == ((SlotSpec(AGENT, 3),), 20)
    assert (interactive.timeout, interactive.max_timeout) == (
        TimeSpec(AGENT, 10 * NS["m"]),
        TimeSpec(AGENT, 60 * NS["m"]),
    )
    assert interactive.rates == ()
    assert (interactive.slots, interactive.queue) == ((SlotSpec(AGENT, 64),), 10_000)
    assert guarded.cancel_grace_ns == interactive.cancel_grace_ns == 5 * NS["s"]
    assert guarded.on_ignored_cancel == interactive.on_ignored_cancel == "release"


def test_the_profiles_have_the_designs_values_of_a_connection() -> None:
    guarded, interactive = (Policy.profile(name).gate("web") for name in NAMES)

    assert (guarded.max_frame_bytes, guarded.handshake_ns) == (4 * MIB, 60 * NS["s"])
    assert (interactive.max_frame_bytes, interactive.handshake_ns) == (64 * MIB, 120 * NS["s"])


def test_a_policy_that_says_nothing_is_guarded() -> None:
    said_nothing, guarded = lane("version: 1"), lane("profile: guarded")

    assert msgspec.structs.replace(said_nothing, policy=guarded.policy) == guarded


@pytest.mark.parametrize("stated", NAMES)
@pytest.mark.parametrize("purpose", [ROUTER, RUN, SERVE], ids=lambda purpose: purpose.name)
def test_a_profile_that_is_written_is_the_same_for_everybody(stated: str, purpose: Purpose) -> None:
    made = Policy.parse(f"profile: {stated}", purpose=purpose)

    assert made.profile_name == stated
    assert lane(made).timeout == lane(f"profile: {stated}").timeout


def test_under_run_two_lines_tighten_what_they_say_and_nothing_else() -> None:
    nothing = lane(Policy.profile("interactive", purpose=RUN))

    two = lane(Policy.parse("version: 1\nagents: {web: {concurrency: 2}}", purpose=RUN))

    assert two.slots == (SlotSpec(AGENT, 2),)
    assert msgspec.structs.replace(two, slots=nothing.slots, policy=nothing.policy) == nothing


AT_HOME = AuditSpec("/home/me/audit", fail_closed=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("version: 1", AT_HOME),
        ("audit: off", None),
        ("audit: 'off'", None),
        ("audit: {path: /srv/audit}", AuditSpec("/srv/audit")),
    ],
)
def test_the_audit_of_run_stays_unless_the_file_says_otherwise(
    text: str, found: AuditSpec | None
) -> None:
    run = msgspec.structs.replace(RUN, audit=AT_HOME)

    assert Policy.parse(text, purpose=run).audit == found


def test_a_tried_profile_is_beside_what_holds_in_shadow_and_counted_apart() -> None:
    purpose = msgspec.structs.replace(RUN, tried="guarded")
    made = lane(Policy.profile("interactive", purpose=purpose))
    tried = Scope("agent", "web", tried=True)

    assert made.slots == (SlotSpec(AGENT, 64), SlotSpec(tried, 3, shadow=True, queue=20))
    assert made.rates == (RateSpec(tried, "60/minute", 60, NS["m"], 60, shadow=True),)
    assert (made.timeout, made.queue) == (TimeSpec(AGENT, 10 * NS["m"]), 10_000)
    assert made.tried_timeout == TimeSpec(tried, 15 * NS["s"], shadow=True)
    assert made.tried_max_timeout == TimeSpec(tried, 60 * NS["s"], shadow=True)


def test_a_limit_in_shadow_knows_how_many_would_have_waited_for_it() -> None:
    text = "agents: {web: {concurrency: {limit: 2, mode: shadow}, queue: 5}}"

    assert lane(text).slots == (SlotSpec(AGENT, 2, shadow=True, queue=5),)


class TestManifestCeilings:
    """A manifest replaces the profile's values and is capped by what the policy states."""

    def policy(
        self, tmp_path: Path, execution: dict[str, object], rest: str = "", own: str = ""
    ) -> Policy:
        (tmp_path / "agent.json").write_text(json.dumps({"execution_limits": execution}))
        text = f"{rest}\nagents: {{web: {{manifest: agent.json{own}}}}}\n"
        return Policy.parse(text, base=tmp_path)

    def test_it_replaces_the_profiles_values(self, tmp_path: Path) -> None:
        policy = self.policy(
            tmp_path,
            {
                "max_tool_call_duration": "30s",
                "max_concurrent_calls": 5,
                "rate_limit": "100/minute",
            },
        )

        found = lane(policy)

        assert found.timeout == TimeSpec(AGENT, 30 * NS["s"])
        assert found.max_timeout == TimeSpec(AGENT, 30 * NS["s"])
        assert found.slots == (SlotSpec(AGENT, 5),)
        assert found.rates == (RateSpec(AGENT, "100/minute", 100, NS["m"], 100),)

    @pytest.mark.parametrize(("own", "manifest", "holds"), [(2, 5, 2), (9, 5, 5)])
    def test_the_lower_of_manifest_and_agent_holds(
        self, tmp_path: Path, own: int, manifest: int, holds: int
    ) -> None:
        policy = self.policy(
            tmp_path,
            {
                "max_concurrent_calls": manifest,
                "rate_limit": f"{manifest}/minute",
                "max_tool_call_duration": f"{manifest}s",
            },
            own=f", concurrency: {own}, rate: {own}/minute, max_timeout: {own}s",
        )

        found = lane(policy)

        assert found.slots == (SlotSpec(AGENT, holds),)
        assert [rate.count for rate in found.rates] == [holds]
        assert found.max_timeout == TimeSpec(AGENT, holds * NS["s"])

    def test_rates_are_compared_by_their_pace_not_their_number(self, tmp_path: Path) -> None:
        policy = self.policy(tmp_path, {"rate_limit": "100/hour"}, own=", rate: 50/minute")

        assert [rate.text for rate in lane(policy).rates] == ["100/hour"]

    def test_a_manifests_rate_is_met_as_the_operator_says(self, tmp_path: Path) -> None:
        policy = self.policy(
            tmp_path,
            {"rate_limit": "100/minute"},
            rest="defaults: {rate: {limit: 160/minute, on_limit: wait}, queue: 5}",
        )

        assert lane(policy).rates == (RateSpec(AGENT, "100/minute", 100, NS["m"], 100, wait=True),)

    def test_a_rate_for_each_caller_and_a_manifests_for_all_both_apply(
        self, tmp_path: Path
    ) -> None:
        policy = self.policy(
            tmp_path, {"rate_limit": "100/minute"}, own=", rate: {limit: 50/minute, per: caller}"
        )

        assert [(rate.text, rate.scope.per_caller) for rate in lane(policy).rates] == [
            ("50/minute", True),
            ("100/minute", False),
        ]

    def test_a_tools_timeout_is_lowered_to_the_manifests(self, tmp_path: Path) -> None:
        policy = self.policy(
            tmp_path,
            {"max_tool_call_duration": "30s"},
            own=", tools: {search: {timeout: 50s, max_timeout: 120s}}",
        )

        found = lane(policy)

        assert found.timeout == TimeSpec(TOOL, 50 * NS["s"])
        assert found.max_timeout == TimeSpec(AGENT, 30 * NS["s"])

    def test_another_agents_manifest_says_nothing_here(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('{"execution_limits": {"max_concurrent_calls": 1}}')
        policy = Policy.parse("agents: {web: {}, mail: {manifest: a.json}}", base=tmp_path)

        assert lane(policy).slots == (SlotSpec(AGENT, 3),)
        assert lane(policy, agent="mail").slots == (SlotSpec(Scope("agent", "mail"), 1),)
