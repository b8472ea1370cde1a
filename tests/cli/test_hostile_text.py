"""Every command, with hostile text wherever others may write some: nothing unprintable comes out.

On a pipe and on a terminal. A terminal also gets rich's own sequences, for colours and borders;
those are taken away before looking, and the hostile ones are unlike any of them.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.audit.events import Event, admitted, call_fragment, ended, limit_fragment, refused
from tests.audit.helpers import call_id, only_writer, open_log
from tests.gate.helpers import environment

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a PTY")

CLI = Path(__file__).parents[2] / "callgate" / "cli"
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\u2028\r\nforged: ok\x7f[red]x[/red]"
BYTE = "\udcff"
"""Half a pair: what a byte that is no UTF-8 becomes in an argument."""
BAD = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
OURS = re.compile(r"\x1b\[(\?25[lh]|[0-9;]*m|[12]?K|1A)|\r\n|\r|\n")
COMMAND = 'command: ["/bin/echo", %s]'


def quoted_yaml(text: str) -> str:
    """Every character that YAML does not show, as its escape."""
    return '"' + "".join(f"\\u{ord(c):04x}" if not c.isalnum() else c for c in text) + '"'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Policies, a manifest and audits, with hostile text in each."""
    evil = quoted_yaml(EVIL)
    (tmp_path / "good.yaml").write_text(
        f"agents: {{web: {{tools: {{{evil}: deny}}, launcher: {evil}, rate: 1/hour, "
        f"{COMMAND % evil}}}}}\n"
    )
    (tmp_path / "values.yaml").write_text(
        f"version: {evil}\nagents:\n  web: {{rate: {evil}, {evil}: 1, tools: {{a: {evil}}}}}\n"
        f"  {evil}: {{}}\nmode: {evil}\n"
    )
    (tmp_path / "agent.json").write_text(json.dumps({"execution_limits": {"rate_limit": EVIL}}))
    (tmp_path / "manifest.yaml").write_text("agents: {web: {manifest: agent.json}}\n")
    (tmp_path / "missing.yaml").write_text(f"agents: {{web: {{manifest: {evil}}}}}\n")
    name = EVIL.replace("/", "")
    (tmp_path / f"{name}.yaml").write_text("agents: {web: {}}\n")
    (tmp_path / "raw.yaml").write_bytes(b"agents: {\x1b[31m: {}}\n")
    writer = tmp_path / "audit" / name
    writer.mkdir(parents=True)
    (writer / "00000001.jsonl").write_text(f"{EVIL}\n")
    evil_log(tmp_path / "past")
    return tmp_path


def evil_log(path: Path) -> None:
    """An audit that somebody else wrote, with hostile text in each member that may hold some."""
    log = open_log(path)
    lane = call_fragment(EVIL, EVIL, EVIL, EVIL)
    log.record(admitted(lane, call_id(1)), 1)
    log.record(ended("tool.call.failed", lane, call_id(1), "", 1, "tool.failed"), -1)
    limit = limit_fragment(EVIL)
    log.record(refused("tool.call.denied", lane, call_id(2), "", "limit.rate", limit))
    log.record(refused("tool.call.would_deny", lane, call_id(3), "", "limit.rate", limit))
    log.write(Event(event="agent.run_started", agent=EVIL, run_id="r" + EVIL))
    log.write(Event(event="agent.run_crashed", agent=EVIL, run_id="r" + EVIL, code=EVIL))
    log.close()
    own = only_writer(path) / "00000001.jsonl"
    forged = (b'"code":"limit.rate"', b'"code":' + json.dumps(EVIL).encode())
    own.write_bytes(
        own.read_bytes().replace(*forged).replace(b'"outcome":"error"', b'"outcome":"\\u001b[2J"')
    )


