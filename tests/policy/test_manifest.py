from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.model import ResourceLimits
from callgate.policy import Policy, PolicyError
from callgate.policy.manifest import MAX_MANIFEST_BYTES, Manifest, read_manifest
from tests.policy.helpers import ROOT, only_problem, problems, rows, write

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024
OPENSENTIENCE = {
    "name": "git-analyzer",
    "version": "1.0.0",
    "resources": {
        "cpu": {"request": "100m", "limit": "500m"},
        "memory": {"request": "128Mi", "limit": "512Mi"},
        "disk": {"limit": "1Gi"},
        "network": {"bandwidth_limit": "10Mbps", "max_connections": 100},
    },
    "execution_limits": {
        "max_tool_call_duration": "30s",
        "max_concurrent_calls": 5,
        "rate_limit": "100/minute",
    },
}
CLAUDE = {
    "permissions": {"allow": ["Bash(ls)"]},
    "env": {"API_KEY": "hunter2"},
    "hooks": {"PreToolUse": [{"command": "touch /tmp/never"}]},
    "resources": {"memoryMb": 1024, "cpuPercent": 200, "diskMb": 100, "maxProcesses": 32},
}


def manifest(content: Any) -> Manifest:
    found, errors = read_manifest(json.dumps(content).encode(), "agent.json")
    assert errors == []
    assert found is not None
    return found


def policy(tmp_path: Path, content: Any, own: str = "") -> Policy:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / "agent.json").write_bytes(data)
    return Policy.parse(f"agents: {{web: {{manifest: agent.json{own}}}}}", base=tmp_path)


def test_the_example_of_opensentience_means_what_it_says(tmp_path: Path) -> None:
    found = rows(policy(tmp_path, OPENSENTIENCE))

    assert {name: found[name].value for name in found if "manifest" in found[name].source} == {
        "timeout": "30s",
        "max_timeout": "30s",
        "rate agent:web": "100/minute, burst 100",
        "concurrency agent:web": "5",
        "network.bandwidth": "10Mbps",
        "containment.memory": "512Mi",
        "containment.cpu": "500m",
        "containment.disk": "1Gi",
        "containment.connections": "100",
    }
    assert found["timeout"].source == "manifest agent.json"


def test_the_resources_of_claude_settings_mean_what_they_say(tmp_path: Path) -> None:
    found = rows(policy(tmp_path, CLAUDE))

    assert {name: found[name].value for name in found if "manifest" in found[name].source} == {
        "containment.memory": "1Gi",
        "containment.cpu": "2000m",
        "containment.disk": "100Mi",
        "containment.pids": "32",
        "containment.connections": "50",
        "network.bandwidth": "5Mbps",
    }
    assert found["containment.connections"].source == "manifest default"


def test_what_a_manifest_leaves_out_has_the_defaults_of_its_format(tmp_path: Path) -> None:
    made = policy(tmp_path, {}, ", command: [x]")

    spec = made.launch_spec("web")

    assert spec.limits == ResourceLimits(
        cpu_millicores=200,
        memory_bytes=256 * MIB,
        disk_bytes=100 * MIB,
        connections=50,
        pids=64,
    )
    assert set(spec.assumed) == {"cpu", "memory", "disk", "connections", "pids"}
    assert (spec.contained, spec.declared, spec.requested) == (True, (), ResourceLimits())


GREEDY = {
    "resources": {
        "cpu": {"limit": "64000m"},
        "memory": {"limit": "8Gi"},
        "network": {"max_connections": 5000},
    },
    "execution_limits": {
        "max_tool_call_duration": "1h",
        "max_concurrent_calls": 500,
        "rate_limit": "1000000/second",
    },
}
WRITTEN = (
    "timeout: 20s, max_timeout: 30s, concurrency: 2, rate: 60/minute, "
    "containment: {memory: 256Mi, cpu: 500m, connections: 9}"
)


