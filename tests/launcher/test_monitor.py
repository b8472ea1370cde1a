from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from callgate.errors import LimitInfo
from callgate.launcher.local.limit_check import Bounds, Sample
from callgate.launcher.local.monitor import Sampler
from callgate.model import ResourceLimits, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE = ResourceLimits()
MEMORY = Bounds("agent:web", ResourceLimits(memory_bytes=100), NONE)
DISK = Bounds("agent:web", ResourceLimits(disk_bytes=100), NONE)
MS = 1_000_000


def used(*memory: int) -> Iterator[Sample]:
    return iter([Sample(Usage(memory_bytes=one)) for one in memory])


async def test_a_run_is_warned_once_and_must_end_above_its_limit() -> None:
    looks = used(10, 95, 96, 101)
    warnings: list[LimitInfo] = []
    sampler = Sampler(lambda: next(looks), MEMORY, on_warning=warnings.append)

    ends = [await sampler.sample_once() for _ in range(4)]

    end = LimitInfo("memory", "agent:web", 100, 101)
    assert ends == [None, None, None, end]
    assert warnings == [LimitInfo("memory", "agent:web", 100, 95)]


async def test_the_peak_is_the_highest_of_all_looks() -> None:
    looks = used(30, 80, 20)
    sampler = Sampler(lambda: next(looks), MEMORY)
    for _ in range(3):
        await sampler.sample_once()

    assert sampler.usage == Usage(memory_bytes=20, memory_peak_bytes=80)


async def test_a_peak_that_the_kernel_knows_counts_too() -> None:
    sampler = Sampler(lambda: Sample(Usage(memory_bytes=1, memory_peak_bytes=9)), MEMORY)
    await sampler.sample_once()

    assert sampler.usage.memory_peak_bytes == 9


async def test_processor_time_of_processes_that_have_ended_is_not_forgotten() -> None:
    looks = iter([Sample(Usage(cpu_ns=cpu_ns)) for cpu_ns in (5, 9, 2, None)])
    sampler = Sampler(lambda: next(looks), MEMORY)
    seen = []
    for _ in range(4):
        await sampler.sample_once()
        seen.append(sampler.usage.cpu_ns)

    assert seen == [5, 9, 9, 9]


async def test_a_workspace_that_hangs_counts_as_exceeded() -> None:
    hang = threading.Event()

    def look() -> Sample:
        hang.wait(60)
        return Sample(Usage())

    sampler = Sampler(look, DISK, hang_ns=10 * MS)
    async with asyncio.timeout(10):
        end = await sampler.sample_once()
    hang.set()

    assert end == LimitInfo("disk", "agent:web", 100, None)


async def test_without_a_limit_on_the_workspace_a_slow_look_is_awaited_and_not_repeated() -> None:
    hang = threading.Event()
    looks = 0

    def look() -> Sample:
        nonlocal looks
        looks += 1
        hang.wait(60)
        return Sample(Usage(memory_bytes=7))

    sampler = Sampler(look, MEMORY, hang_ns=MS)
    looking = asyncio.create_task(sampler.sample_once())
    await asyncio.wait([looking], timeout=0.1)
    assert (looking.done(), looks) == (False, 1)
    hang.set()

    async with asyncio.timeout(10):
        assert await looking is None
    assert sampler.usage.memory_bytes == 7


async def test_the_loop_goes_on_while_a_look_takes_its_time() -> None:
    hang = threading.Event()

    def look() -> Sample:
        hang.wait(60)
        return Sample(Usage())

    looking = asyncio.create_task(Sampler(look, MEMORY).sample_once())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not looking.done()
    hang.set()

    async with asyncio.timeout(10):
        assert await looking is None


async def test_a_fault_of_a_look_is_raised() -> None:
    def look() -> Sample:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Sampler(look, MEMORY).sample_once()


async def test_a_cancelled_watch_leaves_a_late_look_without_a_trace() -> None:
    hang = threading.Event()
    finished = threading.Event()

    def look() -> Sample:
        hang.wait(60)
        finished.set()
        return Sample(Usage())

    looking = asyncio.create_task(Sampler(look, MEMORY).sample_once())
    await asyncio.sleep(0)
    looking.cancel()
    await asyncio.wait([looking])
    hang.set()

    assert await asyncio.to_thread(finished.wait, 10)
    assert looking.cancelled()
