"""The shape of a policy file and the table of its keys: one entry here is one key.

Pure. A field's name, type and `Key` are all that validation, resolution, compiled specs,
`explain`, the JSON schema and the reference page know of it; none of them has a list of its
own. A new limit is one entry here, and the code that reads its member of the compiled spec.

A key that is not set stays out of `model_fields_set`; that, not a default, is what precedence
goes by. Keys that only a launcher or a gate can enforce are checked here all the same and
shown as `absent` by `explain` until something enforces them.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator

from callgate.model import IgnoredCancel, Level
from callgate.policy.fields import (
    MAX_TOOLS,
    MAY_BE_EMPTY,
    AgentName,
    BandwidthLimit,
    BytesLimit,
    CallerName,
    Command,
    CountLimit,
    CpuLimit,
    Duration,
    DurationOrNone,
    DurationRange,
    EnvNames,
    Key,
    Mode,
    QueueLength,
    QuotaLimit,
    RateLimit,
    Restarts,
    Size,
    SizeOrNone,
    SplitRateLimit,
    State,
    Strict,
    Text,
    TimeLimit,
    Token,
    ToolName,
    Version,
    few_tools,
)
from callgate.policy.units import Unit

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


_RATE = Key(
    "Calls per period; those of all levels hold.",
    "router",
    guarded="60/minute",
    interactive={"limit": "600/minute", "on_limit": "wait"},
    joins="every",
    member="rates",
)
_TIMEOUT = Key("For calls that ask for none.", "router", guarded="15s", interactive="60s", after="")


class Limits(Strict):
    """Limits over all calls together; a caller, an agent and a tool may have them, too."""

    max_timeout: Annotated[
        TimeLimit | None,
        Key(
            "The most that a call may take or ask for; the lowest of all levels holds.",
            "router",
            guarded="60s",
            interactive="300s",
            joins="lowest",
        ),
    ] = None
    rate: Annotated[RateLimit | None, _RATE] = None
    concurrency: Annotated[
        CountLimit | None,
        Key(
            "Calls at once; those of all levels hold.",
            "router",
            guarded=3,
            interactive=16,
            joins="every",
            member="slots",
        ),
    ] = None
    max_input_bytes: Annotated[
        BytesLimit | None,
        Key("The most that arguments take; the lowest of all holds.", "router", joins="lowest"),
    ] = None
    max_output_bytes: Annotated[
        BytesLimit | None,
        Key("The most that a result takes; the lowest of all holds.", "router", joins="lowest"),
    ] = None
    mode: Annotated[Mode | None, Key("Of the limits written here.")] = None


class CallerPolicy(Limits):
    """Limits of one caller; a named caller takes nothing from `"*"`."""

    token: Annotated[
        Token | None, Key("`env:NAME` of the variable with the token.", "gate", joins="caller")
    ] = None
    quota: Annotated[
        QuotaLimit | None,
        Key(
            "Calls in each window of the wall clock; survives restarts.",
            "router",
            joins="caller",
            after="queue",
        ),
    ] = None


class ToolPolicy(Limits):
    """One tool, or all that a pattern matches: `deny`, `allow` or limits."""

    rate: Annotated[SplitRateLimit | None, _RATE] = None
    timeout: Annotated[TimeLimit | None, _TIMEOUT] = None
    deny: Annotated[
        bool | None, Key("Refuse the tool and do not offer it.", "router", joins="access", after="")
    ] = None
    isolate: Annotated[
        Literal["task"] | None,
        Key(
            "In process: answer at the deadline even if the tool ignores it.",
            "router",
            after="max_output_bytes",
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, data: Any) -> Any:
        return {"deny": data == "deny"} if data in ("deny", "allow") else data

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: "CoreSchema", handler: GetJsonSchemaHandler
    ) -> "JsonSchemaValue":
        schema = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [{"enum": ["deny", "allow"]}, schema]}


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
    memory: Annotated[BytesLimit | None, Key("Resident memory.", "launcher", contained="512Mi")] = (
        None
    )
    cpu: Annotated[CpuLimit | None, Key("Share of processors.", "launcher", contained=1)] = None
    pids: Annotated[CountLimit | None, Key("Processes and threads.", "launcher", contained=64)] = (
        None
    )
    disk: Annotated[
        BytesLimit | None, Key("Bytes in the workspace.", "launcher", contained="1Gi")
    ] = None
    files: Annotated[CountLimit | None, Key("Files in the workspace.", "launcher")] = None
    open_files: Annotated[CountLimit | None, Key("Open files of a process.", "launcher")] = None
    cpu_time: Annotated[TimeLimit | None, Key("Processor time of a process.", "launcher")] = None
    wall_time: Annotated[TimeLimit | None, Key("Life of a run.", "launcher")] = None
    address_space: Annotated[BytesLimit | None, Key("Virtual memory of a process.", "launcher")] = (
        None
    )
    core_size: Annotated[
        BytesLimit | None, Key("Size of a core dump.", "launcher", member="core_bytes")
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


class Restart(Strict):
    """What happens when an agent's process ends."""

    on: Annotated[
        Literal["failure", "always", "never"] | None, Key("When to restart.", "launcher")
    ] = None
    max: Annotated[Restarts | None, Key("How often, before it stays down.", "launcher")] = None
    backoff: Annotated[DurationRange | None, Key("The first and the longest wait.", "launcher")] = (
        None
    )


