from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from callgate import Policy
from callgate.cli.app import app
from callgate.cli.doctor import find_clients
from callgate.setup import config_file, records, work
from callgate.setup.formats.nodes import Refused

if TYPE_CHECKING:
    from typer.testing import Result

TEXT = '{\n "mcpServers": {\n  "github": {"command": "npx", "args": ["-y", "gh"]} // mine\n }\n}\n'
ANSWER_S = 60


class Home:
    """The home of a user with two clients, and a project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cursor = self.put(".cursor/mcp.json", TEXT)
        self.codex = self.put(".codex/config.toml", "[mcp_servers.git]\ncommand = 'uvx'\n")
        self.project = self.put("shop/.vscode/mcp.json", '{"servers": {"db": {"command": "db"}}}')
        self.policy = folder / ".config" / "callgate" / "callgate.yaml"

    def put(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def contents(self) -> dict[str, bytes]:
        files = (self.cursor, self.codex, self.project)
        return {str(file): file.read_bytes() for file in files}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    tmp_path.chmod(0o700)
    before = os.umask(0o022)
    found = Home(tmp_path)
    os.umask(before)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "shop")
    monkeypatch.setattr(sys, "platform", "linux")
    return found


def callgate(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def answer(*words: str) -> Any:
    return json.loads(callgate(*words, "--json").stdout)


def test_init_wraps_what_it_finds_writes_a_policy_and_undoes_all(home: Home) -> None:
    before = home.contents()

    result = callgate("init", "--yes")

    assert result.exit_code == 0, result.output
    policy = Policy.load(home.policy)
    assert set(policy.agents) == {"github", "git"}
    words = json.loads(home.cursor.read_text().replace("// mine", ""))["mcpServers"]["github"]
    assert Path(words["command"]).is_absolute()
    assert words["args"] == [
        "run", "--agent", "github", "--policy", str(home.policy), "--", "npx", "-y", "gh"
    ]  # fmt: skip
    assert json.loads(home.project.read_text())["servers"]["db"] == {
        "command": "callgate",
        "args": ["run", "--agent", "shop.db", "--", "db"],
    }
    assert "approve" in result.stdout
    assert callgate("init", "--undo", "--yes").exit_code == 0
    assert home.contents() == before
    assert home.policy.exists()
    assert records.load_all() == []


def test_running_it_twice_changes_nothing(home: Home) -> None:
    callgate("init", "--yes")
    once, policy = home.contents(), home.policy.read_bytes()

    result = answer("init", "--yes")

    assert result["ok"]
    assert {each["status"] for each in result["files"]} == {"unchanged"}
    assert home.contents() == once
    assert home.policy.read_bytes() == policy


def test_a_dry_run_writes_nothing_at_all(home: Home) -> None:
    before = sorted(str(path) for path in home.folder.rglob("*"))
    contents = home.contents()

    result = answer("init", "--dry-run")

    assert {each["status"] for each in result["files"]} == {"would change"}
    assert sorted(str(path) for path in home.folder.rglob("*")) == before
    assert home.contents() == contents


def test_without_a_terminal_nothing_is_changed_unless_yes_is_said(home: Home) -> None:
    before = home.contents()

    result = callgate("init")

    assert result.exit_code == 1
    assert "--yes" in result.stderr
    assert home.contents() == before


def test_json_asks_no_questions(home: Home) -> None:
    assert callgate("init", "--json").exit_code == 2
    assert callgate("wrap", str(home.cursor), "--json").exit_code == 2


def test_only_the_client_that_was_named_is_changed(home: Home) -> None:
    result = answer("init", "--yes", "--client", "codex")

    assert [each["file"] for each in result["files"]] == [str(home.codex)]
    assert home.cursor.read_text() == TEXT
    assert callgate("init", "--yes", "--client", "nobody").exit_code == 2


def test_one_file_is_wrapped_and_unwrapped(home: Home) -> None:
    before = home.contents()

    assert callgate("wrap", str(home.cursor), "--yes").exit_code == 0
    assert home.cursor.read_bytes() != before[str(home.cursor)]
    assert callgate("unwrap", str(home.cursor), "--yes").exit_code == 0

    assert home.contents() == before


def test_a_policy_of_ones_own_is_named_and_no_other_is_written(home: Home) -> None:
    mine = home.put("mine.yaml", "version: 1\n")

    assert callgate("wrap", str(home.cursor), "--yes", "--policy", str(mine)).exit_code == 0

    assert str(mine) in home.cursor.read_text()
    assert not home.policy.exists()


@pytest.mark.parametrize("text", [None, "version: 7\n"])
def test_a_policy_that_no_gate_could_start_with_is_not_named(home: Home, text: str | None) -> None:
    if text is not None:
        home.put("mine.yaml", text)
    mine = str(home.folder / "mine.yaml")

    result = callgate("wrap", str(home.cursor), "--yes", "--policy", mine)

    assert result.exit_code == 1
    assert home.cursor.read_text() == TEXT


def test_a_policy_that_is_there_is_kept_and_must_be_valid(home: Home) -> None:
    home.put(".config/callgate/callgate.yaml", "version: 1\nagents: {git: {timeout: 3s}}\n")
    kept = home.policy.read_bytes()
    assert callgate("init", "--yes").exit_code == 0
    assert home.policy.read_bytes() == kept
    callgate("init", "--undo", "--yes")
    home.policy.write_text("version: seven\n")
    before = home.contents()

    assert callgate("init", "--yes").exit_code == 1

    assert home.contents() == before


@pytest.mark.parametrize(("words", "mode"), [((), "shadow"), (("--enforce",), "enforced")])
def test_the_first_policy_surprises_nobody_unless_it_is_asked_to(
    home: Home, words: tuple[str, ...], mode: str
) -> None:
    callgate("init", "--yes", *words)

    policy = Policy.load(home.policy)
    rows = {row.key: (row.value, row.enforced) for row in policy.explain("github")}
    text = home.policy.read_text()
    assert rows["timeout"] == ("15s", mode)
    assert rows["concurrency"] == ("3", mode)
    assert rows["rate"] == ("60/minute", mode)
    assert "\nprofile: interactive\n" in text
    assert text.startswith("# yaml-language-server: $schema=callgate.schema.json\n")
    schema = json.loads((home.policy.parent / "callgate.schema.json").read_text())
    assert schema["$id"]
    assert policy.audit is not None
    assert Path(policy.audit.path).is_absolute()


def test_an_undo_keeps_what_was_added_and_removed_since(home: Home) -> None:
    callgate("init", "--yes")
    home.cursor.write_text(
        home.cursor.read_text().replace('"mcpServers": {', '"mcpServers": {"new": {"url": "u"},')
    )
    home.codex.write_text("model = 'x'\n")

    assert callgate("init", "--undo", "--yes").exit_code == 0

    assert home.cursor.read_text() == TEXT.replace(
        '"mcpServers": {', '"mcpServers": {"new": {"url": "u"},'
    )
    assert home.codex.read_text() == "model = 'x'\n"


def test_a_server_that_was_added_since_is_wrapped_later_and_one_undo_takes_all_back(
    home: Home,
) -> None:
    callgate("init", "--yes")
    new = '"mcpServers": {"new": {"command": "n"},'
    home.cursor.write_text(home.cursor.read_text().replace('"mcpServers": {', new))
    callgate("init", "--yes")
    assert "new" in home.cursor.read_text()

    callgate("init", "--undo", "--yes")

    assert home.cursor.read_text() == TEXT.replace('"mcpServers": {', new)


def test_one_bad_file_is_said_and_the_others_are_wrapped(home: Home) -> None:
    home.cursor.write_text("{ not json")
    home.project.chmod(0o666)

    result = answer("init", "--yes")

    status = {each["file"]: each for each in result["files"]}
    assert not result["ok"]
    assert status[str(home.cursor)]["status"] == "refused"
    assert "line 1" in status[str(home.cursor)]["reason"]
    assert "others may write" in status[str(home.project)]["reason"]
    assert status[str(home.codex)]["status"] == "changed"
    assert home.cursor.read_text() == "{ not json"


def test_a_projects_link_that_leads_out_of_the_project_is_refused(home: Home) -> None:
    (home.folder / "shop" / ".mcp.json").symlink_to(home.cursor)
    (home.folder / "shop" / ".cursor").symlink_to(home.put("theirs/mcp.json", TEXT).parent)

    results = [
        callgate("wrap", str(home.folder / "shop" / name), "--yes")
        for name in (".mcp.json", ".cursor/mcp.json")
    ]

    assert [result.exit_code for result in results] == [1, 1]
    assert home.cursor.read_text() == TEXT
    assert (home.folder / "theirs" / "mcp.json").read_text() == TEXT


def test_a_file_that_changes_while_the_user_thinks_is_left_alone(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = records.save

    def then_somebody_writes(record: records.Record) -> None:
        save(record)
        home.cursor.write_text('{"theirs": 1}')

    monkeypatch.setattr(records, "save", then_somebody_writes)

    result = callgate("wrap", str(home.cursor), "--yes")

    assert result.exit_code == 1
    assert home.cursor.read_text() == '{"theirs": 1}'
    assert records.load(home.cursor) is None


def test_a_change_that_was_made_keeps_its_record_whatever_fails_afterwards(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = config_file.replace

    def then_fail(found: config_file.Found, data: bytes) -> None:
        replace(found, data)
        raise Refused("the disk is gone")

    monkeypatch.setattr(config_file, "replace", then_fail)
    assert callgate("wrap", str(home.cursor), "--yes").exit_code == 1

    assert home.cursor.read_text() != TEXT
    assert records.load(home.cursor) is not None


@pytest.mark.usefixtures("home")
def test_records_are_for_their_user_alone() -> None:
    callgate("init", "--yes")

    modes = {path.name: path.stat().st_mode & 0o777 for path in records.folder().iterdir()}

    assert records.folder().stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}
    assert len(modes) == 4  # three files and the lock


def test_two_at_once_exclude_each_other(home: Home) -> None:
    with records.lock():
        result = callgate("init", "--yes")

    assert result.exit_code == 1
    assert home.cursor.read_text() == TEXT


def test_where_there_is_nothing_the_next_step_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    result = callgate("init", "--yes")

    assert result.exit_code == 1
    assert "callgate wrap FILE" in result.stderr


def test_a_name_with_an_escape_sequence_reaches_no_terminal(home: Home) -> None:
    home.cursor.write_text('{"mcpServers": {"\\u001b[2Jevil": {"command": "\\u202ex"}}}')

    result = callgate("init", "--yes")

    assert "evil" in result.stdout
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout


def test_a_wrapped_server_whose_program_is_gone_is_found(home: Home) -> None:
    callgate("init", "--yes")
    gone = home.cursor.read_text().replace(sys.prefix, "/nowhere")
    home.cursor.write_text(gone)

    found = list(work.find_gone(work.this_home(), str(Path.cwd())))

    assert [(each.client, each.server) for each in found] == [("Cursor", "github")]
    assert found[0].program.startswith("/nowhere")
    said = find_clients()
    assert [each.status for each in said] == ["absent"]
    assert str(home.cursor) in said[0].fix


def test_a_wrapped_server_starts_though_the_client_passes_hardly_any_variable(home: Home) -> None:
    server = [sys.executable, "-m", "callgate.cli.demo.agent"]
    entry = {"command": server[0], "args": server[1:], "env": {"TOKEN": "x"}}
    home.cursor.write_text(json.dumps({"mcpServers": {"demo": entry}}))
    callgate("init", "--yes", "--client", "cursor")
    wrapped = json.loads(home.cursor.read_text())["mcpServers"]["demo"]
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }

    done = subprocess.run(
        [wrapped["command"], *wrapped["args"]],
        input=json.dumps(hello) + "\n",
        env={"HOME": str(home.folder), "PATH": os.defpath, **wrapped["env"]},
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
        check=False,
    )

    assert "serverInfo" in json.loads(done.stdout)["result"], done.stderr
    assert f"audit in {home.folder}/.local/state/callgate/audit" in done.stderr


def ask(home: Home, *replies: str) -> tuple[int, str]:
    """Run `init` on a terminal and reply to each question."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from callgate.cli import main; main()", "init"],
        cwd=home.folder / "shop",
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "HOME": str(home.folder), "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(theirs)
    shown, left = "", list(replies)
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], deadline - time.monotonic())[0]:
            break
        try:
            shown += os.read(ours, 1 << 16).decode()
        except OSError:  # the end of a terminal
            break
        if left and shown.count("[y/N]") > len(replies) - len(left):
            os.write(ours, left.pop(0).encode() + b"\n")
    os.close(ours)
    return process.wait(timeout=ANSWER_S), shown


def test_on_a_terminal_each_file_is_shown_in_colour_and_asked_about(home: Home) -> None:
    before = home.contents()

    code, shown = ask(home, "y", "n", "n")

    assert code == 1  # two were declined
    assert "\x1b[32m" in shown
    after = home.contents()
    assert after[str(home.cursor)] != before[str(home.cursor)]
    assert {path for path in after if after[path] != before[path]} == {str(home.cursor)}


def test_the_help_of_callgate_imports_none_of_it() -> None:
    program = (
        "import sys\nsys.argv = ['callgate', '--help']\nfrom callgate.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('tomlkit', 'callgate.setup') if name in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert "unwrap" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
