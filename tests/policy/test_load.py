from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from callgate.model import AuditSpec
from callgate.policy import Policy, PolicyError, Problem
from tests.policy.helpers import NS, write

if TYPE_CHECKING:
    from pathlib import Path

BOT = "callers: {bot: {token: env:BOT_TOKEN}}"


def warned(text: str, **environ: str) -> list[tuple[str, int, int]]:
    policy = Policy.parse(text, environ=environ)
    return [(warning.path, warning.line, warning.column) for warning in policy.warnings]


class TestPaths:
    def test_paths_are_relative_to_the_policy_file(self, tmp_path: Path) -> None:
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "m.json").write_text("{}")
        text = "audit: {path: logs/}\nagents: {web: {manifest: m.json}}"
        file = write(tmp_path / "deep", {"p.yaml": text})

        policy = Policy.load(file)

        assert policy.audit is not None
        assert policy.audit.path == str(tmp_path / "deep" / "logs")
        assert policy.files == (file, tmp_path / "deep" / "m.json")
        assert policy.source == file

    def test_wherever_the_process_stands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "deep").mkdir()
        write(tmp_path / "deep", {"p.yaml": "agents: {web: {manifest: m.json}}", "m.json": "{}"})
        monkeypatch.chdir(tmp_path)

        assert Policy.load("deep/p.yaml").agents == {"web"}

    def test_an_absolute_path_stays_as_it_is(self, tmp_path: Path) -> None:
        file = write(tmp_path, {"p.yaml": "audit: {path: /var/log/callgate}"})

        policy = Policy.load(file)

        assert policy.audit is not None
        assert policy.audit.path == "/var/log/callgate"

    def test_a_policy_without_a_file_has_no_source(self) -> None:
        policy = Policy.parse("audit: {path: logs}")

        assert policy.source is None
        assert policy.files == ()
        assert policy.audit is not None
        assert policy.audit.path == "logs"


class TestFiles:
    @pytest.mark.parametrize("name", ["missing.yaml", "directory", "nul\0.yaml"])
    def test_what_cannot_be_read_is_a_policy_error(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "directory").mkdir()

        with pytest.raises(PolicyError) as caught:
            Policy.load(tmp_path / name)

        (problem,) = caught.value.problems
        assert problem.expected == "a policy file"

    def test_a_policy_may_come_through_a_pipe(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=("agents: {web: {}}",))
        writer.start()

        assert Policy.load(pipe).agents == {"web"}
        writer.join(10)

    def test_the_revision_is_that_of_the_text(self) -> None:
        one, two = Policy.parse("version: 1"), Policy.parse("version: 1\n")

        assert len(one.revision) == 12
        assert one.revision == Policy.parse("version: 1").revision
        assert one.revision != two.revision


class TestAudit:
    def test_without_the_key_none_is_written(self) -> None:
        assert Policy.parse("version: 1").audit is None

    def test_what_is_left_out_has_the_designs_defaults(self) -> None:
        assert Policy.parse("audit: {path: a}").audit == AuditSpec(
            path="a",
            fail_closed=True,
            rotate_bytes=64 * 2**20,
            keep_ns=30 * NS["d"],
            max_bytes=2**30,
            stdout=False,
            otel=False,
        )

    def test_every_key_says_what_it_says(self) -> None:
        text = (
            "audit: {path: a, on_failure: drop, rotate: 1Mi, keep: 7d, max_bytes: 2Mi, "
            "stdout: true, otel: true}"
        )

        assert Policy.parse(text).audit == AuditSpec(
            path="a",
            fail_closed=False,
            rotate_bytes=2**20,
            keep_ns=7 * NS["d"],
            max_bytes=2**21,
            stdout=True,
            otel=True,
        )

    def test_unlimited_keeps_everything(self) -> None:
        audit = Policy.parse("audit: {path: a, keep: unlimited, max_bytes: unlimited}").audit

        assert audit is not None
        assert (audit.keep_ns, audit.max_bytes) == (None, None)


