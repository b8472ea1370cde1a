from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.vm.kernels import Kernel, initramfs
from tests.vm.machines import Machine

if TYPE_CHECKING:
    from pathlib import Path

ANSWER_7 = "printf '%s 7\\n' \"$(grep -o 'callgate-vm-ended-[0-9a-f]*' \"$1\")\""
"""As a guest ends, with exit code 7."""


class Scripted(Machine):
    """Boots a shell script, which gets the path of what a guest would run."""

    def __init__(self, script: str, lacking: str = "") -> None:
        self.name = "scripted"
        self._script = script
        self._lacking = lacking

    def lacks(self) -> str:
        return self._lacking

    def command(self, init: Path, folder: Path) -> list[str]:
        return ["/bin/sh", "-c", self._script, "sh", str(init)]


def test_a_command_has_its_output_and_exit_code() -> None:
    machine = Scripted(f'grep -q "echo up" "$1" && echo up; {ANSWER_7}')

    ended = machine.run(["echo", "up"])

    assert (ended.output, ended.exit_code) == ("up\n", 7)


def test_a_machine_that_panics_is_told_apart_with_the_kernels_words() -> None:
    machine = Scripted("echo booting; echo 'Kernel panic - ptrace set fp regs'; echo bye; exit 1")

    assert machine.run(["true"]).exit_code is None
    assert machine.why_not().endswith("does not boot here: Kernel panic - ptrace set fp regs")


def test_what_is_not_installed_is_not_booted() -> None:
    assert Scripted("exit 1", "there is no scripted").why_not() == "there is no scripted"


def test_a_token_of_another_boot_proves_nothing() -> None:
    assert Scripted("echo callgate-vm-ended-0123456789abcdef 0").run(["true"]).exit_code is None


def test_a_machine_that_hangs_is_ended() -> None:
    assert Scripted("exec sleep 60").run(["true"], timeout_s=0.2).exit_code is None


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
def test_an_initramfs_has_every_file_whole(size: int, tmp_path: Path) -> None:
    busybox, module = tmp_path / "busybox", tmp_path / "virtio-pci.ko"
    busybox.write_bytes(b"b" * size)
    module.write_bytes(b"module")

    archive = initramfs(Kernel(tmp_path, (module,), busybox), tmp_path / "guest")

    found = dict(members(archive))
    assert found["bin/busybox"] == b"b" * size
    assert found["virtio_pci.ko"] == b"module"
    assert f"switch_root /new {tmp_path}/guest".encode() in found["init"]
    assert list(found)[-1] == "TRAILER!!!"


def members(archive: bytes) -> list[tuple[str, bytes]]:
    """What is in an archive, read as the kernel does."""
    found, place = [], 0
    while place < len(archive):
        fields = [int(archive[at : at + 8], 16) for at in range(place + 6, place + 110, 8)]
        assert archive[place : place + 6] == b"070701"
        data = (place + 110 + fields[11] + 3) & ~3
        name = archive[place + 110 : place + 109 + fields[11]].decode()
        found.append((name, archive[data : data + fields[6]]))
        place = (data + fields[6] + 3) & ~3
    return found
