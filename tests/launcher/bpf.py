"""A kernel's view of a filter: run a classic BPF program over one system call."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

X86_64: Final = 0xC000_003E
AARCH64: Final = 0xC000_00B7
I386: Final = 0x4000_0003
ARM: Final = 0x4000_0028
X32_BIT: Final = 0x4000_0000

WORD: Final = 0xFFFF_FFFF

Instruction = tuple[int, int, int, int]


def parse(program: bytes) -> list[Instruction]:
    """Return the instructions: code, jump if true, jump if false, constant."""
    return list(struct.iter_unpack("=HBBI", program))


def verdict(code: list[Instruction], arch: int, number: int, args: Sequence[int] = ()) -> int:
    """Return what the filter answers; an IndexError where the kernel would refuse to load it."""
    full = [*(value & (WORD << 32 | WORD) for value in args), *[0] * (6 - len(args))]
    data = struct.pack("<IIQ6Q", number & WORD, arch, 0, *full)
    accumulator = at = 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        match operation:
            case 0x20:  # load a word
                (accumulator,) = struct.unpack_from("<I", data, constant)
            case 0x54:  # and
                accumulator &= constant
            case 0x05:  # jump
                at += constant
            case 0x15:
                at += if_true if accumulator == constant else if_false
            case 0x25:
                at += if_true if accumulator > constant else if_false
            case 0x35:
                at += if_true if accumulator >= constant else if_false
            case 0x45:
                at += if_true if accumulator & constant else if_false
            case 0x06:
                return constant
            case _:
                raise ValueError(f"operation {operation:#x} at {at - 1}")
