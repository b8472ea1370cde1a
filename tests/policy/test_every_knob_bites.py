"""Each key of the policy file has a claim here: with it calls end differently than without.

The claims go through the real router. What only a launcher or a gate can enforce stands in
`ELSEWHERE`, and `explain` must call it absent in this process. A key that has neither fails.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from callgate import Policy
from tests.policy import knobs
from tests.policy.helpers import only_problem
from tests.policy.knobs import BASE, all_keys, echo, put
from tests.router.helpers import audit_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.policy.knobs import Drive

Test = TypeVar("Test", bound="Callable[..., Any]")

KEYS = sorted(all_keys())


@dataclass(frozen=True)
class Claim:
    """With the key set to `value` a drive ends in `ends`; without it, in `otherwise`."""

    value: Any
    drive: Drive
    ends: str
    otherwise: str = "ok"
    given: dict[str, Any] = field(default_factory=dict)
    """Other keys that both have."""


ISOLATED = {"agents.*.tools.*.isolate": "task"}
ONE_PLACE = {"agents.*.tools.*.concurrency": 1}

BY_NAME = {
    "rate": Claim("1/day", knobs.twice, "limit.rate"),
    "concurrency": Claim(1, knobs.together, "limit.concurrency"),
    "quota": Claim("1/day", knobs.twice, "limit.quota"),
    "timeout": Claim("20ms", knobs.slow, "limit.timeout"),
    "max_timeout": Claim("20ms", knobs.slow_and_asks, "limit.timeout"),
    "max_input_bytes": Claim(50, knobs.once, "limit.input_bytes"),
    "max_output_bytes": Claim(50, knobs.once, "limit.output_bytes"),
    "deny": Claim(True, knobs.once, "policy.denied"),
    "queue": Claim(1, knobs.together, "ok", "limit.concurrency", ONE_PLACE),
    "isolate": Claim("task", knobs.stubborn, "answered", "delayed"),
    "cancel_grace": Claim(
        "0s", knobs.after_a_stubborn_one, "ok", "limit.concurrency", ISOLATED | ONE_PLACE
    ),
}
"""Claims that hold wherever a key of this name stands, unless `ELSEWHERE` has it."""

QUEUE = {"agents.*.queue": 5}

OF_A_RATE: dict[str, Callable[[str], Claim]] = {
    "burst": lambda rate: Claim(1, knobs.twice, "limit.rate", "ok", {rate: {"limit": "1000/day"}}),
    "on_limit": lambda rate: Claim(
        "wait", knobs.twice, "ok", "limit.rate", {rate: {"limit": "100/second", "burst": 1}} | QUEUE
    ),
    "per": lambda rate: Claim(
        "caller", knobs.two_callers, "ok", "limit.rate", {rate: {"limit": "1/day"}}
    ),
}

OF_A_LEVEL = {
    "mode": {"agents.*.concurrency": 1},
    "defaults.mode": {"agents.*.concurrency": 1},
    "agents.*.mode": {"agents.*.concurrency": 1},
    "agents.*.tools.*.mode": {"agents.*.tools.*.concurrency": 1},
    "global.mode": {"global.concurrency": 1},
    "callers.*.mode": {"callers.*.concurrency": 1},
}
"""A `mode` of more than one limit, and a limit that it switches off."""

OTHERS = {
    "profile": Claim("interactive", knobs.sixty_one, "ok", "limit.rate", {"defaults": {}}),
    "agents.*.manifest": Claim("agent.json", knobs.together, "limit.concurrency"),
}

ELSEWHERE = {
    "agents.*.command": ["python"],
    "callers.*.token": "env:BOT_TOKEN",
} | {
    f"{level}.{key}": value
    for level in ("defaults", "agents.*")
    for key, value in {
        "on_ignored_cancel": "kill",
        "protocol": "runtime",
        "launcher": "docker",
        "handshake": "9s",
        "denials": "error",
        "tasks": "pass",
        "max_frame_bytes": "9Mi",
        "bandwidth": "9Mbps",
        "requests.timeout": "9s",
        "env.pass": ["PATH"],
        "env.secret": ["TOKEN"],
        "containment.level": "strict",
        "containment.memory": "9Mi",
        "containment.cpu": "900m",
        "containment.pids": 9,
        "containment.disk": "9Mi",
        "containment.files": 9,
        "containment.open_files": 9,
        "containment.cpu_time": "9s",
        "containment.wall_time": "9s",
        "containment.address_space": "9Gi",
        "containment.connections": 9,
        "containment.core_size": "9Mi",
        "containment.io_read": "9Mi",
        "containment.io_write": "9Mi",
        "containment.exec": ["git"],
        "containment.cgroup_parent": "/sys/fs/cgroup/agents",
        "containment.mounts[].path": "a",
        "containment.mounts[].read_only": True,
        "containment.mounts[].sockets": True,
        "containment.allow_degraded": True,
        "containment.monitor_interval": "9s",
        "containment.kill_grace": "9s",
        "restart.on": "never",
        "restart.max": 9,
        "restart.backoff": "9s..90s",
    }.items()
}
"""Keys that a launcher or a gate enforces, and no process without one; with some value."""

SPECIAL: dict[str, str] = {}
"""Key → the test of its own."""


def bites(*keys: str) -> Callable[[Test], Test]:
    """This test proves it of these keys."""

    def register(test: Test) -> Test:
        SPECIAL.update(dict.fromkeys(keys, test.__name__))
        return test

    return register


def claim_of(key: str) -> Claim | None:
    """What is claimed of a key that this process enforces."""
    above, _, name = key.rpartition(".")
    if key in OTHERS:
        return OTHERS[key]
    if key in OF_A_LEVEL:
        return Claim("off", knobs.together, "ok", "limit.concurrency", OF_A_LEVEL[key])
    if name in OF_A_RATE and above.endswith("rate"):
        return OF_A_RATE[name](above)
    return None if key in ELSEWHERE else BY_NAME.get(name)


def limit_of(key: str) -> str | None:
    """The limit whose own mode a key is."""
    above, _, name = key.rpartition(".")
    return above if name == "mode" and key not in OF_A_LEVEL else None


CLAIMED = [key for key in KEYS if claim_of(key) is not None]
MODES = [key for key in KEYS if claim_of(limit_of(key) or "") is not None]
MODES_ELSEWHERE = [key for key in KEYS if (limit_of(key) or "") in ELSEWHERE]


def with_all(given: dict[str, Any]) -> dict[str, Any]:
    tree = BASE
    for key, value in given.items():
        tree = put(tree, key, value)
    return tree


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the manifest that one of the claims names."""
    manifest = {"execution_limits": {"max_concurrent_calls": 1}}
    (tmp_path / "agent.json").write_text(json.dumps(manifest))
    return tmp_path


