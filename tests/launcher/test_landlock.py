"""What is asked of landlock, by the version that the kernel has."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest

from callgate.launcher.warden import landlock

if TYPE_CHECKING:
    from pathlib import Path

CREATE, ADD = 444, 445
SOCKETS = 1 << 16


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The rights of each call: what is handled, then what each rule allows."""
    calls: list[tuple[int, int]] = []

    def call(number: int, *words: bytes | int | None) -> int:
        text = next((word for word in words if isinstance(word, bytes)), b"")
        if number in (CREATE, ADD):
            calls.append((number, struct.unpack_from("=Q", text)[0]))
        return os.open("/dev/null", os.O_RDONLY) if number == CREATE else 0

    monkeypatch.setattr(landlock, "call", call)
    return calls


@pytest.mark.parametrize(("version", "handled"), [(8, 0), (9, SOCKETS)])
def test_sockets_with_a_path_are_refused_where_the_kernel_can(
    asked: list[tuple[int, int]], tmp_path: Path, version: int, handled: int
) -> None:
    landlock.restrict(version, [str(tmp_path)], "free", scoped=False)

    assert asked[0][1] & SOCKETS == handled
    assert [rights & SOCKETS for number, rights in asked if number == ADD] == [0, 0]


@pytest.mark.parametrize(("version", "allowed"), [(8, []), (9, [SOCKETS])])
def test_sockets_are_allowed_below_the_mounts_that_say_so(
    asked: list[tuple[int, int]], tmp_path: Path, version: int, allowed: list[int]
) -> None:
    landlock.restrict(version, [], "free", scoped=False, sockets=[str(tmp_path)])

    rules = [rights for number, rights in asked if number == ADD][1:]
    assert rules == allowed
