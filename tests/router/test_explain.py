"""What `Router.explain` shows is what the lane of the same call enforces, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from callgate import Policy, Router, ToolCall
from callgate.limits.deadlines import NEVER
from callgate.policy.units import duration_text, size_text

if TYPE_CHECKING:
    from callgate.policy import Row
    from callgate.router.lanes import Lane

OVERLAPPING = """\
agents:
  web:
    tools:
      "read_*":
        timeout: 2s
      "*_file":
        rate: 5/minute
"""

VALUES = {
    "timeout": ["1s", "20s", "unlimited"],
    "max_timeout": ["3s", "30s", "unlimited"],
    "rate": ["5/minute", "50/hour", "unlimited"],
    "concurrency": ["2", "20", "unlimited"],
    "max_input_bytes": ["5", "64Ki", "unlimited"],
    "max_output_bytes": ["7", "1Mi", "unlimited"],
}
CEILINGS = [key for key in VALUES if key != "timeout"]
MODES = ["", "", "shadow", "off", "enforce"]
PATTERNS = ["read_file", "read_*", "*_file", "r*", "*d*", "*", "read_????", "write"]
NAMES = ["read_file", "read_it", "file_read", "write", "read_*", "a_file", "x"]

Limits = set[tuple[str, str, str, bool]]
"""Key, scope, value, and whether it only speaks."""


@st.composite
def blocks(draw: st.DrawFn, indent: int, keys: list[str]) -> list[str]:
    """Some of the keys with some value and mode, each on a line of its own."""
    lines = []
    for key in draw(st.lists(st.sampled_from(keys), unique=True, max_size=4)):
        value, mode = draw(st.sampled_from(VALUES[key])), draw(st.sampled_from(MODES))
        lines.append(f"{key}: {{limit: {value}, mode: {mode}}}" if mode else f"{key}: {value}")
    mode = draw(st.sampled_from(MODES))
    lines.append(f"mode: {mode or 'enforce'}")
    return [" " * indent + line for line in lines]


@st.composite
def policies(draw: st.DrawFn) -> str:
    """A policy whose patterns overlap in every way."""
    lines = ["global:", *draw(blocks(2, CEILINGS))]
    lines += ["callers:", "  bot:", *draw(blocks(4, CEILINGS))]
    lines += ["defaults:", *draw(blocks(2, list(VALUES)))]
    lines += ["agents:", "  web:", *draw(blocks(4, list(VALUES))), "    tools:"]
    lines.append("      unused: allow")
    for pattern in draw(st.lists(st.sampled_from(PATTERNS), unique=True, max_size=5)):
        if draw(st.booleans()):
            lines += [f'      "{pattern}":', *draw(blocks(8, list(VALUES)))]
        else:
            lines.append(f'      "{pattern}": {draw(st.sampled_from(["deny", "allow"]))}')
    lines.append(f"mode: {draw(st.sampled_from(['enforce', 'shadow', 'off']))}")
    return "\n".join(lines)


def shown(rows: list[Row]) -> Limits:
    """Everything that `explain` says of this process."""
    found = set()
    for row in rows:
        if row.enforced not in ("enforced", "shadow") or row.key not in {*VALUES, "access"}:
            continue
        if row.key == "access" and row.value == "allow":
            continue
        scope = "" if row.key == "timeout" else row.scope  # a ceiling may speak for it
        found.add((row.key, scope, row.value, row.enforced == "shadow"))
    return found


def enforced(lane: Lane, caller: str) -> Limits:
    """The same of the counters and figures that a call meets."""
    found: Limits = set()
    for rate in (*lane.rates, *lane.shadow_rates):
        spec = rate.spec
        found.add(("rate", spec.scope.describe(caller), spec.text, rate in lane.shadow_rates))
    for slot in (*lane.slots, *lane.shadow_slots):
        scope = slot.spec.scope.describe(caller)
        found.add(("concurrency", scope, str(slot.limit), slot in lane.shadow_slots))
    spec_ = lane.spec
    for key in ("max_input_bytes", "max_output_bytes"):
        size = getattr(spec_, key)
        if size is not None:
            found.add((key, size.scope.describe(caller), size_text(size.limit), size.shadow))
    ceiling = spec_.max_timeout
    if ceiling is not None:
        scope = ceiling.scope.describe(caller)
        found.add(("max_timeout", scope, duration_text(ceiling.limit_ns), ceiling.shadow))
    own = spec_.timeout
    if own is not None and own.shadow and own.limit_ns <= lane.ceiling_ns:
        found.add(("timeout", "", duration_text(own.limit_ns), True))
    elif lane.default_ns != NEVER:
        found.add(("timeout", "", duration_text(lane.default_ns), False))
    if spec_.denied or spec_.denied_shadow:
        scope = f"tool:{spec_.agent_key}/{spec_.tool_key}"
        found.add(("access", scope, "deny", spec_.denied_shadow))
    return found


@given(
    text=policies(),
    tool=st.sampled_from(NAMES),
    listed=st.booleans(),
    caller=st.sampled_from(["bot", "alice"]),
)
def test_the_rows_are_what_the_lane_of_that_call_enforces(
    *, text: str, tool: str, listed: bool, caller: str
) -> None:
    router = Router(Policy.parse(text, source="p.yaml"))
    if listed:
        router.list_tools("web", [tool])

    rows = router.explain("web", tool, caller=caller)

    assert shown(rows) == enforced(router.lane(caller, "web", tool, 0), caller)


@given(text=policies(), tool=st.sampled_from(NAMES), listed=st.booleans())
def test_the_line_that_is_named_says_so(*, text: str, tool: str, listed: bool) -> None:
    router = Router(Policy.parse(text, source="p.yaml"))
    if listed:
        router.list_tools("web", [tool])
    lines = text.splitlines()

    for row in router.explain("web", tool, caller="bot"):
        name, _, number = row.source.partition(":")
        if name == "p.yaml" and row.key in VALUES and "lowered by" not in row.note:
            line = lines[int(number) - 1].strip()
            assert line.startswith(f"{row.key}:")
            assert row.value in line


def test_a_tool_that_nobody_lists_is_under_its_longest_pattern_alone() -> None:
    router = Router(Policy.parse(OVERLAPPING))

    keys = {(row.key, row.scope) for row in router.explain("web", "read_file")}

    assert ("timeout", "tool:web/read_*") in keys
    assert not [scope for key, scope in keys if key == "rate" and scope.startswith("tool:")]


def test_a_tool_that_somebody_lists_is_under_every_pattern_that_matches_it() -> None:
    router = Router(Policy.parse(OVERLAPPING))
    router.list_tools("web", ["read_file"])

    keys = {(row.key, row.scope) for row in router.explain("web", "read_file")}

    assert {("timeout", "tool:web/read_file"), ("rate", "tool:web/read_file")} <= keys


async def test_an_agent_that_nobody_declared_is_counted_with_all_such() -> None:
    async with Router() as router:

        async def work() -> None: ...

        await router.guard(ToolCall("unheard-of", "tool"), work)
        rows = router.explain("unheard-of", "tool")

        scopes = {row.scope for row in rows if row.key == "rate"}
        assert scopes == {rate["scope"] for rate in router.snapshot()["rates"]} == {"agent:*"}


def test_an_agent_without_a_tool_is_explained_too() -> None:
    rows = Router(Policy.parse(OVERLAPPING)).explain("web")

    assert "access" not in {row.key for row in rows}
    assert {row.scope for row in rows} == {"agent:web"}
