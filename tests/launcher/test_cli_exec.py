"""`callgate exec` as a script sees it: real commands, real limits, exit codes and JSON."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pytest
from typer.testing import CliRunner

from callgate.cli import contained, runs
from callgate.cli import exec as exec_module
from callgate.cli.terminal import Size, set_window_size
from callgate.launcher.host import survey
from callgate.stores.place import state_dir
from tests.launcher.helpers import NO_BWRAP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from callgate.model import LaunchSpec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no signals, no terminals")

MIB = 2**20
EXEC = [sys.executable, "-c", "from callgate.cli.exec import app; app()"]
WAIT_S = 60


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="session")
def _sandbox() -> None:
    host = survey.with_sandbox(survey.survey())
    if not (host.bwrap.present and host.seccomp.present and host.landlock_abi):
        reasons = f"{host.bwrap.reason} {host.seccomp.reason} landlock {host.landlock_abi}"
        pytest.skip(f"level standard cannot be had: {reasons}")


@pytest.fixture(scope="session")
def _groups() -> None:
    cgroups = survey.with_groups(survey.survey()).cgroups
    if None in (cgroups.holder("memory"), cgroups.holder("pids")):
        pytest.skip(f"no memory or pids controller: {cgroups.reason}")


sandboxed = pytest.mark.usefixtures("_sandbox")
grouped = pytest.mark.usefixtures("_groups")


class Ran(NamedTuple):
    status: int
    answer: dict[str, Any]
    remarks: str


def run(*words: str | Path, stdin: bytes | None = None, first: str = "") -> Ran:
    done = subprocess.run(
        [*EXEC[:2], first + EXEC[2], "--json", *map(str, words)],
        input=b"" if stdin is None else stdin,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    answer = orjson.loads(done.stdout) if done.stdout else {}
    return Ran(done.returncode, answer, done.stderr.decode())


def passed(*words: str) -> tuple[int, bytes, str]:
    """Return our exit code, the command's output as it came, and stderr."""
    done = subprocess.run(
        [*EXEC, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.decode()


@contextmanager
def piped(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command with three pipes of ours, killed if it takes too long."""
    with subprocess.Popen(
        [*EXEC, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        timer = threading.Timer(WAIT_S, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]


@pytest.fixture(params=["privileged", "standard"])
def level(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "standard":
        request.getfixturevalue("_sandbox")
    return f"--level={name}"


def test_a_command_that_ends_well_is_exit_0(level: str) -> None:
    ran = run(level, *python("import sys; print('out'); print('err', file=sys.stderr)"))

    assert ran.status == 0
    assert list(ran.answer) == [
        *("exit_code", "status", "signal", "stdout", "stderr", "truncated"),
        *("error_class", "stop_reason", "limit", "execution_time_ms", "usage", "effective"),
    ]
    assert (ran.answer["exit_code"], ran.answer["stop_reason"]) == (0, "exited")
    assert (ran.answer["stdout"], ran.answer["stderr"]) == ("out\n", "err\n")
    assert ran.answer["error_class"] is None
    assert ran.answer["truncated"] == {"stdout": False, "stderr": False}
    assert 0 < ran.answer["execution_time_ms"] < WAIT_S * 1000
    assert ran.remarks == ""


def test_output_and_exit_code_pass_through_as_if_nothing_stood_between(level: str) -> None:
    code = """
        import sys
        sys.stdout.buffer.write(b"\\xff\\x00 raw")
        sys.stderr.write("err\\n")
        raise SystemExit(77)
    """
    status, out, err = passed(level, *python(code))

    assert (status, out) == (77, b"\xff\x00 raw")
    own, line = err.splitlines()
    assert (own, line.startswith("callgate: ended with exit code 77 after ")) == ("err", True)


def test_a_command_that_ends_well_is_not_spoken_of() -> None:
    assert passed("--level=privileged", "--", "echo", "hello") == (0, b"hello\n", "")


def test_a_large_output_passes_whole_and_a_cap_cuts_it() -> None:
    code = python("import sys; sys.stdout.write('x' * 5_000_000)")

    status, out, err = passed("--level=privileged", *code)
    assert (status, len(out), err) == (0, 5_000_000, "")

    status, out, err = passed("--level=privileged", "--max-stdout", "1Ki", *code)
    assert (status, out) == (0, b"x" * 1024)
    assert err == "callgate: stdout was cut; raise it with --max-stdout\n"


def test_output_comes_while_the_command_runs_and_secrets_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    policy = policy_file(
        tmp_path,
        """
        version: 1
        agents:
          web: {env: {secret: [API_KEY]}, containment: {level: privileged}}
        """,
    )
    words = ["--policy", str(policy), "--", "sh", "-c", "echo my $API_KEY; read line; echo $line"]
    with piped(*words) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = process.stdout.readline()
        process.stdin.write(b"went on\n")
        process.stdin.close()
        rest = process.stdout.read()
        status = process.wait(WAIT_S)

    assert (first, rest, status) == (b"my ***\n", b"went on\n", 0)


def test_a_reader_that_goes_away_ends_the_command() -> None:
    with piped("--level=privileged", "--timeout=50s", "--", "yes") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        started = time.monotonic()
        status = process.wait(WAIT_S)

    assert time.monotonic() - started < 20
    assert status not in {0, 124}


WITHOUT_END = ["--level=privileged", "--timeout=1s", *python("while 1: print('y' * 4096)")]


def test_a_reader_that_stands_still_gets_all_of_it_in_the_end() -> None:
    with piped(*WITHOUT_END) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        verdict = process.stderr.readline()  # its time runs though nobody reads
        assert process.poll() is None
        out = process.stdout.read()
        status = process.wait(WAIT_S)

    assert (b"over its timeout limit of 1 s" in verdict, status) == (True, 124)
    assert len(out) > 64 * 1024
    assert set(out) == set(b"y\n")


def test_a_signal_ends_the_wait_for_a_reader_that_stands_still() -> None:
    with piped(*WITHOUT_END) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 124


def test_a_signal_that_ends_the_command_is_128_and_its_number(level: str) -> None:
    status, _, err = passed(level, "--", "sh", "-c", "kill -USR1 $$")

    assert status == 128 + signal.SIGUSR1
    assert f"callgate: ended by signal {int(signal.SIGUSR1)} after " in err


@pytest.mark.parametrize("word", ["/nonexistent/program", "no-such-program"])
def test_a_command_that_is_not_there_is_127(level: str, word: str) -> None:
    ran = run(level, "--", word)

    assert (ran.status, ran.answer["exit_code"], ran.answer["status"]) == (127, None, 127)
    assert ran.answer["stop_reason"] == "failed_to_start"
    assert ran.remarks == f"callgate: {word}: not found; nothing ran\n"


@pytest.mark.parametrize("word", ["/etc/passwd", "/usr"])
def test_a_command_that_cannot_be_executed_is_126(level: str, word: str) -> None:
    status, _, err = passed(level, "--", word)

    assert status == 126
    assert err.startswith(f"callgate: {word}: cannot be executed; nothing ran")


def test_a_program_in_no_format_that_the_kernel_knows_is_126(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x00not a program")
    program.chmod(0o755)

    assert passed("--level=privileged", "--", str(program))[0] == 126


def test_a_commands_own_failure_is_its_own_code() -> None:
    ran = run("--level=privileged", *python("raise SystemExit(77)"))

    assert (ran.status, ran.answer["exit_code"], ran.answer["error_class"]) == (77, 77, None)


@pytest.mark.parametrize("number", ["2147483648", "9" * 5000, "²", "0"])
def test_a_number_that_is_too_large_is_told_the_largest(number: str) -> None:
    result = CliRunner().invoke(exec_module.app, ["--open-files", number, "--", "true"])

    told = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == 2
    assert "is not a whole number from 1 to 1,000,000,000, or unlimited" in told


def test_options_after_the_command_are_the_commands_own() -> None:
    ran = run("--level", "privileged", "printf", "%s\n", "--memory", "--", "x")

    assert ran.answer["stdout"] == "--memory\n--\nx\n"


def test_input_is_handed_on() -> None:
    data = os.urandom(300_000).hex().encode()

    ran = run("--level=privileged", *python("import sys; print(len(sys.stdin.read()))"), stdin=data)

    assert ran.answer["stdout"] == "600000\n"


def test_a_terminal_is_not_handed_on_as_input() -> None:
    master, slave = os.openpty()
    done = subprocess.run(
        [*EXEC, "--level=privileged", "--timeout=20s", "--", "cat"],
        stdin=slave,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    os.close(master)
    os.close(slave)

    assert done.returncode == 0


@grouped
def test_a_memory_hog_is_ended_with_limit_exceeded(level: str) -> None:
    ran = run(level, "--memory", "64Mi", *python("block = bytearray(b'x') * (300 * 2**20)"))

    assert (ran.status, ran.answer["exit_code"]) == (137, None)
    assert (ran.answer["error_class"], ran.answer["stop_reason"]) == ("LIMIT_EXCEEDED", "oom")
    assert ran.answer["limit"]["limit"] == 64 * MIB
    assert 50 * MIB < ran.answer["usage"]["memory_peak_bytes"] < 80 * MIB
    (line,) = ran.remarks.splitlines()
    assert line.startswith("callgate: killed after ")
    assert line.endswith(": over its memory limit of 64 MiB; raise it with --memory")


@sandboxed
@grouped
def test_memory_in_which_nothing_can_start_is_refused_by_that_name() -> None:
    ran = run("--memory", "64", "--", "true")

    assert (ran.status, ran.answer["error_class"]) == (125, "CAPABILITY_DENIED")
    assert "memory: 64 bytes are not enough to start it" in ran.remarks


FORK_BOMB = """
import os, signal
made = 0
try:
    while True:
        if os.fork() == 0:
            os.setsid()
            signal.pause()
        made += 1
except BlockingIOError:
    print(made, flush=True)
    raise SystemExit(1)
"""


@grouped
def test_a_fork_bomb_stops_at_its_number_of_processes(level: str) -> None:
    ran = run(level, "--pids", "16", *python(FORK_BOMB))

    assert ran.answer["stdout"] == "15\n", "and the first one makes 16"
    assert (ran.status, ran.answer["error_class"]) == (1, "LIMIT_EXCEEDED")
    assert ran.answer["stop_reason"] == "pids_limit"


def test_what_takes_longer_than_its_timeout_is_exit_124(level: str) -> None:
    started = time.monotonic()

    ran = run(level, "--timeout", "500ms", "--", "sleep", "40")

    assert time.monotonic() - started < 20
    assert (ran.status, ran.answer["error_class"]) == (124, "TIMEOUT")
    assert ran.answer["stop_reason"] == "wall_time_limit"


def test_processor_time_that_is_used_up_is_limit_exceeded(level: str) -> None:
    ran = run(level, "--cpu-time", "1s", *python("while True: pass"))

    assert (ran.status, ran.answer["error_class"]) == (137, "LIMIT_EXCEEDED")
    assert ran.answer["stop_reason"] == "cpu_time_limit"
    # The limit counts ticks, the usage is exact: on a busy virtual machine they differ.
    assert 0.5e9 < ran.answer["usage"]["cpu_ns"] < 3e9


def test_open_files_are_limited(level: str) -> None:
    ran = run(level, "--open-files", "32", "--", "sh", "-c", "ulimit -Hn; ulimit -Sn")

    assert ran.answer["stdout"] == "32\n32\n"


@sandboxed
def test_a_full_workspace_is_no_space_for_the_command() -> None:
    code = """
        try:
            open('big', 'wb').write(bytes(20 * 2**20))
        except OSError as error:
            print(error.strerror)
    """

    ran = run("--disk", "8Mi", "--memory", "128Mi", *python(code))

    assert ran.answer["stdout"] == "No space left on device\n"
    assert ran.answer["effective"]["disk"]["status"] == "enforced"


def test_a_workspace_that_is_only_counted_ends_the_run() -> None:
    code = """
        import os, time
        for name in ('/one', '/two', '/three'):
            open(os.environ['CALLGATE_WORKSPACE'] + name, 'wb').write(bytes(7 * 2**20))
        time.sleep(50)
    """

    ran = run("--level", "privileged", "--disk", "8Mi", *python(code))

    assert (ran.status, ran.answer["stop_reason"]) == (137, "disk_limit")
    assert ran.answer["usage"]["disk_bytes"] >= 20 * MIB


CONNECT = """
import socket, sys
try:
    socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=5)
    print('connected')
except OSError:
    print('refused')
"""


@pytest.fixture
def port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


@sandboxed
@pytest.mark.parametrize(
    ("level", "expected"), [("standard", "refused\n"), ("network", "connected\n")]
)
def test_tcp_is_for_level_network(level: str, expected: str, port: str) -> None:
    assert run("--level", level, *python(CONNECT), port).answer["stdout"] == expected


@sandboxed
@grouped
def test_tcp_is_not_for_level_strict(port: str) -> None:
    assert run("--level", "strict", *python(CONNECT), port).answer["stdout"] == "refused\n"


def test_what_the_host_cannot_enforce_is_exit_125_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "seen" / "mark"
    mark.parent.mkdir()
    monkeypatch.setenv("PATH", "/nonexistent")  # no bwrap

    words = ("--mount", f"{mark.parent}:rw", "--", "/bin/sh", "-c", f": > {mark}")
    ran = run(*words, first=NO_BWRAP)

    assert (ran.status, ran.answer["exit_code"]) == (125, None)
    assert ran.answer["error_class"] == "CAPABILITY_DENIED"
    assert ran.answer["effective"]["namespaces"]["status"] == "absent"
    assert "bwrap is not installed" in ran.remarks
    assert not mark.exists()


def test_degraded_containment_must_be_asked_for_and_is_loud(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    ran = run("--allow-degraded", "--", "/bin/sh", "-c", "echo ran", first=NO_BWRAP)

    assert (ran.status, ran.answer["stdout"]) == (0, "ran\n")
    assert "degraded containment" in ran.remarks
    assert ran.answer["effective"]["network"]["status"] == "absent"


def test_a_limit_that_the_system_does_not_allow_is_exit_125() -> None:
    limit = int(Path("/proc/sys/fs/nr_open").read_text()) + 1

    ran = run("--level", "privileged", "--open-files", str(limit), "--", "true")

    assert (ran.status, ran.answer["error_class"]) == (125, "CAPABILITY_DENIED")
    assert "RLIMIT_NOFILE" in ran.remarks


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that the command can write to, whoever it is."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_command_and_is_exit_130(
    number: int, level: str, shared: Path
) -> None:
    code = """
        import pathlib, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: (print('asked to end', flush=True), sys.exit(0)))
        pathlib.Path(sys.argv[1], 'ready').touch()
        signal.pause()
    """
    with started(level, f"--mount={shared}:rw", *python(code), str(shared)) as process:
        wait_for(shared / "ready")
        process.send_signal(number)
        answer = ended(process)

    assert process.returncode == 130
    assert (answer["error_class"], answer["stop_reason"]) == ("CANCELLED", "stop_requested")
    assert answer["stdout"] == "asked to end\n"


@sandboxed
def test_a_second_signal_ends_what_does_not_want_to_end(shared: Path) -> None:
    code = """
        import pathlib, signal, sys
        here = pathlib.Path(sys.argv[1])
        signal.signal(signal.SIGTERM, lambda *_: (here / 'asked').touch())
        (here / 'ready').touch()
        while True: signal.pause()
    """
    with started(f"--mount={shared}:rw", *python(code), str(shared)) as process:
        wait_for(shared / "ready")
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        wait_for(shared / "asked")
        process.send_signal(signal.SIGINT)
        answer = ended(process)

    assert time.monotonic() - begin < 4.5, "the grace is 5 s"
    assert (process.returncode, answer["error_class"]) == (130, "CANCELLED")


def started(*words: str) -> subprocess.Popen[bytes]:
    command = [*EXEC, "--json", *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def wait_for(path: Path) -> None:
    until = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.01)


def ended(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    answer: dict[str, Any] = orjson.loads(process.stdout.read())
    process.wait(WAIT_S)
    return answer


def test_output_over_a_mebibyte_is_cut_and_said_to_be() -> None:
    code = "import sys; sys.stdout.write('é' * 2**20); sys.stderr.write('x')"

    ran = run("--level=privileged", *python(code))

    assert len(ran.answer["stdout"].encode()) == MIB
    assert ran.answer["truncated"] == {"stdout": True, "stderr": False}
    assert ran.status == 0


def test_a_command_over_64_kib_is_refused() -> None:
    fits = ["true", "x" * (64 * 1024 - 6)]
    assert contained.size_of(fits) == 64 * 1024

    ran = run("--level", "privileged", "--", fits[0], fits[1] + "x")

    assert (ran.status, ran.answer["error_class"]) == (126, "LIMIT_EXCEEDED")
    assert (ran.answer["exit_code"], ran.answer["stop_reason"]) == (None, None)
    more = ("--max-command", "65Ki", "--level", "privileged", "--")
    assert run(*more, fits[0], fits[1] + "x").status == 0
    assert run("--max-command", "4", "--level", "privileged", "--", "true").status == 126


USE = """
import resource, time
block = bytearray(b'x') * (100 * 2**20)
while time.process_time() < 0.5: pass
own = resource.getrusage(resource.RUSAGE_SELF)
print(own.ru_utime + own.ru_stime, own.ru_maxrss * 1024)
"""


def test_usage_is_what_the_command_says_it_used(level: str) -> None:
    ran = run(level, *python(USE))

    cpu_s, peak = map(float, ran.answer["stdout"].split())
    usage = ran.answer["usage"]
    assert cpu_s - 0.05 < usage["cpu_ns"] / 1e9 < cpu_s + 0.3
    assert peak * 0.95 < usage["memory_peak_bytes"] < peak * 1.1


def test_the_variables_of_ours_do_not_pass_unless_they_are_named(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    monkeypatch.setenv("WANTED", "yes")

    ran = run(level, "--env", "WANTED", "--", "env")

    assert "hunter2" not in ran.answer["stdout"]
    assert "WANTED=yes" in ran.answer["stdout"].splitlines()


@sandboxed
def test_a_mount_is_read_only_unless_it_is_asked_to_be_writable(shared: Path) -> None:
    (shared / "seen").write_text("hello")
    words = ["--", "sh", "-c", f"cat {shared}/seen; echo x > {shared}/new"]

    assert run("--mount", str(shared), *words).answer["stdout"] == "hello"
    assert not (shared / "new").exists()
    assert run("--mount", f"{shared}:rw", *words).status == 0
    assert (shared / "new").read_text() == "x\n"


def test_each_run_is_recorded_and_told_by_runs() -> None:
    run("--level", "privileged", *python("raise SystemExit(3)"))

    (told,) = orjson.loads(CliRunner().invoke(runs.app, ["--json"]).stdout)
    assert (told["agent"], told["state"], told["reason"]) == ("exec", "crashed", "exited")
    assert told["exit_code"] == 3


def test_an_audit_that_cannot_be_written_does_not_stop_the_command() -> None:
    (state_dir().parent).mkdir(parents=True, exist_ok=True)
    state_dir().write_text("in the way")

    ran = run("--level", "privileged", "--", "echo", "ran")

    assert ran.answer["stdout"] == "ran\n"
    assert "the run is not recorded" in ran.remarks


def policy_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "callgate.yaml"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_policy_says_what_holds_and_options_go_before_it(tmp_path: Path) -> None:
    policy = policy_file(
        tmp_path,
        """
        version: 1
        agents:
          web: {containment: {level: privileged, open_files: 40, cpu_time: 7s}}
        """,
    )
    show = ["--", "sh", "-c", "ulimit -n; ulimit -t"]

    assert run("--policy", policy, *show).answer["stdout"] == "40\n7\n"
    assert run("--policy", policy, "--open-files", "50", *show).answer["stdout"] == "50\n7\n"


def test_secrets_of_a_policy_pass_and_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    policy = policy_file(
        tmp_path,
        """
        version: 1
        agents:
          web: {env: {secret: [API_KEY]}, containment: {level: privileged}}
        """,
    )

    ran = run("--policy", policy, "--", "sh", "-c", "echo ${#API_KEY} $API_KEY")

    assert ran.answer["stdout"] == "7 ***\n"


def test_of_several_agents_one_must_be_named(tmp_path: Path) -> None:
    policy = policy_file(
        tmp_path,
        """
        version: 1
        agents:
          a: {containment: {level: privileged, open_files: 41}}
          b: {containment: {level: privileged, open_files: 42}}
        """,
    )
    show = ["--", "sh", "-c", "ulimit -n"]

    assert run("--policy", policy, *show).status == 2
    assert run("--policy", policy, "--agent", "b", *show).answer["stdout"] == "42\n"
    assert "names no agent 'c'" in run("--policy", policy, "--agent", "c", *show).remarks


@sandboxed
def test_a_policy_that_contains_nobody_leaves_the_defaults(tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "version: 1\nagents: {web: {timeout: 3s}}\n")

    ran = run("--policy", policy, "--", "true")

    assert ran.answer["effective"]["namespaces"]["status"] == "enforced"


def test_a_policy_with_problems_is_exit_1(tmp_path: Path) -> None:
    assert run("--policy", policy_file(tmp_path, "agents: 3\n"), "--", "true").status == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--memory", "much", "--", "true"],
        ["--cpu", "-1", "--", "true"],
        ["--pids", "0", "--", "true"],
        ["--connections", "0", "--", "true"],
        ["--address-space", "0", "--", "true"],
        ["--io-read", "0", "--", "true"],
        ["--kill-grace", "unlimited", "--", "true"],
        ["--monitor-interval", "5", "--", "true"],
        ["--timeout", "5", "--", "true"],
        ["--level", "none", "--", "true"],
        ["--mount", "/nonexistent", "--", "true"],
    ],
)
def test_what_cannot_be_understood_is_exit_2(words: list[str]) -> None:
    result = CliRunner().invoke(exec_module.app, words)

    assert (result.exit_code, result.stdout) == (2, "")


def test_a_number_that_is_too_large_is_told_by_its_bounds() -> None:
    result = CliRunner().invoke(exec_module.app, ["--open-files", "2147483648", "--", "true"])

    assert result.exit_code == 2
    assert "from 1 to" in " ".join(result.stderr.split())


def test_each_limit_of_a_process_has_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[LaunchSpec] = []

    def answer(spec: LaunchSpec, *_: object) -> int:
        specs.append(spec)
        return 0

    monkeypatch.setattr(exec_module, "_start", answer)
    options = {
        "--connections": "20",
        "--address-space": "4Gi",
        "--core-size": "0",
        "--io-read": "1Mi",
        "--io-write": "2Mi",
        "--kill-grace": "250ms",
        "--monitor-interval": "100ms",
    }

    words = [word for pair in options.items() for word in pair]
    result = CliRunner().invoke(exec_module.app, [*words, "--", "true"])

    assert result.exit_code == 0, result.output
    (spec,) = specs
    limits = spec.limits
    assert (limits.connections, limits.address_space_bytes, limits.core_bytes) == (20, 4 << 30, 0)
    assert (limits.io_read_bytes_per_s, limits.io_write_bytes_per_s) == (1 << 20, 2 << 20)
    assert (spec.kill_grace_ns, spec.monitor_interval_ns) == (250_000_000, 100_000_000)


def test_a_limit_can_be_switched_off() -> None:
    ran = run("--level", "privileged", "--memory", "unlimited", "--", "true")

    assert ran.answer["effective"]["memory"] == {"status": "absent", "reason": "not asked for"}


PERSON = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: print("INT", flush=True))
signal.signal(signal.SIGWINCH, lambda *_: print("size", *os.get_terminal_size(), flush=True))
print("tty", os.isatty(0), os.isatty(1), *os.get_terminal_size(), flush=True)
while data := os.read(0, 4096):
    print("heard", data.decode().strip(), flush=True)
sys.exit(4)
"""


class Terminal:
    """A person's terminal with `callgate exec --tty` in it, as a shell would start it."""

    def __init__(self, *words: str) -> None:
        self._master, slave = os.openpty()
        set_window_size(slave, Size(24, 80))
        login = textwrap.dedent("""
            import fcntl, os, sys, termios
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            os.execv(sys.argv[1], sys.argv[1:])
        """)
        command = [sys.executable, "-I", "-S", "-c", login, *EXEC, "--tty", *words]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.seen = ""

    def types(self, data: bytes) -> None:
        os.write(self._master, data)

    def resize(self, size: Size) -> None:
        set_window_size(self._master, size)

    def sees(self, text: str) -> bool:
        until = time.monotonic() + WAIT_S
        while text not in self.seen and time.monotonic() < until:
            try:
                self.seen += os.read(self._master, 4096).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        return text in self.seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self._master)


