"""Get a Debian kernel that qemu can boot on this host's own files: unpacked, never installed.

The packages are downloaded with `apt-get download` into `.vm` and unpacked there. The initramfs
is made here: a static busybox, the modules that 9p needs, and a script that mounts this host's
root by 9p, with a tmpfs over it for whatever is written, and makes that the root.
"""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).parents[2] / ".vm"
PACKAGE = "linux-image-amd64"
"""The metapackage of Debian's usual kernel; the cloud kernel has no 9p."""
DOWNLOAD_S = 300.0
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")

START = """#!/bin/busybox sh
busybox() {{ /bin/busybox "$@"; }}
for module in {modules}; do busybox insmod /$module.ko; done
busybox ifconfig lo up
busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=524288 host /host
busybox mount -t tmpfs tmpfs /changes
busybox mkdir /changes/upper /changes/work
busybox mount -t overlay -o lowerdir=/host,upperdir=/changes/upper,workdir=/changes/work o /new
busybox mount -t devtmpfs devtmpfs /new/dev
busybox mkdir -p /new/dev/pts /new/dev/shm
busybox mount -t devpts devpts /new/dev/pts
busybox mount -t tmpfs tmpfs /new/dev/shm
busybox ln -s /proc/self/fd /new/dev/fd
exec /bin/busybox switch_root /new {init}
"""


class Kernel(NamedTuple):
    """What a machine boots."""

    image: Path
    modules: tuple[Path, ...]
    """In the order in which they must be loaded."""
    busybox: Path


class NoKernel(Exception):
    """Raised when a kernel cannot be had here, with the reason."""


def get(package: str = PACKAGE) -> Kernel:
    """Return the kernel of a Debian package or metapackage; download it the first time."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoKernel("no apt-get to download a kernel with")
    name = _real_name(package)
    tree = _unpacked(name)
    images = sorted(tree.glob("boot/vmlinuz-*"))
    if not images:
        raise NoKernel(f"{name} has no kernel image in it")
    busybox = _unpacked("busybox-static") / "bin" / "busybox"
    return Kernel(images[-1], tuple(_with_what_they_need(tree)), busybox)


def _real_name(package: str) -> str:
    """Return the package that a metapackage stands for."""
    said = _run(["apt-cache", "depends", "--important", package])
    found = re.search(r"Depends: (linux-image-\S+)", said)
    return package if found is None else found[1]


def _unpacked(package: str) -> Path:
    tree = HOME / package
    if tree.is_dir():
        return tree
    downloads = HOME / "download" / package
    downloads.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "-q", package], downloads)
    unpacking = HOME / f"{package}.new"
    shutil.rmtree(unpacking, ignore_errors=True)
    _run(["dpkg-deb", "-x", str(next(downloads.glob("*.deb"))), str(unpacking)])
    shutil.rmtree(downloads)
    unpacking.rename(tree)
    return tree


def _run(command: list[str], folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernel(f"{' '.join(command)}: {error}") from None
    if done.returncode != 0:
        raise NoKernel(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _with_what_they_need(tree: Path) -> list[Path]:
    files = {_key(file): file for file in tree.glob("lib/modules/*/kernel/**/*.ko*")}
    order: list[Path] = []

    def add(name: str) -> None:
        file = files.get(name)
        if file is None or file in order:  # built in, or loaded
            return
        needs = re.search(rb"\0depends=([^\0]*)\0", b"\0" + content(file))
        for each in (needs[1].decode() if needs else "").split(","):
            add(each.replace("-", "_"))
        order.append(file)

    for module in MODULES:
        add(module)
    return order


def _key(file: Path) -> str:
    return file.name.partition(".")[0].replace("-", "_")


def content(file: Path) -> bytes:
    """Return a module, uncompressed."""
    data = file.read_bytes()
    return lzma.decompress(data) if file.suffix == ".xz" else data


def initramfs(kernel: Kernel, init: Path) -> bytes:
    """Return an archive whose `init` mounts this host's root and starts `init` on it."""
    names = " ".join(_key(file) for file in kernel.modules)
    script = START.format(modules=names, init=init).encode()
    members = [
        *(_member(name, b"", 0o040755) for name in ("bin", "host", "changes", "new")),
        _member("bin/busybox", kernel.busybox.read_bytes(), 0o100755),
        _member("init", script, 0o100755),
        *(_member(f"{_key(file)}.ko", content(file), 0o100644) for file in kernel.modules),
        _member("TRAILER!!!", b"", 0),
    ]
    return b"".join(members)


def _member(name: str, data: bytes, mode: int) -> bytes:
    """Return one member in the kernel's format (Documentation/driver-api/early-userspace)."""
    encoded = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