def commands(evil_file: str) -> list[list[str]]:
    files = ["good.yaml", "values.yaml", "manifest.yaml", "missing.yaml", "raw.yaml", evil_file]
    files.append(f"none{EVIL}.yaml")
    found = [["check", file, *more] for file in files for more in ([], ["--json"])]
    for agent in ("web", EVIL.replace("\n", ""), EVIL, f"a{BYTE}"):
        ways: tuple[list[str], ...] = (
            [],
            ["--json"],
            ["--plan"],
            ["--tool", EVIL],
            ["--caller", EVIL],
        )
        found += [["explain", "good.yaml", "--agent", agent, *more] for more in ways]
        found.append(["run", "--policy", "good.yaml", "--agent", agent])
        found.append(["run", "--agent", agent, "--", "/nonexistent/" + EVIL])
        found.append(["run", "--caller", agent, "--", "/nonexistent/" + EVIL])
        found.append(["runs", "--agent", agent])
        found.append(["exec", "--policy", "good.yaml", "--agent", agent, "--", "/none" + EVIL])
    found += [["run", "--policy", file, "--", "true"] for file in files]
    found += [["runs", "--log", "past", *way] for way in ([], ["--json"], ["r"], ["--state", EVIL])]
    found += [["exec", "--mount", EVIL, "true"]]
    found += [["exec", "--memory", EVIL, "true"], [EVIL], ["check", "--" + EVIL], ["run", EVIL]]
    found += [["run", "--" + EVIL, "--", "true"], ["exec", "--policy", EVIL, "true"]]
    found += [["audit", "verify", "audit"], ["audit", "verify", "audit", "--json"]]
    found += [["audit", "verify", EVIL], ["audit", "verify", "audit", "--anchor", EVIL]]
    for way in ([], ["--json"], ["--csv"], ["--request-id", call_id(1)], ["--agent", EVIL]):
        found.append(["calls", "--log", "past", *way])
    found += [["calls", "--log", "past", "--limit", "0"], ["calls", "--log", EVIL]]
    found += [
        ["calls", "--since", EVIL],
        ["calls", "--outcome", EVIL],
        ["calls", "--request-id", EVIL],
    ]
    found += [["stats", "--since", since, "--log", "past"] for since in ("all", EVIL)]
    found += [
        ["stats", "--since", "all", "--log", "past", more] for more in ("--json", "--verify=all")
    ]
    found += [["calls", "--log", "audit"], ["stats", "--log", "audit", "--verify", "all"]]
    found += [["contract", "--call", EVIL, "--", "true"], ["demo", "--folder", "/dev/null/" + EVIL]]
    found += [["contract", "--only", EVIL, "--", "true"], ["contract", "--", "/none" + EVIL]]
    return found


RUN = """
import contextlib, io, json, os, pty, sys, threading
from callgate.cli import main
# Each command in a fork: the imports are made once.
import callgate.cli.app, callgate.cli.output, callgate.cli.run, callgate.cli.audit
import callgate.cli.calls, callgate.cli.stats, callgate.cli.runs, callgate.cli.exec
import callgate.cli.contained, callgate.cli.contract
import rich.console
for line in sys.stdin:
    words, terminal = json.loads(line)
    if terminal:
        pid, master = pty.fork()
    else:
        master, out = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(out, 1); os.dup2(out, 2); os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if pid == 0:
        os.environ.update(COLUMNS="200", TERM="xterm")
        sys.argv = ["callgate", *words]
        try:
            main()
        except SystemExit as end:
            print(f"exit {end.code}", flush=True)
        except BaseException as error:
            print(f"TRACEBACK {error!r}", flush=True)
        with contextlib.suppress(OSError):
            sys.stdout.flush(); sys.stderr.flush()
        os._exit(0)
    if not terminal:
        os.close(out)
    data = b""
    with contextlib.suppress(OSError):
        while piece := os.read(master, 65536):
            data += piece
    os.close(master)
    os.waitpid(pid, 0)
    sys.__stdout__.write(json.dumps(data.decode("utf-8", "surrogateescape")) + "\\n")
    sys.__stdout__.flush()
"""


def outputs(place: Path, words: Sequence[list[str]], *, terminal: bool) -> list[str]:
    asked = "".join(json.dumps([each, terminal]) + "\n" for each in words)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=asked,
        check=True,
        capture_output=True,
        text=True,
        cwd=place,
        env=environment(place) | {"PYTHONUTF8": "1"},
        timeout=300,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_bad(text: str) -> bool:
    """Tell whether something unprintable, a forged line or a traceback is in a command's output."""
    left = OURS.sub("", text)
    forged = any(line.strip().startswith("forged") for line in text.splitlines())
    return (
        forged
        or "traceback" in text.lower()
        or any(unicodedata.category(char) in BAD for char in left)
    )


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_no_command_prints_what_is_not_printable(place: Path, *, terminal: bool) -> None:
    words = commands(EVIL.replace("/", "") + ".yaml")
    found = outputs(place, words, terminal=terminal)

    assert len(found) == len(words)
    faults = [(each, text) for each, text in zip(words, found, strict=True) if is_bad(text)]
    assert not faults
    for each, text in zip(words, found, strict=True):
        if "--json" in each and text.strip().startswith(("{", "[")):
            json.JSONDecoder().raw_decode(text.strip())  # remarks follow, of stderr
    assert sum("\\x1b" in text or "\\u001b" in text for text in found) > len(words) / 3


def test_markup_in_a_name_is_not_interpreted(place: Path) -> None:
    found = outputs(place, [["runs", "--log", "past"]], terminal=True)[0]

    assert "[red]x[/red]" in OURS.sub("", found).replace(" ", "")


def test_commands_print_by_one_module_alone() -> None:
    """But for a version, a schema and its page, which hold no text of others."""
    exempt = {"say.py": 4, "app.py": 2}
    for path in CLI.rglob("*.py"):
        if path.name == "agent.py":  # the demonstration's agent: a program of its own
            continue
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        names = [ast.unparse(call.func) for call in calls]
        printing = [n for n in names if n in {"print", "typer.echo", "typer.secho", "click.echo"}]
        assert len(printing) == exempt.get(path.name, 0), path
