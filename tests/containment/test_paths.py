"""What an agent leaves in a mount decides nothing about the launches that follow."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from callgate.launcher import LaunchRefused, LocalLauncher
from callgate.launcher.host import helper_program
from callgate.launcher.plan.capabilities import Capability
from callgate.launcher.warden import special_files
from callgate.model import MountSpec
from tests.containment.agents import close, next_id, read_line, run, spec
from tests.containment.capabilities import this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from callgate.model import LaunchSpec, Level

pytestmark = pytest.mark.usefixtures("sandbox")


STARTS = 200


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that agents may write to."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A directory of the host's that no policy names."""
    path = tmp_path / "private" / "key"
    path.parent.mkdir()
    path.write_text("secret\n")
    return path.parent


def agent(code: str, *mounts: MountSpec, **more: object) -> LaunchSpec:
    return spec(code, level="standard", mounts=mounts, **more)  # type: ignore[arg-type]


def writable(path: Path) -> MountSpec:
    return MountSpec(str(path), read_only=False)


def put(path: Path, content: str | bytes) -> Path:
    """Write a program."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o755)
    return path


def put_bwrap(folder: Path) -> None:
    """Put the true bwrap into a directory that is ours alone."""
    folder.chmod(0o755)
    put(folder / "bwrap", Path("/usr/bin/bwrap").read_bytes())


def replace_bwrap(folder: Path) -> None:
    (folder / "bwrap").rename(folder / "old")
    put(folder / "bwrap", f"#!/bin/sh\ntouch {folder}/ran\n")


def has_run(folder: Path) -> bool:
    return (folder / "ran").exists()


def make_folder(path: Path) -> None:
    """Make a directory that agents may write to."""
    path.mkdir()
    path.chmod(0o777)


def open_up(path: Path) -> None:
    path.chmod(0o777)


def lowered(path: Path) -> None:
    """Let everybody write to a file."""
    path.chmod(0o777)


def reach(name: str, folder: Path) -> str:
    """A program that connects to a socket, from its directory: a path may not be long."""
    return f"import os; os.chdir({str(folder)!r})\n" + CONNECT.format(paths=[name])


def put_socket(path: Path) -> None:
    """Leave a socket there that nobody listens on."""
    folder = os.getcwd()  # noqa: PTH109
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(folder)


def make_deep(folder: Path, depth: int) -> None:
    for _ in range(depth):
        folder /= "d"
        folder.mkdir()


def names(path: Path) -> list[str]:
    return [each.name for each in path.iterdir()]


async def end_of(launcher: LocalLauncher, tried: LaunchSpec) -> str:
    """Return what a run printed, or that and why it was refused."""
    try:
        said = await run(launcher, tried)
    except LaunchRefused as refused:
        return f"refused: {refused.gaps}"
    return said.out + said.err


async def refusal(launcher: LocalLauncher, tried: LaunchSpec) -> str:
    with pytest.raises(LaunchRefused) as caught:
        await run(launcher, tried)
    return " ".join(caught.value.gaps.values())


@pytest.fixture
def only_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host whose only helper programs are on the PATH."""
    monkeypatch.setattr(helper_program, "DIRECTORIES", ())
    helper_program.bwrap.cache_clear()
    yield
    helper_program.bwrap.cache_clear()


