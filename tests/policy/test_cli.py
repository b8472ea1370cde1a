from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from callgate.cli.app import app
from callgate.cli.reference import json_schema
from callgate.policy import Policy
from tests.policy.helpers import ROOT, callgate, write

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """\
agents:
  web:
    timeout: 90m
    tools: {search: {concurrency: 1}, "delete_*": deny}
callers: {bot: {token: env:CALLGATE_TEST_UNSET}}
"""
BAD = "agents:\n  web:\n    timeout: 5\n    rat: 1/day\n"

runner = CliRunner()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path, {"p.yaml": GOOD})


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write(tmp_path, {"bad.yaml": BAD})


class TestCheck:
    def test_a_good_file_is_ok_and_its_warnings_go_to_stderr(self, good: Path) -> None:
        done = callgate("check", good)

        revision = Policy.load(good).revision
        assert done.returncode == 0
        verdict = f"{good}: ok, revision {revision}, agents 1, callers 1; for run: profile "
        assert done.stdout.startswith(verdict + "interactive, audit in ")
        first, second = done.stderr.splitlines()
        assert first.startswith(f"{good}:3:14: agents.web.timeout: ")
        assert second.startswith(f"{good}:5:24: callers.bot.token: ")
        assert first.endswith("[warning]")

    def test_a_bad_file_is_no_with_every_problem_on_stderr(self, bad: Path) -> None:
        done = callgate("check", bad)

        assert done.returncode == 1
        assert done.stdout == ""
        lines = done.stderr.splitlines()
        assert [line.split(" ")[0] for line in lines[:2]] == [f"{bad}:3:14:", f"{bad}:4:5:"]
        assert lines[2].startswith("2 problems")

    def test_json_is_one_document_on_stdout(self, good: Path, bad: Path) -> None:
        fine = runner.invoke(app, ["check", "--json", str(good)])
        wrong = runner.invoke(app, ["check", "--json", str(bad)])

        assert (fine.exit_code, wrong.exit_code) == (0, 1)
        answer = json.loads(fine.stdout)
        assert answer["ok"] is True
        assert answer["revision"] == Policy.load(good).revision
        assert [warning["line"] for warning in answer["warnings"]] == [3, 5]
        answer = json.loads(wrong.stdout)
        assert answer["ok"] is False
        assert answer["code"] == "policy.invalid"
        assert [(p["line"], p["column"]) for p in answer["problems"]] == [(3, 14), (4, 5)]

    @pytest.mark.parametrize(
        ("head", "whom", "profile", "audit"),
        [
            ("version: 1", "run", "interactive", True),
            ("version: 1", "serve", "guarded", True),
            ("version: 1", "router", "guarded", False),
            ("profile: guarded", "run", "guarded", True),
            ("profile: interactive", "router", "interactive", False),
            ("audit: off", "run", "interactive", False),
        ],
    )
    def test_the_verdict_names_profile_and_audit_for_whoever_uses_the_file(
        self, tmp_path: Path, head: str, whom: str, profile: str, *, audit: bool
    ) -> None:
        file = write(tmp_path, {"p.yaml": f"{head}\nagents: {{web: {{}}}}\n"})

        words = runner.invoke(app, ["check", str(file), "--for", whom]).stdout
        answer = json.loads(
            runner.invoke(app, ["check", str(file), "--for", whom, "--json"]).stdout
        )
        said = runner.invoke(app, ["explain", str(file), "--for", whom, "--agent", "web"])

        assert (answer["for"], answer["profile"], answer["audit"] is not None) == (
            *(whom, profile),
            audit,
        )
        where = f"audit in {answer['audit']}" if audit else "no audit"
        verdict = f"for {whom}: profile {profile}, {where}"
        assert verdict in words
        assert verdict in said.stderr
        assert f"profile {profile}" in said.stdout

    def test_a_file_that_is_not_there_is_no(self, tmp_path: Path) -> None:
        done = runner.invoke(app, ["check", str(tmp_path / "none.yaml")])

        assert done.exit_code == 1
        assert "none.yaml:1:1: found no such file or directory" in done.stderr

    def test_a_policy_may_be_piped_in(self) -> None:
        done = callgate("check", "/dev/stdin", input="version: 1\n")

        assert done.returncode == 0

    @pytest.mark.parametrize("arguments", [["check"], ["check", "a", "b"], ["check", "--jso", "a"]])
    def test_a_wrong_command_line_is_a_usage_error(self, arguments: list[str]) -> None:
        assert runner.invoke(app, arguments).exit_code == 2


