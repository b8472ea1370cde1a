"""Boot another kernel on this host's own files and run one command in it.

Both kinds have one interface: `Uml` and `Qemu` each `run` a command as root or as uid 1000 and
return its output and exit code. The guest sees this host's files and changes none (under qemu
what it writes is kept in its memory), with `/run/scratch` as HOME and TMPDIR; the command is
alone in the group `/gate` of cgroup v2 with memory, cpu and pids, as under systemd with
`Delegate=yes`. The exit code stands behind a token that is new for each boot: without that line
nothing was proved.

Whether a kind works here is found out by booting it (`why_not`): User-mode Linux panics on some
hosts ("ptrace set fp regs"), and qemu may lack a package.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.vm import kernels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
BOOT_S: Final = 90.0
"""For a boot alone: User-mode Linux takes 1 s, qemu without KVM 9 s, on two idle processors."""
RUN_S: Final = 600.0
MEMORY_MIB: Final = 1024
USER: Final = 1000
LINE = 160

GUEST = """#!/bin/sh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run  # not /tmp: the checkout may be below it
mkdir /run/scratch
chmod 1777 /run/scratch
export HOME=/run/scratch TMPDIR=/run/scratch {environment}
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+memory +cpu +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/gate
cd /sys/fs/cgroup/gate
chown {user} . cgroup.procs cgroup.subtree_control
cd {folder}
mkfifo /run/output  # or the command would see a terminal
cat /run/output & printer=$!
sh -c 'echo $$ > /sys/fs/cgroup/gate/cgroup.procs; exec '{command} > /run/output 2>&1 < /dev/null
code=$?
echo 1 > /sys/fs/cgroup/gate/cgroup.kill  # whatever it left behind
wait $printer
echo {token} $code
stty -F /dev/console sane 2> /dev/null  # waits until that is printed: the kernel has words too
echo o > /proc/sysrq-trigger
sleep 60
"""


class Ended(NamedTuple):
    """What became of a command in a machine."""

    output: str
    exit_code: int | None
    """None: the machine ended, or its time was over, before the command."""


class Machine(ABC):
    """A kernel that runs one command and powers off."""

    name: str

    @abstractmethod
    def command(self, init: Path, folder: Path) -> list[str]:
        """Return the command that boots to the script `init`; `folder` is for its files."""

    @abstractmethod
    def lacks(self) -> str:
        """Return what is not installed, or nothing."""

    def run(
        self,
        command: Sequence[str],
        *,
        uid: int = 0,
        env: Mapping[str, str] | None = None,
        timeout_s: float = RUN_S,
    ) -> Ended:
        """Boot, run a command in the checkout, and power off."""
        token = f"callgate-vm-ended-{secrets.token_hex(8)}"
        words = list(command)
        if uid:
            words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *words]
        script = GUEST.format(
            environment=shlex.join(f"{name}={value}" for name, value in (env or {}).items()),
            user=uid,
            folder=shlex.quote(str(ROOT)),
            command=shlex.quote(shlex.join(words)),
            token=token,
        )
        with tempfile.TemporaryDirectory(prefix="callgate-vm-") as scratch:
            folder = Path(scratch)
            init = folder / "guest"
            init.write_text(script, encoding="utf-8")
            init.chmod(0o755)
            folder.chmod(0o755)
            output = _output(self.command(init, folder), folder, timeout_s)
        return _ended(output, token)

    def why_not(self) -> str:
        """Return why this machine does not work here, or nothing; it is booted to find out."""
        return _why_not(self)


class Uml(Machine):
    """User-mode Linux, Debian's `user-mode-linux`: fast, and without landlock."""

    name = "uml"

    def lacks(self) -> str:
        return "" if shutil.which("linux.uml") else "linux.uml is not installed"

    def command(self, init: Path, folder: Path) -> list[str]:
        return [
            *("linux.uml", "mem=512M", "rootfstype=hostfs", "rootflags=/", "ro"),
            *(f"init={init}", "con=null", "con0=fd:0,fd:1", "quiet"),
        ]


class Qemu(Machine):
    """A Debian kernel under qemu, emulated: no KVM, so it works inside a virtual machine too."""

    def __init__(self, package: str = kernels.PACKAGE, memory_mib: int = MEMORY_MIB) -> None:
        self.name = "qemu"
        self.package = package
        self.memory_mib = memory_mib

    def lacks(self) -> str:
        if shutil.which("qemu-system-x86_64") is None:
            return "qemu-system-x86_64 is not installed"
        try:
            kernels.get(self.package)
        except kernels.NoKernel as error:
            return f"no kernel: {error}"
        return ""

    def command(self, init: Path, folder: Path) -> list[str]:
        kernel = kernels.get(self.package)
        archive = folder / "initramfs"
        archive.write_bytes(kernels.initramfs(kernel, init))
        share = "local,id=host,path=/,security_model=passthrough,readonly=on,multidevs=remap"
        return [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"),
            *("-m", str(self.memory_mib), "-smp", "2", "-nodefaults", "-no-user-config"),
            *("-no-reboot", "-display", "none", "-serial", "stdio"),
            *("-fsdev", share, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
            *("-kernel", str(kernel.image), "-initrd", str(archive)),
            *("-append", "console=ttyS0 quiet loglevel=0 panic=-1 random.trust_cpu=on"),
        ]


@cache
def _why_not(machine: Machine) -> str:
    lacking = machine.lacks()
    if lacking:
        return lacking
    ended = machine.run(["/bin/echo", "up"], timeout_s=BOOT_S)
    if ended.exit_code == 0:
        return ""
    lines = [line for line in ended.output.splitlines() if line.strip()]
    told = [line for line in lines if re.search("panic|ptrace|error|failed", line, re.IGNORECASE)]
    last = (told or lines or ["it printed nothing"])[-1]
    return f"{machine.name} does not boot here: {last.strip()[:LINE]}"


def _output(command: list[str], folder: Path, timeout_s: float) -> str:
    """Return everything that was printed until the power went off, or its time was over."""
    printed = folder / "printed"
    with printed.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            process.wait()
    return printed.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")


def _ended(output: str, token: str) -> Ended:
    found = re.search(rf"^{token} (\d+)$", output, re.MULTILINE)
    if found is None:
        return Ended(output, None)
    return Ended(output[: found.start()], int(found[1]))


UML: Final = Uml()
QEMU: Final = Qemu()
