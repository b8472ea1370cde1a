"""Steps before exec that only seem to work must not pass."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys

import pytest

from callgate.launcher.warden import shim, warden

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/cgroup")


def test_a_group_that_was_joined_only_seemingly_is_a_failure() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with pytest.raises(shim.Failed) as failed:
            shim._join({"cgroups": {"join0": "callgate-no-such-group"}}, {"join0": nowhere})
    finally:
        os.close(nowhere)

    assert failed.value.stage == "cgroup"


def test_a_limit_that_the_system_refuses_is_a_failure_that_names_it() -> None:
    with pytest.raises(shim.Failed) as failed:
        shim.limit([("RLIMIT_NOFILE", 2**31)])

    assert failed.value.stage == "rlimit"
    assert "RLIMIT_NOFILE" in failed.value.error


def test_an_agent_whose_warden_is_gone_does_not_begin() -> None:
    with pytest.raises(shim.Failed) as failed:
        shim._die_with(os.getpid())  # our parent is somebody else

    assert failed.value.stage == "parent"


def test_a_report_is_bounded_and_told_from_other_peoples_words() -> None:
    read_end, write_end = os.pipe()
    shim.tell(write_end, "exec", "x" * 10_000)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        said = file.read()

    assert said.startswith(b"\0exec\0xxx")
    assert len(said) == shim.MAX_ERROR_BYTES


def test_an_agent_that_ended_before_it_was_found_is_not_mistaken_for_its_sandbox() -> None:
    agents_warden = warden.Warden.__new__(warden.Warden)
    agents_warden._poll = select.poll()
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with ours, theirs, subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as alone:
        job = warden.RunningAgent(alone.pid, theirs, is_sandboxed=True)

        agents_warden._executing(job, reading)

        assert alone.stdin is not None
        alone.stdin.close()
    os.close(reading)
    os.close(writing)
    assert (job.target, job.inner) == (alone.pid, None)
