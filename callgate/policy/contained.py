"""The part of a policy file's schema that is about an agent's process, for a launcher. Pure.

See `schema` for what an entry of the table of keys is.
"""

from typing import Annotated

from pydantic import Field

from callgate.model import Level
from callgate.policy.fields import (
    BytesLimit,
    CgroupPath,
    CountLimit,
    CpuLimit,
    Duration,
    EnvNames,
    Key,
    Programs,
    Strict,
    Text,
    TimeLimit,
    ZeroBytesLimit,
)
from callgate.policy.units import Unit


class Env(Strict):
    """Which variables an agent's process gets."""

    pass_: Annotated[
        EnvNames, Field(alias="pass"), Key("Names that pass.", "launcher", grants=True)
    ] = Field([])
    secret: Annotated[
        EnvNames,
        Key(
            "Names that pass and whose values are masked in what the agent prints.",
            "launcher",
            grants=True,
        ),
    ] = Field([])


class Mount(Strict):
    """A directory that a contained process sees."""

    path: Annotated[Text, Key("Relative to the policy file.", "launcher")]
    read_only: Annotated[bool, Key("Whether writing to it is refused.", "launcher")] = False
    sockets: Annotated[
        bool, Key("Whether the sockets, FIFOs and devices below it can be used.", "launcher")
    ] = False


class Containment(Strict):
    """What an agent's process may use; enforced by a launcher."""

    level: Annotated[
        Level | None,
        Key(
            "How much of the host it sees.",
            "launcher",
            words=("strict", "standard", "network", "privileged"),
            unwritten="privileged",
        ),
    ] = None
    memory: Annotated[
        BytesLimit | None,
        Key("Resident memory.", "launcher", contained="512Mi", declared="256Mi"),
    ] = None
    cpu: Annotated[
        CpuLimit | None, Key("Share of processors.", "launcher", contained=1, declared="200m")
    ] = None
    pids: Annotated[CountLimit | None, Key("Processes and threads.", "launcher", contained=64)] = (
        None
    )
    disk: Annotated[
        BytesLimit | None,
        Key("Bytes in the workspace.", "launcher", contained="1Gi", declared="100Mi"),
    ] = None
    files: Annotated[CountLimit | None, Key("Files in the workspace.", "launcher")] = None
    connections: Annotated[
        CountLimit | None,
        Key("Network connections that are open at once.", "launcher", declared=50),
    ] = None
    open_files: Annotated[CountLimit | None, Key("Open files of a process.", "launcher")] = None
    cpu_time: Annotated[TimeLimit | None, Key("Processor time of a process.", "launcher")] = None
    wall_time: Annotated[TimeLimit | None, Key("Life of a run.", "launcher")] = None
    address_space: Annotated[BytesLimit | None, Key("Virtual memory of a process.", "launcher")] = (
        None
    )
    core_size: Annotated[
        ZeroBytesLimit | None,
        Key("Size of a core dump; 0 for none.", "launcher", member="core_bytes"),
    ] = None
    io_read: Annotated[
        BytesLimit | None,
        Key("Bytes read from each disk in a second.", "launcher", member="io_read_bytes_per_s"),
    ] = None
    io_write: Annotated[
        BytesLimit | None,
        Key("Bytes written to each disk in a second.", "launcher", member="io_write_bytes_per_s"),
    ] = None
    exec: Annotated[
        Programs | None,
        Key("Programs that it may execute beside its command; without it, all.", "launcher"),
    ] = None
    cgroup_parent: Annotated[
        CgroupPath | None,
        Key("The cgroup of this host in which runs get theirs.", "launcher"),
    ] = None
    mounts: Annotated[
        list[Mount],
        Unit("list", lambda mounts: str(len(mounts))),
        Key("Directories that it sees.", "launcher", grants=True),
    ] = Field([])
    allow_degraded: Annotated[
        bool | None,
        Key("Run even where the host cannot enforce all of it.", "launcher", words=(False, True)),
    ] = None
    monitor_interval: Annotated[Duration | None, Key("Time between two looks.", "launcher")] = None
    kill_grace: Annotated[
        Duration | None, Key("Time to end by itself before it is killed.", "launcher")
    ] = None