@pytest.mark.parametrize("where", ["defaults", "agent"])
def test_whatever_an_operator_wrote_caps_a_manifest_and_both_figures_are_shown(
    tmp_path: Path, where: str
) -> None:
    (tmp_path / "agent.json").write_text(json.dumps(GREEDY))
    own = f", {WRITTEN}" if where == "agent" else ""
    head = f"defaults: {{{WRITTEN}}}\n" if where == "defaults" else ""

    made = Policy.parse(f"{head}agents: {{web: {{manifest: agent.json{own}}}}}", base=tmp_path)

    found = rows(made)
    shown = {
        "timeout": ("20s", "1h"),
        "max_timeout": ("30s", "1h"),
        "concurrency agent:web": ("2", "500"),
        "rate agent:web": ("60/minute", "1000000/second"),
        "containment.memory": ("256Mi", "8Gi"),
        "containment.cpu": ("500m", "64000m"),
        "containment.connections": ("9", "5000"),
    }
    for key, (holds, asked) in shown.items():
        assert (key, found[key].value) == (key, holds)
        assert f"manifest agent.json states {asked}" in found[key].note, key


@pytest.mark.parametrize("profile", ["guarded", "interactive"])
def test_a_profiles_values_alone_cap_no_manifest(tmp_path: Path, profile: str) -> None:
    (tmp_path / "agent.json").write_text(
        '{"execution_limits": {"max_tool_call_duration": "2h", "max_concurrent_calls": 500}}'
    )
    text = f"profile: {profile}\nagents: {{web: {{manifest: agent.json}}}}"

    found = rows(Policy.parse(text, base=tmp_path))

    assert found["timeout"].value == found["max_timeout"].value == "2h"
    assert found["concurrency agent:web"].value == "500"


def test_unlimited_lets_a_manifest_stand(tmp_path: Path) -> None:
    found = rows(policy(tmp_path, OPENSENTIENCE, ", containment: {memory: unlimited}"))

    assert found["containment.memory"].value == "512Mi"


@pytest.mark.parametrize("cpu", ["500", 500, "100"])
def test_whole_processors_that_no_host_has_are_warned_of(tmp_path: Path, cpu: object) -> None:
    (made,) = policy(tmp_path, {"resources": {"cpu": {"limit": cpu}}}).warnings

    assert made.path == "agents.web.manifest"
    assert made.found == f"{cpu} whole processors in manifest agent.json"
    assert f"{cpu}m" in made.expected


def test_so_is_one_in_the_file_itself_and_thousandths_are_not() -> None:
    (made,) = Policy.parse("agents: {web: {containment: {cpu: 500}}}").warnings

    assert (made.path, made.found) == ("agents.web.containment.cpu", "500 whole processors")
    assert Policy.parse("agents: {web: {containment: {cpu: 500m}}}").warnings == ()


def test_requests_are_shown_beside_their_limits(tmp_path: Path) -> None:
    made = policy(tmp_path, OPENSENTIENCE, ", command: [x]")
    found = rows(made)

    assert found["containment.memory"].note.endswith("requested 128Mi")
    assert found["containment.cpu"].note.endswith("requested 100m")
    assert made.launch_spec("web").requested == ResourceLimits(
        cpu_millicores=100, memory_bytes=128 * MIB
    )
    found = rows(policy(tmp_path, {}))
    assert found["containment.memory"].note.endswith("requested 64Mi by default")


def test_a_manifests_bandwidth_is_the_networks_and_paces_no_message(tmp_path: Path) -> None:
    made = policy(tmp_path, OPENSENTIENCE)

    row = rows(made)["network.bandwidth"]

    assert (row.value, row.enforced) == ("10Mbps", "absent")
    assert made.gate("web").bandwidth_bps is None


def test_the_launcher_is_told_which_limits_are_the_manifests(tmp_path: Path) -> None:
    made = policy(tmp_path, OPENSENTIENCE, ", command: [x], containment: {memory: 256Mi}")

    assert set(made.launch_spec("web").declared) == {"cpu", "disk", "connections"}