class Requests(Strict):
    """Requests other than tool calls."""

    timeout: Annotated[
        TimeLimit | None,
        Key("The most that one may take.", "gate", guarded="300s", member="requests_timeout_ns"),
    ] = None


class Defaults(Limits):
    """Keys that fill what an agent leaves out."""

    rate: Annotated[SplitRateLimit | None, _RATE] = None
    timeout: Annotated[TimeLimit | None, _TIMEOUT] = None
    queue: Annotated[
        QueueLength | None,
        Key(
            "Calls that may wait for a slot or a rate.",
            "router",
            guarded=0,
            interactive=64,
            after="concurrency",
        ),
    ] = None
    cancel_grace: Annotated[
        Duration | None,
        Key("How long a cancelled call may keep its slot.", "router", guarded="5s"),
    ] = None
    on_ignored_cancel: Annotated[
        IgnoredCancel | None,
        Key("What happens when that has passed.", "router", guarded="release", only="release"),
    ] = None
    protocol: Annotated[
        Literal["mcp", "runtime"] | None, Key("What the agent speaks.", "gate", guarded="mcp")
    ] = None
    max_frame_bytes: Annotated[
        BytesLimit | None,
        Key("The most that a message takes.", "gate", guarded="4MiB", interactive="16MiB"),
    ] = None
    bandwidth: Annotated[BandwidthLimit | None, Key("Messages are paced to this.", "gate")] = None
    handshake: Annotated[
        Duration | None, Key("Time to get ready.", "gate", guarded="10s", interactive="120s")
    ] = None
    denials: Annotated[
        Literal["result", "error"] | None,
        Key("How a refusal reaches an MCP client.", "gate", guarded="result"),
    ] = None
    tasks: Annotated[
        Literal["refuse", "pass"] | None,
        Key(
            "Task-augmented calls, whose work outlives the call.",
            "gate",
            guarded="refuse",
            words=("refuse", "pass"),
        ),
    ] = None
    launcher: Annotated[
        Text | None,
        Key(
            "Who starts the process and contains it: `local`, or the entry point of a plugin.",
            "launcher",
        ),
    ] = None
    requests: Annotated[Requests | None, Key("Requests other than tool calls.")] = None
    env: Annotated[Env | None, Key("Variables of the agent's process.")] = None
    containment: Annotated[Containment | None, Key("What the process may use.")] = None
    restart: Annotated[Restart | None, Key("What happens when it ends.")] = None


class AgentPolicy(Defaults):
    """One agent."""

    command: Annotated[
        Command | None, Key("How to start it; not needed under `run`.", "launcher", after="")
    ] = None
    manifest: Annotated[
        Text | None,
        Key(
            "An `opensentience.agent.json` or a Claude `settings.json`: replaces defaults, capped "
            "by what stands here."
        ),
    ] = None
    tools: Annotated[
        dict[ToolName, ToolPolicy],
        AfterValidator(few_tools),
        Field(json_schema_extra={"maxProperties": MAX_TOOLS}),
        Key(
            "Tools by name or pattern (`*`, `?`); the longest pattern wins. At most 4,096, 256 of "
            "them patterns."
        ),
    ] = Field({})


class Audit(Strict):
    """The audit log; without this key none is written."""

    path: Annotated[Text, Key("A directory, relative to the policy file.", "audit")]
    on_failure: Annotated[
        Literal["fail_closed", "drop"] | None,
        Key("Refuse calls, or go on, when the log cannot be written.", "audit"),
    ] = None
    rotate: Annotated[Size | None, Key("Size of one segment.", "audit")] = None
    keep: Annotated[DurationOrNone, Key("How long a segment is kept.", "audit")] = None
    max_bytes: Annotated[SizeOrNone, Key("The most that all segments take.", "audit")] = None
    stdout: Annotated[bool, Key("Also print each line.", "audit")] = False
    otel: Annotated[bool, Key("Also send each line as an OpenTelemetry log.", "audit")] = False


class PolicyFile(Strict):
    """A callgate policy."""

    model_config = ConfigDict(title="callgate policy")

    version: Annotated[Version, Key("Of this format.")] = 1
    profile: Annotated[
        Literal["guarded", "interactive"], Key("What holds where nothing is written.")
    ] = "guarded"
    defaults: Annotated[Defaults, Key("Fill the keys an agent leaves out.")] = (
        Defaults.model_construct()
    )
    global_: Annotated[Limits, Field(alias="global"), Key("Over all calls together.")] = (
        Limits.model_construct()
    )
    callers: Annotated[
        dict[CallerName, Annotated[CallerPolicy, MAY_BE_EMPTY]],
        Key('Callers by exact name; `"*"` is a template for each unnamed one.'),
    ] = Field({})
    agents: Annotated[
        dict[AgentName, Annotated[AgentPolicy, MAY_BE_EMPTY]], Key("Agents by name.")
    ] = Field({})
    audit: Annotated[Audit | None, Key("Without it no audit is written.")] = None
    state: Annotated[State, Key("Where counters live.")] = "local"
    mode: Annotated[Mode, Key("Of everything that does not say its own.")] = "enforce"
