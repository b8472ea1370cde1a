"""The shape of a policy file, as models: they validate it, and make its JSON schema and page.

Pure. A key that is not set stays out of `model_fields_set`; that, not a default, is what
precedence goes by. Keys that only a launcher or a gate can enforce are checked here all
the same and shown as `absent` by `explain` until something enforces them.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator

from callgate.model import IgnoredCancel
from callgate.policy.fields import (
    MAX_TOOLS,
    AgentName,
    BandwidthLimit,
    BytesLimit,
    CallerName,
    CountLimit,
    CpuLimit,
    Duration,
    DurationOrNone,
    DurationRange,
    EnvName,
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

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Ceilings(Strict):
    """Limits that apply beside an agent's own."""

    rate: RateLimit | None = Field(None, description="Calls per period.")
    concurrency: CountLimit | None = Field(None, description="Calls at once.")
    max_timeout: TimeLimit | None = Field(None, description="A ceiling on every call's time.")
    max_input_bytes: BytesLimit | None = Field(None, description="A ceiling on arguments.")
    max_output_bytes: BytesLimit | None = Field(None, description="A ceiling on results.")
    mode: Mode | None = Field(None, description="Of the limits written here.")


class Global(Ceilings):
    """Limits over all calls together."""


class Caller(Ceilings):
    """Limits of one caller; a named caller takes nothing from `"*"`."""

    token: Token | None = Field(None, description="`env:NAME` of the variable with the token.")
    quota: QuotaLimit | None = Field(
        None, description="Calls in each window of the wall clock; survives restarts."
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_written(cls, data: Any) -> Any:
        return {} if data is None else data


class Tool(Strict):
    """One tool, or all that a pattern matches: `deny`, `allow` or limits."""

    deny: bool | None = Field(None, description="Refuse the tool and do not offer it.")
    timeout: TimeLimit | None = Field(None, description="For calls that ask for none.")
    max_timeout: TimeLimit | None = Field(None, description="The most that a call may ask for.")
    concurrency: CountLimit | None = Field(
        None, description="Calls of this tool at once, beside the agent's own limit."
    )
    rate: SplitRateLimit | None = Field(
        None, description="Calls of this tool per period, beside the agent's own limit."
    )
    max_input_bytes: BytesLimit | None = Field(None, description="The most that arguments take.")
    max_output_bytes: BytesLimit | None = Field(None, description="The most that a result takes.")
    isolate: Literal["task"] | None = Field(
        None, description="In process: answer at the deadline even if the tool ignores it."
    )
    mode: Mode | None = Field(None, description="Of this tool's limits and of `deny`.")

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

    pass_: list[EnvName] = Field([], alias="pass", description="Names that pass.")
    secret: list[EnvName] = Field(
        [], description="Names that pass and whose values are masked in what the agent prints."
    )


class Mount(Strict):
    """A directory that a contained process sees."""

    path: Text = Field(description="Relative to the policy file.")
    read_only: bool = Field(False, description="Whether writing to it is refused.")


class Containment(Strict):
    """What an agent's process may use; enforced by a launcher."""

    level: Literal["strict", "standard", "network", "privileged"] | None = Field(
        None, description="How much of the host it sees."
    )
    memory: BytesLimit | None = Field(None, description="Resident memory.")
    cpu: CpuLimit | None = Field(None, description="Share of processors.")
    pids: CountLimit | None = Field(None, description="Processes and threads.")
    disk: BytesLimit | None = Field(None, description="Bytes in the workspace.")
    files: CountLimit | None = Field(None, description="Files in the workspace.")
    open_files: CountLimit | None = Field(None, description="Open files of a process.")
    cpu_time: TimeLimit | None = Field(None, description="Processor time of a process.")
    wall_time: TimeLimit | None = Field(None, description="Life of a run.")
    address_space: BytesLimit | None = Field(None, description="Virtual memory of a process.")
    core_size: BytesLimit | None = Field(None, description="Size of a core dump.")
    mounts: list[Mount] = Field([], description="Directories that it sees.")
    allow_degraded: bool | None = Field(
        None, description="Run even where the host cannot enforce all of it."
    )
    monitor_interval: Duration | None = Field(None, description="Time between two looks.")


class Restart(Strict):
    """What happens when an agent's process ends."""

    on: Literal["failure", "always", "never"] | None = Field(None, description="When to restart.")
    max: Restarts | None = Field(None, description="How often, before it stays down.")
    backoff: DurationRange | None = Field(None, description="The first and the longest wait.")


class Requests(Strict):
    """Requests other than tool calls."""

    timeout: TimeLimit | None = Field(None, description="The most that one may take.")


class Defaults(Strict):
    """Keys that fill what an agent leaves out."""

    timeout: TimeLimit | None = Field(None, description="For calls that ask for none.")
    max_timeout: TimeLimit | None = Field(None, description="The most that a call may ask for.")
    concurrency: CountLimit | None = Field(None, description="Calls of the agent at once.")
    queue: QueueLength | None = Field(None, description="Calls that may wait for a slot or a rate.")
    rate: SplitRateLimit | None = Field(None, description="Calls of the agent per period.")
    max_input_bytes: BytesLimit | None = Field(None, description="The most that arguments take.")
    max_output_bytes: BytesLimit | None = Field(None, description="The most that a result takes.")
    max_frame_bytes: BytesLimit | None = Field(None, description="The most that a message takes.")
    bandwidth: BandwidthLimit | None = Field(None, description="Messages are paced to this.")
    cancel_grace: Duration | None = Field(
        None, description="How long a cancelled call may keep its slot."
    )
    on_ignored_cancel: IgnoredCancel | None = Field(
        None, description="What happens when that has passed."
    )
    protocol: Literal["mcp", "runtime"] | None = Field(None, description="What the agent speaks.")
    handshake: Duration | None = Field(None, description="Time to get ready.")
    denials: Literal["result", "error"] | None = Field(
        None, description="How a refusal reaches an MCP client."
    )
    tasks: Literal["refuse", "pass"] | None = Field(
        None, description="Task-augmented calls, whose work outlives the call."
    )
    requests: Requests | None = Field(None, description="Requests other than tool calls.")
    env: Env | None = Field(None, description="Variables of the agent's process.")
    launcher: Text | None = Field(
        None,
        description="Who starts the process and contains it: `local`, or the entry point of a "
        "plugin.",
    )
    containment: Containment | None = Field(None, description="What the process may use.")
    restart: Restart | None = Field(None, description="What happens when it ends.")
    mode: Mode | None = Field(None, description="Of the agent's limits.")


class Agent(Defaults):
    """One agent."""

    command: list[Text] | None = Field(
        None, min_length=1, description="How to start it; not needed under `run`."
    )
    manifest: Text | None = Field(
        None,
        description="An `opensentience.agent.json` or a Claude `settings.json`: replaces "
        "defaults, capped by what stands here.",
    )
    tools: Annotated[dict[ToolName, Tool], AfterValidator(few_tools)] = Field(
        {},
        description="Tools by name or pattern (`*`, `?`); the longest pattern wins. At most 4,096, "
        "256 of them patterns.",
        json_schema_extra={"maxProperties": MAX_TOOLS},
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_written(cls, data: Any) -> Any:
        return {} if data is None else data


class Audit(Strict):
    """The audit log; without this key none is written."""

    path: Text = Field(description="A directory, relative to the policy file.")
    on_failure: Literal["fail_closed", "drop"] | None = Field(
        None, description="Refuse calls, or go on, when the log cannot be written."
    )
    rotate: Size | None = Field(None, description="Size of one segment.")
    keep: DurationOrNone = Field(None, description="How long a segment is kept.")
    max_bytes: SizeOrNone = Field(None, description="The most that all segments take.")
    stdout: bool = Field(False, description="Also print each line.")
    otel: bool = Field(False, description="Also send each line as an OpenTelemetry log.")


class PolicyFile(Strict):
    """A callgate policy."""

    model_config = ConfigDict(title="callgate policy")

    version: Version = Field(1, description="Of this format.")
    profile: Literal["guarded", "interactive"] = Field(
        "guarded", description="What holds where nothing is written."
    )
    defaults: Defaults = Field(
        Defaults.model_construct(), description="Fill the keys an agent leaves out."
    )
    global_: Global = Field(
        Global.model_construct(), alias="global", description="Over all calls together."
    )
    callers: dict[CallerName, Caller] = Field(
        {}, description='Callers by exact name; `"*"` is a template for each unnamed one.'
    )
    agents: dict[AgentName, Agent] = Field({}, description="Agents by name.")
    audit: Audit | None = Field(None, description="Without it no audit is written.")
    state: State = Field("local", description="Where counters live.")
    mode: Mode = Field("enforce", description="Of everything that does not say its own.")