def test_every_key_of_the_policy_file_has_a_claim_and_every_claim_a_key() -> None:
    claimed = {*CLAIMED, *MODES, *MODES_ELSEWHERE, *ELSEWHERE, *SPECIAL}

    assert set(KEYS) - claimed == set(), "keys without a test that they bite"
    assert claimed - set(KEYS) == set(), "claims of keys that are not there"


@pytest.mark.parametrize("key", CLAIMED)
async def test_with_the_key_calls_end_differently_than_without(key: str, place: Path) -> None:
    claim = claim_of(key)
    assert claim is not None
    without = with_all(claim.given)

    assert await claim.drive(without, place) == claim.otherwise
    assert await claim.drive(put(without, key, claim.value), place) == claim.ends


@pytest.mark.parametrize("mode", ["shadow", "off"])
@pytest.mark.parametrize("key", MODES)
async def test_a_limits_own_mode_lets_calls_pass_and_a_shadow_says_so(
    key: str, mode: str, place: Path
) -> None:
    limit = limit_of(key)
    claim = claim_of(limit or "")
    assert limit is not None
    assert claim is not None
    tree = with_all(claim.given | {"audit": {"path": "audit"}})
    tree = put(put(tree, limit, {"limit": claim.value}), key, mode)

    assert await claim.drive(tree, place) == "ok"

    records = audit_lines(place / "audit")
    would_deny = [line["code"] for line in records if line["event"] == "tool.call.would_deny"]
    assert would_deny == ([claim.ends] if mode == "shadow" else [])