class TestExplain:
    def test_in_a_pipe_it_is_aligned_text_without_colour(self, good: Path) -> None:
        done = callgate("explain", good, "--agent", "web", "--tool", "search")

        assert done.returncode == 0
        assert "for run: profile interactive" in done.stderr
        assert "\x1b" not in done.stdout
        header, *lines = done.stdout.splitlines()
        assert header.split() == ["key", "value", "scope", "source", "enforced", "note"]
        found = {line.split()[0]: line.split()[1:5] for line in lines}
        assert found["timeout"] == ["1h", "agent:web", "p.yaml:3", "enforced"]
        assert found["protocol"][3] == "interactive"
        start = header.index("value")
        assert all(line[start - 1] == " " and line[start] != " " for line in lines)

    def test_json_has_the_rows_of_the_api(self, good: Path) -> None:
        done = runner.invoke(
            app,
            [
                *("explain", str(good), "--for", "router", "--agent", "web"),
                "--tool",
                "search",
                "--json",
            ],
        )

        rows = json.loads(done.stdout)
        assert done.exit_code == 0
        api = Policy.load(good).explain("web", "search")
        assert [row["key"] for row in rows] == [row.key for row in api]
        assert [row["source"] for row in rows] == [row.source for row in api]

    def test_for_a_caller_it_is_the_callers_view(self, good: Path) -> None:
        done = runner.invoke(
            app,
            ["explain", str(good), "--agent", "web", "--tool", "x", "--caller", "bot", "--json"],
        )

        assert done.exit_code == 0
        assert json.loads(done.stdout)

    def test_an_agent_that_is_not_named_gets_a_remark_and_the_defaults(self, good: Path) -> None:
        done = runner.invoke(app, ["explain", str(good), "--agent", "mail", "--json"])

        assert done.exit_code == 1
        assert "names no agent 'mail'" in done.stderr
        assert {row["value"] for row in json.loads(done.stdout) if row["key"] == "timeout"} == {
            "10m"
        }

    def test_what_an_agent_does_not_list_is_under_one_pattern_and_that_is_said(
        self, tmp_path: Path
    ) -> None:
        text = 'agents: {web: {tools: {"read_*": {timeout: 2s}, "*_file": {rate: 5/minute}}}}'
        file = write(tmp_path, {"p.yaml": text})
        asked = ["explain", str(file), "--for", "router", "--agent", "web"]
        asked += ["--tool", "read_file", "--json"]

        listed, unlisted = runner.invoke(app, asked), runner.invoke(app, [*asked, "--unlisted"])

        assert "one that it does not list is under 'read_*' alone" in listed.stderr
        assert len(unlisted.stderr.splitlines()) == 1
        scopes = [
            {row["scope"] for row in json.loads(done.stdout) if row["key"] == "rate"}
            for done in (listed, unlisted)
        ]
        assert scopes == [{"agent:web", "tool:web/read_file"}, {"agent:web"}]
        policy = Policy.load(file)
        assert json.loads(unlisted.stdout) == [
            msgspec.structs.asdict(row)
            for row in policy.explain("web", policy.tool_key("web", "read_file"))
        ]

    def test_a_bad_file_is_no(self, bad: Path) -> None:
        assert runner.invoke(app, ["explain", str(bad), "--agent", "web"]).exit_code == 1

    def test_without_an_agent_it_is_a_usage_error(self, good: Path) -> None:
        assert runner.invoke(app, ["explain", str(good)]).exit_code == 2


class TestSchema:
    def test_it_prints_the_schema_for_editors(self) -> None:
        done = callgate("schema")

        assert done.returncode == 0
        assert json.loads(done.stdout) == json_schema()

    def test_the_page_in_the_documentation_is_what_it_prints(self) -> None:
        done = callgate("schema", "--format", "markdown")

        page = (ROOT / "docs" / "reference" / "policy.md").read_text(encoding="utf-8")
        assert done.returncode == 0
        assert done.stdout == page

    def test_another_format_is_a_usage_error(self) -> None:
        assert runner.invoke(app, ["schema", "--format", "toml"]).exit_code == 2


def test_no_command_shows_the_help() -> None:
    done = callgate("--help")

    assert done.returncode == 0
    for command in ("check", "explain", "schema"):
        assert command in done.stdout