async def test_a_bwrap_that_an_agent_plants_is_not_executed(
    root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{shared}:/usr/bin:/bin")
    code = f"""
import os
with open("{shared}/bwrap", "w") as file:
    file.write("#!/bin/sh\\ntouch {shared}/ran\\n")
os.chmod("{shared}/bwrap", 0o755)
"""
    async with LocalLauncher(root=root) as launcher:
        await run(launcher, agent(code, writable(shared)))
    helper_program.bwrap.cache_clear()  # as a new process of callgate would begin

    async with LocalLauncher(root=root) as launcher:
        said = await run(launcher, agent("print('walls')", writable(shared)))

    assert said.out == "walls\n"
    assert not has_run(shared)


@pytest.mark.usefixtures("only_path")
async def test_a_bwrap_on_the_path_that_agents_may_write_to_refuses_the_launch(
    root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{shared}:/usr/bin:/bin")
    put(shared / "bwrap", f"#!/bin/sh\ntouch {shared}/ran\n")

    async with LocalLauncher(root=root) as launcher:
        why = await refusal(launcher, agent("", writable(shared)))

    assert str(shared) in why
    assert not has_run(shared)


@pytest.mark.usefixtures("only_path")
async def test_a_mount_that_holds_bwrap_refuses_the_launch(
    root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with its directory but that the agent would write there."""
    put_bwrap(shared)
    monkeypatch.setenv("PATH", str(shared))

    async with LocalLauncher(root=root) as launcher:
        assert (await run(launcher, agent("print(1)"))).out == "1\n"
        why = await refusal(launcher, agent("", writable(shared)))

    assert f"{shared}/bwrap" in why


@pytest.mark.usefixtures("only_path")
async def test_a_bwrap_that_is_replaced_after_it_was_found_is_not_executed(
    root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_bwrap(shared)
    monkeypatch.setenv("PATH", str(shared))

    async with LocalLauncher(root=root) as launcher:
        assert (await run(launcher, agent("print(1)"))).out == "1\n"
        replace_bwrap(shared)
        assert (await run(launcher, agent("print(2)"))).out == "2\n"

    assert not has_run(shared)


async def test_a_mount_that_holds_callgate_itself_refuses_the_launch(
    launcher: LocalLauncher,
) -> None:
    package = Path(helper_program.__file__).parents[3]

    why = await refusal(launcher, agent("", writable(package)))

    assert "which callgate uses" in why


READ = """
for path in {paths!r}:
    try:
        print(open(path).read(), end="")
    except OSError as error:
        print(type(error).__name__)
"""


async def test_a_link_that_a_run_plants_where_a_mount_belongs_is_not_followed(
    launcher: LocalLauncher, shared: Path, secret: Path
) -> None:
    make_folder(shared / "inner")
    plant = f"import os; os.rmdir('{shared}/inner'); os.symlink('{secret}', '{shared}/inner')"
    await run(launcher, agent(plant, writable(shared)))

    read = READ.format(paths=[f"{shared}/inner/key"])
    why = await refusal(launcher, agent(read, writable(shared), MountSpec(f"{shared}/inner")))

    assert f"{shared}/inner" in why


async def test_a_link_is_not_followed_in_the_middle_of_a_path_either(
    launcher: LocalLauncher, shared: Path, secret: Path
) -> None:
    make_folder(shared / "a")
    make_folder(secret / "inner")
    plant = f"import os; os.rmdir('{shared}/a'); os.symlink('{secret}', '{shared}/a')"
    await run(launcher, agent(plant, writable(shared)))

    why = await refusal(launcher, agent("", writable(shared), MountSpec(f"{shared}/a/inner")))

    assert f"{shared}/a" in why


async def test_a_link_that_one_agent_plants_is_not_followed_for_another(
    launcher: LocalLauncher, shared: Path, secret: Path
) -> None:
    make_folder(shared / "a")
    plant = f"import os; os.rmdir('{shared}/a'); os.symlink('{secret}', '{shared}/a')"
    await run(launcher, agent(plant, writable(shared)))

    why = await refusal(launcher, agent("", MountSpec(f"{shared}/a")))

    assert f"{shared}/a" in why


async def test_a_writable_mount_inside_of_another_does_not_lead_out(
    launcher: LocalLauncher, shared: Path, secret: Path
) -> None:
    make_folder(shared / "a")
    make_folder(shared / "a" / "b")
    open_up(secret)
    plant = f"import os; os.rmdir('{shared}/a/b'); os.symlink('{secret}', '{shared}/a/b')"
    await run(launcher, agent(plant, writable(shared)))
    write = f"open('{shared}/a/b/new', 'w').close()"
    mounts = (writable(shared), MountSpec(f"{shared}/a"), writable(shared / "a" / "b"))

    await refusal(launcher, agent(write, *mounts))

    assert sorted(names(secret)) == ["key"]


async def test_a_link_of_the_hosts_own_is_followed(
    launcher: LocalLauncher, tmp_path: Path, shared: Path
) -> None:
    put(shared / "file", "text\n")
    link = tmp_path / "link"
    link.symlink_to("shared")

    said = await run(launcher, agent(READ.format(paths=[f"{link}/file"]), MountSpec(str(link))))

    assert said.out == "text\n"


async def test_mounts_inside_of_mounts_keep_their_own_rights(
    launcher: LocalLauncher, shared: Path
) -> None:
    for path in (shared / "a", shared / "a" / "b"):
        make_folder(path)
    mounts = (writable(shared), MountSpec(f"{shared}/a"), writable(shared / "a" / "b"))
    code = f"""
for folder in ("", "/a", "/a/b"):
    try:
        open("{shared}" + folder + "/new", "w").close()
        print("written")
    except OSError as error:
        print(error.strerror)
"""
    said = await run(launcher, agent(code, *mounts))

    assert said.out.splitlines() == ["written", "Read-only file system", "written"]


async def test_a_read_only_mount_may_have_a_writable_one_inside(
    launcher: LocalLauncher, shared: Path
) -> None:
    make_folder(shared / "a")
    code = f"""
for folder in ("", "/a"):
    try:
        open("{shared}" + folder + "/new", "w").close()
        print("written")
    except OSError as error:
        print(error.strerror)
"""
    said = await run(launcher, agent(code, MountSpec(str(shared)), writable(shared / "a")))

    assert said.out.splitlines() == ["Read-only file system", "written"]


async def test_a_run_that_swaps_a_directory_for_a_link_all_the_time_never_leads_out(
    launcher: LocalLauncher, shared: Path, secret: Path
) -> None:
    """The one that races is alive while the others start: a pool, or a restart."""
    make_folder(shared / "inner")
    race = f"""
import os
os.chdir({str(shared)!r})
os.symlink({str(secret)!r}, "link")
print("racing", flush=True)
while True:
    try:
        os.rename("inner", "kept"); os.rename("link", "inner")
        os.rename("inner", "link"); os.rename("kept", "inner")
    except OSError:
        pass
"""
    racing = await launcher.launch(agent(race, writable(shared)), run_id=next_id())
    assert await read_line(racing.stdout) == "racing\n"
    read = READ.format(paths=[f"{shared}/inner/key"])
    tried = agent(read, writable(shared), MountSpec(f"{shared}/inner"))
    ends = set()
    try:
        for _ in range(STARTS):
            ends.add(await end_of(launcher, tried))
    finally:
        await racing.stop("stop_requested", 0)
        close(racing)

    assert [end for end in ends if "secret" in end] == []
    refusals = {end for end in ends if end.startswith("refused")}
    assert ends - refusals <= {"FileNotFoundError\n", "PermissionError\n"}


def python_of(folder: Path, home: Path, link: Path) -> Path:
    """Make a virtual environment by hand."""
    for path in (folder, folder / "bin"):
        make_folder(path)
    lowered(put(folder / "pyvenv.cfg", f"home = {home}\n"))
    (folder / "bin" / "python").symlink_to(link)
    return folder / "bin" / "python"


def installation(folder: Path) -> Path:
    """Make what looks like an interpreter with its prefix, and has a secret."""
    for path in (folder / "bin", folder / "lib", folder / "lib" / "python3.11"):
        path.mkdir()
    return put(folder / "bin" / "python3", "#!/bin/sh\ncat $(dirname $0)/../key\n")


def command(tried: LaunchSpec, *words: str | Path) -> LaunchSpec:
    return msgspec.structs.replace(tried, command=tuple(map(str, words)))


ATTACKS = {
    "the home of a virtual environment": """
open('{venv}/pyvenv.cfg', 'w').write('home = {key}/bin')
""",
    "a link in bin": """
os.remove('{venv}/bin/python')
os.symlink('{key}/bin/python3', '{venv}/bin/python')
""",
    "a #! line": """
os.remove('{venv}/bin/python')
open('{venv}/bin/python', 'w').write('#!{key}/bin/python3\\n')
os.chmod('{venv}/bin/python', 0o755)
""",
    "a directory for a link": """
os.rename('{venv}/bin', '{venv}/old')
os.symlink('{key}/bin', '{venv}/bin')
os.symlink('python3', '{venv}/python')
""",
    "all of it for a link": """
os.rename('{venv}', '{venv}.old')
os.symlink('{key}', '{venv}')
""",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_program_that_an_agent_rewrites_shows_nothing_of_the_host(
    launcher: LocalLauncher, shared: Path, secret: Path, attack: str
) -> None:
    installation(secret)
    python = python_of(shared / "venv", Path("/usr/bin"), Path("/usr/bin/python3"))
    code = "import os\n" + ATTACKS[attack].format(venv=shared / "venv", key=secret)
    first = command(agent("", writable(shared)), python, "-I", "-S", "-c", code)
    ran = await run(launcher, first)
    assert (ran.err, ran.stopped.exit_code) == ("", 0)

    read = f"import os; print(os.path.exists('{secret}'), os.listdir('{secret}'))"
    after = command(agent("", writable(shared)), python, "-I", "-S", "-c", read)
    end = await end_of(launcher, after)

    assert end.startswith("refused") or "key" not in end


async def test_what_the_policy_shows_may_be_reached_through_a_writable_mount(
    launcher: LocalLauncher, shared: Path, secret: Path
) -> None:
    interpreter = installation(secret)
    python = python_of(shared / "venv", interpreter.parent, interpreter)
    tried = command(agent("", writable(shared)), python)

    assert str(secret) in await refusal(launcher, tried)
    shown = agent("", writable(shared), MountSpec(str(secret)))

    assert (await run(launcher, command(shown, python))).stopped.exit_code is not None


async def test_an_agent_cannot_have_its_mount_taken_for_an_installation(
    launcher: LocalLauncher, tmp_path: Path, shared: Path
) -> None:
    """`lib/python3*` makes the parent of `bin` a prefix, which is shown whole."""
    top = tmp_path / "top"
    for path in (top, top / "bin", top / "lib"):
        make_folder(path)
    put(top / "bin" / "python3", "#!/bin/sh\nls $(dirname $0)/..\n")
    put(top / "key", "secret\n")
    plant = f"import os; os.mkdir('{top}/lib/python3.11')"
    mounts = (writable(top / "lib"), writable(shared))
    await run(launcher, agent(plant, *mounts))

    why = await refusal(launcher, command(agent("", *mounts), top / "bin" / "python3"))

    assert f"{top}/lib" in why


async def test_a_script_with_another_name_decides_nothing(
    launcher: LocalLauncher, tmp_path: Path, shared: Path, secret: Path
) -> None:
    interpreter = installation(secret)
    script = put(tmp_path / "tool", f"#!{interpreter}\n")
    (shared / "same").hardlink_to(script)
    lowered(script)

    why = await refusal(launcher, command(agent("", writable(shared)), script))

    assert "hard link" in why


async def test_a_program_that_one_agent_plants_on_the_path_is_not_run_for_another(
    root: Path, shared: Path
) -> None:
    put(shared / "tool", f"#!/bin/sh\ntouch {shared}/ran\n")
    environ = {"PATH": f"{shared}:/usr/bin:/bin"}
    async with LocalLauncher(root=root, environ=environ) as launcher:
        await run(launcher, agent("", writable(shared)))

        why = await refusal(launcher, command(spec(""), "tool"))

    assert "whole path" in why
    assert not has_run(shared)


CONNECT = """
import socket
for path in {paths!r}:
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path)
            print("connected")
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture
def served(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of the host's with a socket that somebody listens on."""
    monkeypatch.chdir(shared)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        server.listen()
        lowered(shared / "sock")
        yield shared


@pytest.mark.parametrize("level", ["strict", "standard", "network"])
@pytest.mark.parametrize("mode", ["ro", "rw"])
async def test_a_socket_below_a_mount_is_hidden(
    launcher: LocalLauncher, served: Path, level: Level, mode: str
) -> None:
    mounts = (MountSpec(str(served), read_only=mode == "ro"),)
    tried = spec(reach("sock", served), level=level, mounts=mounts)

    said = await run(launcher, tried)

    assert said.out == "PermissionError\n"


async def test_a_socket_is_reached_where_the_policy_says_so(
    launcher: LocalLauncher, served: Path
) -> None:
    mount = MountSpec(str(served), sockets=True)

    assert (await run(launcher, agent(reach("sock", served), mount))).out == "connected\n"


async def test_a_mount_inside_of_another_may_have_sockets_of_its_own(
    launcher: LocalLauncher, tmp_path: Path, served: Path
) -> None:
    put_socket(tmp_path / "s")
    lowered(tmp_path)
    mounts = (MountSpec(str(tmp_path)), MountSpec(str(served), sockets=True))
    hidden, shown = reach("s", tmp_path), reach("sock", served)

    said = await run(launcher, agent(hidden + shown, *mounts))

    assert said.out == "PermissionError\nconnected\n"


async def test_a_socket_that_has_another_name_is_hidden_under_both(
    launcher: LocalLauncher, served: Path
) -> None:
    (served / "other").hardlink_to(served / "sock")
    code = reach("sock", served) + reach("other", served)

    said = await run(launcher, agent(code, MountSpec(str(served))))

    assert said.out == "PermissionError\n" * 2


async def test_a_socket_that_a_link_leads_to_is_not_reached(
    launcher: LocalLauncher, served: Path
) -> None:
    inner = served / "inner"
    make_folder(inner)
    (inner / "link").symlink_to("../sock")

    alone = await run(launcher, agent(reach("link", inner), MountSpec(str(inner))))
    whole = await run(launcher, agent(reach("link", inner), MountSpec(str(served))))

    assert alone.out == "FileNotFoundError\n"
    assert whole.out == "PermissionError\n"


async def test_a_pipe_below_a_read_only_mount_reaches_nobody(
    launcher: LocalLauncher, shared: Path
) -> None:
    os.mkfifo(shared / "pipe")
    lowered(shared / "pipe")
    reader = os.open(shared / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    code = f"""
try:
    open("{shared}/pipe", "w").write("x")
except OSError as error:
    print(error.strerror)
"""
    said = await run(launcher, agent(code, MountSpec(str(shared))))
    heard = os.read(reader, 9)
    os.close(reader)

    assert said.out in ("Read-only file system\n", "Permission denied\n")
    assert heard == b""


async def test_a_mount_that_is_a_socket_itself_is_refused(
    launcher: LocalLauncher, served: Path
) -> None:
    why = await refusal(launcher, agent("", MountSpec(f"{served}/sock")))

    assert "sockets: true" in why


async def test_a_mount_that_is_too_large_to_search_is_refused(
    launcher: LocalLauncher, shared: Path
) -> None:
    make_deep(shared, special_files.MAX_DEPTH + 2)

    why = await refusal(launcher, agent("", MountSpec(str(shared))))
    named = agent("print('up')", MountSpec(str(shared), sockets=True))

    assert "sockets: true" in why
    assert (await run(launcher, named)).out == "up\n"


async def test_a_run_may_use_sockets_that_it_makes_itself(
    launcher: LocalLauncher, shared: Path
) -> None:
    code = f"""
import os, socket
os.chdir("{shared}")
with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as peer:
    server.bind("own"); server.listen(); peer.connect("own")
    print("connected")
os.remove("own")
"""
    said = await run(launcher, agent(code, writable(shared)))

    assert said.out == "connected\n"


async def test_where_nothing_can_be_hidden_a_socket_refuses_the_launch(
    root: Path, served: Path
) -> None:
    """As where AppArmor lets bwrap mount, and us not."""
    async with LocalLauncher(root=root) as launcher:
        launcher._tried |= {"groups", "sandbox"}
        cannot = Capability(False, "no user namespace, for this test")
        launcher._host = msgspec.structs.replace(this_host(), uid=1000, tmpfs=cannot)

        why = await refusal(launcher, agent("", MountSpec(str(served))))
        empty = await run(launcher, agent("print(1)", MountSpec(str(served), sockets=True)))

    assert "cannot be hidden" in why
    assert empty.out == "1\n"
