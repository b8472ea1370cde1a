from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

ROUNDS = 300
LARGE = """
import os, resource, sys
from callgate.gate.pipes import keep_blocks
from callgate.gate.pipes import LARGE_READ_BYTES, enlarge
if sys.argv[1] == "kept":
    keep_blocks()
reads, writes = os.pipe()
enlarge(writes)
frame = b"x" * 100_000
def pass_on():
    for _ in range(4):
        os.write(writes, frame)
    data = os.read(reads, LARGE_READ_BYTES)
    [b"".join((b"head", data[at : at + 100_000], b"tail")) for at in range(0, 400_000, 100_000)]
pass_on()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(int(sys.argv[2])):
    pass_on()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", LARGE, how, str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="only for glibc"
)
def test_the_memory_of_large_frames_is_used_again() -> None:
    assert faults("kept") < ROUNDS