class TestTokens:
    def test_an_unset_variable_is_a_warning(self) -> None:
        assert warned(BOT) == [("callers.bot.token", 1, 24)]
        assert warned(BOT, BOT_TOKEN="") == [("callers.bot.token", 1, 24)]

    def test_a_set_variable_is_none(self) -> None:
        assert warned(BOT, BOT_TOKEN="hunter2") == []  # noqa: S106

    def test_its_value_is_kept_nowhere(self) -> None:
        policy = Policy.parse(BOT, environ={"BOT_TOKEN": "hunter2"})

        assert "hunter2" not in repr(policy.explain("web", "search", "bot"))
        assert "hunter2" not in repr(policy._file)

    def test_the_environment_of_the_process_is_the_default(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BOT_TOKEN", "x")
        assert Policy.parse(BOT).warnings == ()
        monkeypatch.delenv("BOT_TOKEN")
        assert len(Policy.parse(BOT).warnings) == 1


WAIT = "{limit: 5/day, on_limit: wait}"


class TestWarnings:
    @pytest.mark.parametrize(
        ("text", "path"),
        [
            (f"agents: {{web: {{rate: {WAIT}}}}}", "agents.web.rate.on_limit"),
            (f"defaults: {{rate: {WAIT}}}", "defaults.rate.on_limit"),
            (f"global: {{rate: {WAIT}}}", "global.rate.on_limit"),
            (f"callers: {{'*': {{rate: {WAIT}}}}}", "callers.*.rate.on_limit"),
            (f"callers: {{bot: {{rate: {WAIT}}}}}", "callers.bot.rate.on_limit"),
            (
                f"agents: {{web: {{tools: {{a: {{rate: {WAIT}}}}}}}}}",
                "agents.web.tools.a.rate.on_limit",
            ),
        ],
    )
    def test_a_rate_that_waits_without_a_queue(self, text: str, path: str) -> None:
        defaults = "defaults: {queue: 0, " if "defaults: {" in text else "defaults: {queue: 0}\n"
        text = text.replace("defaults: {", defaults) if "defaults: {" in text else defaults + text
        assert [warning[0] for warning in warned(text)] == [path]

    def test_a_rate_that_waits_in_a_queue_is_fine(self) -> None:
        assert warned(f"agents: {{web: {{queue: 5, rate: {WAIT}}}}}") == []
        assert warned(f"profile: interactive\nagents: {{web: {{rate: {WAIT}}}}}") == []
        assert warned(f"defaults: {{queue: 1}}\ncallers: {{bot: {{rate: {WAIT}}}}}") == []

    def test_a_timeout_above_its_own_ceiling(self) -> None:
        text = "agents:\n  web:\n    timeout: 90s\n"

        (warning,) = Policy.parse(text).warnings

        assert (warning.path, warning.line, warning.column) == ("agents.web.timeout", 3, 14)
        assert warning.found == "timeout 90s"
        assert "60s" in warning.expected or "1m" in warning.expected

    @pytest.mark.parametrize(
        "text",
        [
            "agents: {web: {timeout: 60s}}",
            "agents: {web: {timeout: 90s, max_timeout: 90s}}",
            "agents: {web: {timeout: 90s, max_timeout: unlimited}}",
            "agents: {web: {timeout: {limit: 90s, mode: off}}}",
            "agents: {web: {tools: {a: {timeout: 90s, max_timeout: 2m}}}}",
        ],
    )
    def test_a_timeout_within_its_ceiling_is_fine(self, text: str) -> None:
        assert warned(text) == []

    @pytest.mark.parametrize(
        ("text", "path"),
        [
            (
                "agents: {web: {max_frame_bytes: {limit: 1MiB, mode: shadow}}}",
                "agents.web.max_frame_bytes",
            ),
            ("mode: shadow\ndefaults: {bandwidth: 1Mbps}", "defaults.bandwidth"),
            (
                "agents: {web: {requests: {timeout: {limit: 5s, mode: shadow}}}}",
                "agents.web.requests.timeout",
            ),
        ],
    )
    def test_a_limit_of_a_connection_in_shadow_mode(self, text: str, path: str) -> None:
        assert [warning[0] for warning in warned(text)] == [path]

    def test_a_limit_of_a_connection_that_is_enforced_or_off_is_fine(self) -> None:
        assert warned("mode: shadow") == []
        assert warned("agents: {web: {bandwidth: {limit: 1Mbps, mode: off}}}") == []
        assert warned("agents: {web: {bandwidth: 1Mbps, max_frame_bytes: 1MiB}}") == []

    @pytest.mark.parametrize("key", ["burst: 5", "on_limit: wait", "per: caller"])
    def test_how_to_meet_a_rate_that_is_none(self, key: str) -> None:
        rate = f"rate: {{limit: unlimited, {key}}}"
        name = key.partition(":")[0]

        assert [place for place, *_ in warned(f"agents: {{web: {{queue: 5, {rate}}}}}")] == [
            f"agents.web.rate.{name}"
        ]
        assert [place for place, *_ in warned(f"agents: {{web: {{tools: {{a: {{{rate}}}}}}}}}")][
            -1:
        ] == [f"agents.web.tools.a.rate.{name}"]

    def test_limits_of_a_tool_that_is_never_called(self) -> None:
        tool = "{deny: true, timeout: 5s, rate: 1/day%s}"
        text = f"agents: {{web: {{tools: {{a: {tool}}}}}}}"

        assert [place for place, *_ in warned(text % "")] == ["agents.web.tools.a.rate"]
        assert warned(text % ", mode: shadow") == []

    def test_each_is_told_once_in_the_order_of_the_file(self) -> None:
        text = (
            "agents:\n"
            "  web:\n"
            "    timeout: 90s\n"
            "    tools: {a: deny, b: deny, c: {timeout: 80s}}\n"
            f"    rate: {WAIT}\n"
            "    queue: 0\n"
        )

        assert [line for _, line, _ in warned(text)] == [3, 4, 5]

    def test_a_warning_changes_nothing(self) -> None:
        policy = Policy.parse("agents: {web: {timeout: 90s}}")

        assert all(isinstance(warning, Problem) for warning in policy.warnings)
        assert {row.value for row in policy.explain("web") if row.key == "timeout"} == {"1m"}