@pytest.fixture
def terminal(level: str) -> Iterator[Terminal]:
    one = Terminal(level, *python(PERSON))
    yield one
    one.close()


def test_a_command_has_a_minute_but_a_person_at_a_terminal_has_time() -> None:
    with pytest.MonkeyPatch.context() as patch:
        seen: list[int | None] = []

        def note(spec: LaunchSpec, *_: object) -> int:
            seen.append(spec.limits.wall_time_ns)
            return 0

        patch.setattr(exec_module, "_start", note)
        for words in (["true"], ["--tty", "true"], ["--tty", "--timeout", "5s", "true"]):
            assert CliRunner().invoke(exec_module.app, words).exit_code == 0

    assert seen == [60_000_000_000, None, 5_000_000_000]


def test_a_terminal_reaches_into_the_containment(terminal: Terminal) -> None:
    assert terminal.sees("tty True True 80 24"), terminal.seen
    terminal.types(b"hello\r")
    assert terminal.sees("heard hello"), terminal.seen
    terminal.types(b"\x03")
    assert terminal.sees("INT"), terminal.seen
    terminal.resize(Size(50, 132))
    assert terminal.sees("size 132 50"), terminal.seen
    terminal.types(b"\x04")

    assert terminal.process.wait(WAIT_S) == 4, "the command's own"
