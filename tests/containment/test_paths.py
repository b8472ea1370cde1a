"""What an agent leaves in a mount decides nothing about the launches that follow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from callgate.launcher import LaunchRefused, LocalLauncher
from callgate.launcher.host import helper_program
from callgate.model import MountSpec
from tests.containment.agents import close, next_id, read_line, run, spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from callgate.model import LaunchSpec

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


def names(path: Path) -> list[str]:
    return [each.name for each in path.iterdir()]


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
    """The directory is ours alone: nothing is wrong with it but that the agent would write there."""
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

    assert "which callgate runs" in why


READ = "import sys\nfor path in {paths!r}:\n    try: print(open(path).read(), end='')\n    except OSError as error: print(type(error).__name__)"


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
            try:
                ends.add((await run(launcher, tried)).out)
            except LaunchRefused:
                ends.add("refused")
    finally:
        await racing.stop("stop_requested", 0)
        close(racing)

    assert "secret\n" not in ends
    assert ends <= {"refused", "FileNotFoundError\n", "PermissionError\n"}


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
    "the home of a virtual environment": "open('{venv}/pyvenv.cfg', 'w').write('home = {key}/bin')",
    "a link in bin": "os.remove('{venv}/bin/python'); os.symlink('{key}/bin/python3', '{venv}/bin/python')",
    "a #! line": "os.remove('{venv}/bin/python'); f = open('{venv}/bin/python', 'w'); "
    "f.write('#!{key}/bin/python3\\n'); f.close(); os.chmod('{venv}/bin/python', 0o755)",
    "a directory for a link": "os.rename('{venv}/bin', '{venv}/old'); "
    "os.symlink('{key}/bin', '{venv}/bin'); os.symlink('python3', '{venv}/python')",
    "all of it for a link": "os.rename('{venv}', '{venv}.old'); os.symlink('{key}', '{venv}')",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_program_that_an_agent_rewrites_shows_nothing_of_the_host(
    launcher: LocalLauncher, shared: Path, secret: Path, attack: str
) -> None:
    installation(secret)
    python = python_of(shared / "venv", Path("/usr/bin"), Path("/usr/bin/python3"))
    code = "import os; " + ATTACKS[attack].format(venv=shared / "venv", key=secret)
    first = command(agent("", writable(shared)), python, "-I", "-S", "-c", code)
    ran = await run(launcher, first)
    assert (ran.err, ran.stopped.exit_code) == ("", 0)

    read = "import os; print(os.path.exists('{0}'), os.listdir('{0}'))".format(secret)
    after = command(agent("", writable(shared)), python, "-I", "-S", "-c", read)
    try:
        said = await run(launcher, after)
    except LaunchRefused as refused:
        assert str(secret) in " ".join(refused.gaps.values()) or str(shared) in str(refused.gaps)
    else:
        assert "key" not in said.out
        assert "secret" not in said.out


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
