"""Between fork and exec: what the agent's process does to itself before it is the agent.

Every step fails closed and is read back where the kernel lets us: a step that raises is
reported as (stage, error) and the process exits with 125, never having become the agent.
The report's pipe is close-on-exec, so its end without a report means that exec was reached.

It runs in a fork of the warden, a process with one thread and nothing else in it, which is
why plain Python may run here. Stdlib only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums
import os
import resource

from callgate.launcher.warden import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

REFUSED = 125
"""Exit code of a process that could not be contained as asked."""
MAX_ERROR_BYTES = 2000
EXECUTING = b"\0executing\n"
"""Goes with a pipe that exec closes: bwrap keeps the report open, so its end tells nothing."""


class Failed(Exception):  # a state of the launch
    """A step that could not be done."""

    def __init__(self, stage: str, error: str) -> None:
        super().__init__(stage, error)
        self.stage = stage
        self.error = error


def exec_agent(job: Mapping[str, Any], fds: dict[str, int], warden: int) -> NoReturn:
    """Be the agent, or report why not and exit."""
    stage = "session"
    try:
        _die_with(warden)
        os.setsid()
        stage = "cgroup"
        _join(job, fds)
        stage = "rlimit"
        limit(job["rlimits"])
        if job["nice"]:
            os.nice(job["nice"])
        stage = "uid"
        drop(job["drop"])
        stage = "no_new_privs"
        _no_new_privs(wanted=job["no_new_privs"])
        stage = "parent"
        _die_with(warden)  # again: a change of uid has cleared it
        stage = "cwd"
        os.chdir(job["cwd"])
        stage = "stdio"
        _stdio(job, fds)
        stage = "exec"
        numbers = {name: str(fd) for name, fd in (fds | _files(job["data"])).items()}
        args = "".join(f"{_filled(word, numbers)}\0" for word in job["args"])
        numbers |= {name: str(fd) for name, fd in _files({"args": os.fsencode(args)}).items()}
        argv = [_filled(word, numbers) for word in job["argv"]]
        env = dict(job["env"])
        for variable, name in job["env_fds"].items():
            env[variable] = numbers[name]
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)  # Python ignores them, and exec keeps that
        # bwrap is executed by the descriptor that was checked, whatever its name leads to now.
        os.execve(fds.get("program", argv[0]), argv, env)  # noqa: S606  # no shell
    except BaseException as error:  # noqa: BLE001  # whatever it is, it must not run on
        failed = error if isinstance(error, Failed) else Failed(stage, describe(error))
        tell(fds["report"], failed.stage, failed.error)
    finally:
        os._exit(REFUSED)


def tell(report: int, stage: str, error: str) -> None:
    """Report a failure; the zero byte tells it from what bwrap may print there."""
    text = f"\0{stage}\0{error}\n".encode("utf-8", "replace")
    os.write(report, text[:MAX_ERROR_BYTES])


def describe(error: BaseException) -> str:
    """Return the system's words, and the path, if the error is about one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _die_with(warden: int) -> None:
    if libc.available:
        libc.prctl(libc.PR_SET_PDEATHSIG, _signal.SIGKILL)
    if os.getppid() != warden:
        raise Failed("parent", "the warden is gone")


def _join(job: Mapping[str, Any], fds: Mapping[str, int]) -> None:
    """Enter each cgroup, then find it in what the kernel says of us."""
    wanted = job["cgroups"]
    if not wanted:
        return
    for name in wanted:
        # One write(2) on a raw descriptor: a file object would report the error at close.
        os.write(fds[name], b"0")
    with open("/proc/self/cgroup", encoding="utf-8") as file:  # noqa: PTH123  # no pathlib here
        now = [line.rstrip("\n").rpartition("/")[2] for line in file]
    if sum(name in wanted.values() for name in now) != len(wanted):
        raise Failed("cgroup", "joined, but the kernel does not show it")


def limit(rlimits: list[tuple[str, int]]) -> None:
    """Set each for good, soft and hard alike, and read it back."""
    for name, value in rlimits:
        number = getattr(resource, name)
        try:
            resource.setrlimit(number, (value, value))
        except (OSError, ValueError, OverflowError) as error:
            raise Failed("rlimit", f"{name} {value}: {describe(error)}") from None
        if resource.getrlimit(number) != (value, value):
            raise Failed("rlimit", f"{name} is not {value} after it was set")


def drop(ids: tuple[int, int] | None) -> None:
    """Become another user for good, and read that back."""
    if ids is None:
        return
    uid, gid = ids
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3 or os.getgroups():
        raise Failed("uid", f"still not {uid}:{gid}")


def _no_new_privs(*, wanted: bool) -> None:
    if not wanted:
        return
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    if libc.prctl(libc.PR_GET_NO_NEW_PRIVS) != 1:
        raise Failed("no_new_privs", "not set after it was set")


def _files(data: Mapping[str, bytes]) -> dict[str, int]:
    """Put each text in a file of memory that the next program reads by its descriptor."""
    fds: dict[str, int] = {}
    for name, text in data.items():
        if text:
            fds[name] = os.memfd_create(name, 0)
            os.write(fds[name], text)
            os.lseek(fds[name], 0, os.SEEK_SET)
    return fds


def _filled(word: str, numbers: Mapping[str, str]) -> str:
    """`{name}` becomes the descriptor of that name, wherever a word is nothing else."""
    return numbers.get(word[1:-1], word) if word[:1] == "{" else word


def _stdio(job: Mapping[str, Any], fds: Mapping[str, int]) -> None:
    for name, number in job["stdio"].items():
        os.dup2(fds[name], number)
    for name in job["inherit"]:
        os.set_inheritable(fds[name], True)
    if job["terminal"]:
        take_terminal()


def take_terminal() -> None:
    """Make standard input the session's terminal, so that Ctrl-C and a resize arrive."""
    import fcntl  # noqa: PLC0415  # few agents have a terminal
    import termios  # noqa: PLC0415

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