def absent(tree: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What `explain` calls absent: key → (source, mode)."""
    text = json.dumps(tree, indent=1)
    found = Policy.parse(text, source="p.json").explain("web", "search", "bot")
    return {row.key: (row.source, row.mode) for row in found if row.enforced == "absent"}


def set_elsewhere(key: str, mode: str | None = None) -> tuple[dict[str, Any], str]:
    """A policy with the key, and the key's name in `explain`."""
    value = ELSEWHERE[key] if mode is None else {"limit": ELSEWHERE[key], "mode": mode}
    above, mounts, member = key.partition("[].")
    name = above.removeprefix("defaults.").removeprefix("agents.*.").removeprefix("callers.*.")
    if mounts:
        return put(BASE, above, [{"path": "a"} | {member: value}]), name
    return put(BASE, key, value), name


@pytest.mark.parametrize("key", sorted(ELSEWHERE))
def test_what_only_a_launcher_or_a_gate_enforces_is_absent_in_process(key: str) -> None:
    tree, name = set_elsewhere(key)

    source, _ = absent(tree)[name]

    assert source.startswith("p.json:")
    assert not absent(BASE).get(name, ("", ""))[0].startswith("p.json:")


@pytest.mark.parametrize("key", MODES_ELSEWHERE)
def test_the_mode_of_what_is_enforced_elsewhere_is_handed_on(key: str) -> None:
    tree, name = set_elsewhere(limit_of(key) or "", "shadow")

    assert absent(tree)[name][1] == "shadow"


def test_nothing_is_absent_that_is_claimed_to_bite_here() -> None:
    tree = BASE
    for key in ELSEWHERE:
        if key.startswith(("agents.*", "callers.*")) and "[]" not in key:
            tree = put(tree, key, ELSEWHERE[key])
    elsewhere = {set_elsewhere(key)[1] for key in ELSEWHERE}

    assert set(absent(tree)) <= elsewhere


@bites("version")
def test_another_version_is_refused() -> None:
    assert only_problem("version: 2").path == "version"


@bites("state")
def test_a_state_that_is_not_local_is_refused() -> None:
    assert only_problem("state: redis://localhost").path == "state"


class Disk:
    """A disk that can be full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._write = os.write
        monkeypatch.setattr("callgate.audit.writer.os_write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        return self._write(descriptor, data)


async def audited(place: Path, calls: int = 1, **audit: Any) -> None:
    """Some calls with an audit log, one segment after the other."""
    async with knobs.router(put(BASE, "audit", {"path": "audit"} | audit), place, echo) as made:
        for _ in range(calls):
            await made.call(knobs.call())


def segments(place: Path) -> int:
    return len(list((place / "audit").glob("*/*.jsonl")))


@bites("audit.path")
async def test_calls_are_written_to_the_audits_path(place: Path) -> None:
    await audited(place)

    events = [line["event"] for line in audit_lines(place / "audit")]
    assert "tool.call.completed" in events


@bites("audit.on_failure")
@pytest.mark.parametrize(
    ("audit", "answer"),
    [({}, "audit.unavailable"), ({"on_failure": "drop"}, "ok")],
    ids=["fail_closed", "drop"],
)
async def test_when_the_log_cannot_be_written_calls_are_refused_or_pass(
    place: Path, monkeypatch: pytest.MonkeyPatch, audit: dict[str, str], answer: str
) -> None:
    disk = Disk(monkeypatch)
    tree = put(BASE, "audit", {"path": "audit"} | audit)
    async with knobs.router(tree, place, echo) as made:
        disk.full = True
        said = await knobs.said(made.call(knobs.call()))
        disk.full = False

    assert said == answer


@bites("audit.rotate")
async def test_a_small_rotate_makes_many_segments(place: Path, tmp_path: Path) -> None:
    await audited(place, 40)
    assert segments(place) == 1
    (tmp_path / "small").mkdir()

    await audited(tmp_path / "small", 40, rotate="4Ki")

    assert segments(tmp_path / "small") > 2


@bites("audit.keep", "audit.max_bytes")
@pytest.mark.parametrize(
    "limit", [{"keep": "1ms"}, {"max_bytes": "8Ki"}], ids=["keep", "max_bytes"]
)
async def test_what_is_too_old_or_too_much_is_deleted(
    place: Path, tmp_path: Path, limit: dict[str, str]
) -> None:
    await audited(place, 100, rotate="4Ki")
    (tmp_path / "less").mkdir()

    await audited(tmp_path / "less", 100, rotate="4Ki", **limit)

    assert segments(tmp_path / "less") < segments(place)


@bites("audit.stdout")
async def test_a_copy_is_printed_if_asked_for(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await audited(place)
    assert "tool.call" not in capfd.readouterr().out

    await audited(place, stdout=True)

    assert "tool.call.completed" in capfd.readouterr().out


@bites("audit.otel")
async def test_a_copy_goes_to_opentelemetry_if_asked_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    monkeypatch.setattr(
        "opentelemetry._logs.get_logger", lambda name, **_: provider.get_logger(name)
    )
    await audited(place)
    assert exporter.get_finished_logs() == ()

    await audited(place, otel=True)

    bodies = [log.log_record.body for log in exporter.get_finished_logs()]
    assert "tool.call.completed" in bodies