def test_what_the_agent_states_caps_its_manifests_containment(tmp_path: Path) -> None:
    own = ", containment: {memory: 256Mi, disk: 9Gi, level: strict}"

    found = rows(policy(tmp_path, OPENSENTIENCE, own))

    assert found["containment.memory"].value == "256Mi"
    assert found["containment.disk"].value == "1Gi"
    assert found["containment.cpu"].value == "500m"
    assert found["containment.level"].value == "strict"


def test_a_manifest_without_limits_says_nothing() -> None:
    assert manifest({"name": "x"}).limits.model_fields_set == set()
    assert manifest({}).limits.model_fields_set == set()
    assert manifest({"resources": {}, "execution_limits": {}}).limits.model_fields_set == set()


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"resources": []}, "resources"),
        ({"resources": None}, "resources"),
        ({"execution_limits": "fast"}, "execution_limits"),
        ({"resources": {"cpu": "500m"}}, "cpu"),
        ({"resources": {"network": 5}}, "network"),
        ({"resources": {"cpu": {"limit": "5 cores"}}}, "cpu.limit"),
        ({"resources": {"memory": {"limit": "512"}}}, "memory.limit"),
        ({"resources": {"memory": {"limit": 0}}}, "memory.limit"),
        ({"resources": {"disk": {"limit": None}}}, "disk.limit"),
        ({"resources": {"network": {"bandwidth_limit": "fast"}}}, "bandwidth_limit"),
        ({"resources": {"network": {"max_connections": 0}}}, "max_connections"),
        ({"resources": {"memoryMb": "1024"}}, "memoryMb"),
        ({"resources": {"memoryMb": 1.5}}, "memoryMb"),
        ({"resources": {"memoryMb": True}}, "memoryMb"),
        ({"resources": {"cpuPercent": -5}}, "cpuPercent"),
        ({"resources": {"maxProcesses": 2**64}}, "maxProcesses"),
        ({"execution_limits": {"max_tool_call_duration": 30}}, "max_tool_call_duration"),
        ({"execution_limits": {"max_tool_call_duration": "0s"}}, "max_tool_call_duration"),
        ({"execution_limits": {"max_tool_call_duration": "0.0000001ms"}}, "max_tool_call_duration"),
        ({"execution_limits": {"max_concurrent_calls": 0}}, "max_concurrent_calls"),
        ({"execution_limits": {"rate_limit": "100/min"}}, "rate_limit"),
        ({"execution_limits": {"rate_limit": 100}}, "rate_limit"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_that_names_its_key(
    content: dict[str, Any], key: str
) -> None:
    found, (error,) = read_manifest(json.dumps(content).encode(), "agent.json")

    assert found is None
    assert error.key == key
    assert error.expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"x"',
        b"{'a': 1}",
        b"\xff\xfe{}",
        b"{} x",
        b"[" * 100000,
        b'{"a": NaN}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_mapping_is_one_error(data: bytes) -> None:
    found, errors = read_manifest(data, "agent.json")

    assert found is None
    assert len(errors) == 1


def test_every_error_of_a_manifest_stands_where_the_policy_names_it(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(
        '{"resources": {"cpu": {"limit": "x"}}, "execution_limits": {"rate_limit": 5}}'
    )
    text = "agents:\n  web:\n    manifest: bad.json\n"

    found = problems(text, base=tmp_path)

    assert {(problem.line, problem.column, problem.path) for problem in found} == {
        (3, 15, "agents.web.manifest")
    }
    assert sorted(problem.found for problem in found) == [
        '"x" in bad.json (cpu.limit)',
        "5 in bad.json (rate_limit)",
    ]


def test_manifests_of_several_agents_are_all_read_before_the_error(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    text = "agents:\n  a: {manifest: bad.json}\n  b: {manifest: none.json}\n"

    assert [problem.line for problem in problems(text, base=tmp_path)] == [2, 3]


@pytest.mark.parametrize("name", ["missing.json", "directory", "pipe", "a/b/c", "'nul\\0'"])
def test_what_is_no_file_is_an_error_and_is_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    quoted = '"nul\\0.json"' if "nul" in name else name

    problem = only_problem(f"agents: {{web: {{manifest: {quoted}}}}}", base=tmp_path)

    assert problem.path == "agents.web.manifest"
    assert "cannot be read" in problem.found or "U+0000" in problem.found


def test_a_device_is_not_read() -> None:
    assert "cannot be read" in only_problem("agents: {web: {manifest: /dev/zero}}").found


def test_a_large_manifest_is_refused_without_being_decoded(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_bytes(b'{"a":"' + b"x" * MAX_MANIFEST_BYTES + b'"}')

    problem = only_problem("agents: {web: {manifest: big.json}}", base=tmp_path)

    assert f"{MAX_MANIFEST_BYTES} bytes" in problem.found


HOOKED = """
import sys
from callgate.policy import Policy
Policy.load(sys.argv[1])  # once, for what is imported lazily
seen = set()
def hook(event, args):
    if event != "open" or not isinstance(args[0], int):  # a descriptor that was opened before
        seen.add(f"open {args[0]}" if event == "open" else event)
sys.addaudithook(hook)
Policy.load(sys.argv[1])
print(sorted(seen))
"""


def test_reading_a_manifest_executes_nothing_and_opens_nothing_else(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    content = CLAUDE | {
        "command": ["touch", str(marker)],
        "hooks": {"PreToolUse": [{"command": f"touch {marker}"}]},
        "apiKeyHelper": f"touch {marker}",
        "$ref": f"file://{tmp_path}/other.json",
    }
    files = {"p.yaml": "agents: {web: {manifest: a.json}}", "a.json": json.dumps(content)}
    file = write(tmp_path, files)

    # In a child, because an audit hook cannot be taken away again.
    child = subprocess.run(
        [sys.executable, "-c", HOOKED, str(file)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        timeout=60,
    )

    assert set(ast.literal_eval(child.stdout)) - {"builtins.id"} == {
        f"open {file}",
        f"open {tmp_path / 'a.json'}",
    }
    assert not marker.exists()


def test_a_manifests_own_secrets_are_in_no_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(tmp_path, CLAUDE | {"resources": {"memoryMb": -1}})

    assert "hunter2" not in str(caught.value)


def test_a_change_of_the_manifest_is_another_revision(tmp_path: Path) -> None:
    before = policy(tmp_path, {}).revision

    assert policy(tmp_path, {}).revision == before
    assert policy(tmp_path, {"version": "2"}).revision != before


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["30s", "5/minute", "512Mi", "500m", "1Mbps", "", "0.00001ms", "1.2345678kbps"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "resources",
                    "execution_limits",
                    "cpu",
                    "memory",
                    "disk",
                    "network",
                    "limit",
                    "bandwidth_limit",
                    "max_connections",
                    "memoryMb",
                    "cpuPercent",
                    "maxProcesses",
                    "max_tool_call_duration",
                    "max_concurrent_calls",
                    "rate_limit",
                    "other",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_a_manifest_or_a_list_of_errors(content: Any) -> None:
    found, errors = read_manifest(json.dumps(content).encode(), "agent.json")

    assert (found is None) == bool(errors)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("execution_limits", "max_tool_call_duration", "0.00001ms"),
        ("execution_limits", "max_tool_call_duration", "1.234567891s"),
        ("network", "bandwidth_limit", "12345678.901kbps"),
    ],
)
def test_an_odd_but_valid_number_is_read_as_it_is(
    tmp_path: Path, section: str, key: str, value: str
) -> None:
    # These once left as texts that could not be read back.
    content: dict[str, Any] = {section: {key: value}}
    if section == "network":
        content = {"resources": content}

    assert policy(tmp_path, content).explain("web")
