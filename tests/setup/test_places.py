from __future__ import annotations

import sys
from pathlib import Path, PurePath

import pytest

from callgate.setup.clients import CLIENTS, home_of, place_of, places
from callgate.setup.difference import difference
from callgate.setup.formats.nodes import Refused, Splice
from callgate.setup.program import find_program, install_command

LINUX = home_of("linux", "/home/me", {})
MAC = home_of("darwin", "/Users/me", {})


def paths(home: object, client: str, project: str | None = None) -> list[str]:
    found = places(home, project)  # type: ignore[arg-type]
    return [each.path for each in found if each.client.name == client]


def test_every_client_that_was_promised_is_in_the_table() -> None:
    assert {client.name for client in CLIENTS} == {
        "claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "codex", "gemini", "zed",
        "cline", "opencode",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("client", "linux", "mac"),
    [
        ("claude-desktop", "/home/me/.config/Claude/claude_desktop_config.json",
         "/Users/me/Library/Application Support/Claude/claude_desktop_config.json"),
        ("claude-code", "/home/me/.claude.json", "/Users/me/.claude.json"),
        ("cursor", "/home/me/.cursor/mcp.json", "/Users/me/.cursor/mcp.json"),
        ("vscode", "/home/me/.config/Code/User/mcp.json",
         "/Users/me/Library/Application Support/Code/User/mcp.json"),
        ("windsurf", "/home/me/.codeium/windsurf/mcp_config.json",
         "/Users/me/.codeium/windsurf/mcp_config.json"),
        ("codex", "/home/me/.codex/config.toml", "/Users/me/.codex/config.toml"),
        ("gemini", "/home/me/.gemini/settings.json", "/Users/me/.gemini/settings.json"),
        ("zed", "/home/me/.config/zed/settings.json", "/Users/me/.config/zed/settings.json"),
        ("cline", "/home/me/.cline/data/settings/cline_mcp_settings.json",
         "/Users/me/.cline/data/settings/cline_mcp_settings.json"),
        ("opencode", "/home/me/.config/opencode/opencode.jsonc",
         "/Users/me/.config/opencode/opencode.jsonc"),
    ],
)  # fmt: skip
def test_a_users_file_is_where_the_client_keeps_it(client: str, linux: str, mac: str) -> None:
    assert paths(LINUX, client)[0] == linux
    assert paths(MAC, client)[0] == mac


@pytest.mark.parametrize(
    ("variable", "client", "expected"),
    [
        ("CLAUDE_CONFIG_DIR", "claude-code", "/x/.claude.json"),
        ("CODEX_HOME", "codex", "/x/config.toml"),
        ("GEMINI_CLI_HOME", "gemini", "/x/.gemini/settings.json"),
        ("CLINE_MCP_SETTINGS_PATH", "cline", "/x"),
        ("CLINE_DATA_DIR", "cline", "/x/settings/cline_mcp_settings.json"),
        ("CLINE_DIR", "cline", "/x/data/settings/cline_mcp_settings.json"),
        ("OPENCODE_CONFIG", "opencode", "/x"),
        ("OPENCODE_CONFIG_DIR", "opencode", "/x/opencode.json"),
        ("XDG_CONFIG_HOME", "zed", "/x/zed/settings.json"),
        ("XDG_CONFIG_HOME", "claude-desktop", "/x/Claude/claude_desktop_config.json"),
    ],
)
def test_a_variable_moves_a_file(variable: str, client: str, expected: str) -> None:
    assert expected in paths(home_of("linux", "/home/me", {variable: "/x"}), client)


def test_a_projects_files_come_after_the_users_and_say_whose_they_are() -> None:
    found = list(places(LINUX, "/srv/shop"))

    of_project = [each for each in found if each.project is not None]
    assert found[-len(of_project) :] == of_project
    assert {each.project for each in of_project} == {"/srv/shop"}
    assert "/srv/shop/.mcp.json" in {each.path for each in of_project}


@pytest.mark.parametrize(
    ("path", "client", "project"),
    [
        ("/home/me/.cursor/mcp.json", "cursor", None),
        ("/home/me/.config/Code/User/profiles/-12/mcp.json", "vscode", None),
        ("/srv/shop/.cursor/mcp.json", "cursor", "/srv/shop"),
        ("/srv/shop/.mcp.json", "claude-code", "/srv/shop"),
        ("/srv/anything.json", "other", None),
    ],
)
def test_a_file_is_known_by_its_path(path: str, client: str, project: str | None) -> None:
    place = place_of(path, LINUX)

    assert (place.client.name, place.project) == (client, project)


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/home/me/.cache/uv/archive-v0/Xq1z", "uv tool install callgate"),
        ("/home/me/.cache/uv/environments-v2/callgate-1", "uv tool install callgate"),
        ("/data/uv-cache/archive-v0/Xq1z", "uv tool install callgate"),
        ("/home/me/.local/pipx/.cache/a1b2", "pipx install callgate"),
        ("/home/me/.cache/pipx/a1b2", "pipx install callgate"),
        ("/Users/me/Library/Caches/pipx/a1b2", "pipx install callgate"),
        ("/home/me/.local/share/uv/tools/callgate", None),
        ("/home/me/.local/share/pipx/venvs/callgate", None),
        ("/home/me/work/.venv", None),
    ],
)
def test_a_temporary_environment_is_known_by_its_path(prefix: str, command: str | None) -> None:
    assert install_command(PurePath(prefix)) == command


def test_from_a_temporary_environment_the_one_command_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/me/.cache/uv/archive-v0/x")

    with pytest.raises(Refused, match=r"uv tool install callgate$"):
        find_program()


def test_on_windows_it_is_said_that_run_does_not_work_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(Refused, match="Windows"):
        find_program()


def test_a_link_on_the_path_is_preferred_because_it_outlives_an_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(find_program()).resolve()
    (tmp_path / "callgate").symlink_to(own)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_program() == str(tmp_path / "callgate")


def test_another_callgate_on_the_path_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "callgate").write_text("#!/bin/sh\n")
    (tmp_path / "callgate").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_program() != str(tmp_path / "callgate")


def test_a_difference_shows_what_changes_and_no_secret() -> None:
    before = '{"env": {"TOKEN": "s3cr\\u0065t!"}, "command": "x",\n"\x1b[2J": 1}'
    value = {"env": {"TOKEN": "s3cret!", "OTHER": 's3cr"t2'}, "headers": ["bearer x"]}

    at = before.index('"x"')

    lines = "\n".join(difference(before, [Splice(at, at + 3, '"s3cret! bearer x"')], value))

    assert "command" in lines
    assert "s3cret!" not in lines
    assert "bearer" not in lines
    assert "\x1b" not in lines
