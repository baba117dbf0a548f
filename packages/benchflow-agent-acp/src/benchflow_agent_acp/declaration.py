"""AgentDecl: everything that BenchFlow knows about one agent, as data."""

from collections.abc import Mapping
from typing import Annotated, Literal

from benchflow_contracts import AgentCapabilities, Role, SnapshotError
from pydantic import BaseModel, ConfigDict, Field, model_validator

ASK_SWITCH = "BENCHFLOW_ASK"
"""The variable of a role's env that turns on `[ask] enable`, `args` and `env`."""


def wants_asks(role: Role) -> bool:
    """Return whether this role turns on the agent's questions."""
    return role.env.get(ASK_SWITCH) == "1"


AgentId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
Text = Annotated[str, Field(max_length=16384)]


class Section(BaseModel):
    """A frozen table. Unknown keys and wrong types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


VERSIONS = r"^>=\d+(\.\d+)*(,<\d+(\.\d+)*)?$"


class PackageSource(Section):
    """One pinned package of a registry: `name==version` for uvx, `name@version` for npx."""

    package: Text


class BinarySource(Section):
    """A program that is already on the host or in the image."""

    path: Text | None = None
    """A host directory to mount into the sandbox; `None` if the image has the program."""


class BuiltinSource(Section):
    """A program that ships in a Python package and is copied into the sandbox."""

    package: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
    """The import name of the package, which must be installed on the host."""
    file: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]
    """A Python file or a directory, relative to the package."""
    target: Text
    """Its absolute path inside the sandbox."""


class Distribution(Section):
    """Where the agent comes from: exactly one of the four sources."""

    npx: PackageSource | None = None
    uvx: PackageSource | None = None
    binary: BinarySource | None = None
    builtin: BuiltinSource | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "Distribution":
        sources = [self.npx, self.uvx, self.binary, self.builtin]
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give exactly one of npx, uvx, binary and builtin")
        return self


class RuntimeSection(Section):
    """The interpreters that the agent needs on the host, as `>=X.Y` or `>=X.Y,<X.Z`."""

    python: Annotated[str, Field(pattern=VERSIONS)] | None = None
    node: Annotated[str, Field(pattern=VERSIONS)] | None = None


class LaunchSection(Section):
    """How to start the process. The values are templates, see `render`."""

    cmd: Text
    """A program name, found in the installed package or else on the sandbox's PATH."""
    args: tuple[Text, ...] = ()
    env: Mapping[str, Text] = {}
    files: Mapping[str, Text] = {}
    """Absolute path template to content template; written before the start."""
    start_timeout_sec: float = Field(default=60, gt=0, strict=False)
    """The timeout of each call before the first prompt."""


class CommandSection(Section):
    """How a program without a protocol runs one prompt turn.

    The prompt is an argument of the launch (`{prompt}`), a file whose path is an argument
    (`{prompt_file}`), or the standard input.
    """

    stdin: bool = False
    """Whether the program reads its prompt from the standard input."""
    continue_args: tuple[Text, ...] = ()
    """More arguments for a later prompt of the same session. Without them, the agent takes one
    prompt only."""


class ModelSection(Section):
    """How the agent reaches its model."""

    wire: Literal["anthropic", "openai-chat", "openai-responses", "gemini", "none"]
    config_option: str | None = None
    """The session option that takes `role.model`, in addition to the templates."""
    effort_option: str | None = None
    """The session option that takes `role.reasoning_effort`."""
    acts_by: Literal["model", "script"] = "model"
    """`script`: no model decides what the agent does, and `wire` is `none`."""


class AuthSection(Section):
    """How to authenticate after `initialize`."""

    method_id: str


class SessionSection(Section):
    """How a new process resumes a session. State only what a probe has shown."""

    paths: tuple[Text, ...] = ()
    """Templates of the paths of the session files."""
    snapshot: Literal["none", "files", "same_path_files"] = "none"
    fork: Literal["none", "live", "live_after_load"] = "none"
    cwd_bound: bool = False
    """Whether a session loads only in the directory where it was created."""
    resume: Literal["load", "fork"] = "load"
    """Whether a new process loads the session, or a fork of the session with a new id."""
    reapply: tuple[Literal["mode", "config"], ...] = ("mode", "config")
    """The settings that must be set again after loading."""


class AskSection(Section):
    """How the agent asks its user."""

    channel: Literal["elicitation", "permission", "vendor", "none"] = "none"
    """`permission`: the agent asks no questions, but can ask for permission before it acts."""
    mcp: bool = False
    """Whether every role gets the portable `ask_user` tool (see `ask_mcp`)."""
    tool: Annotated[str, Field(pattern=r"^[a-z_]{0,32}ask_user[a-z_]{0,32}$")] = "ask_user"
    """The name of that tool. Some agents hide every tool with the name `ask_user`."""
    enable: Mapping[str, str | bool] = {}
    """Session options that make the agent ask. The options change how the agent works, so they
    are set only for a role whose env has `ASK_SWITCH` = "1"."""
    args: tuple[Text, ...] = ()
    """More arguments for such a role."""
    env: Mapping[str, Text] = {}
    """More variables for such a role. If the channel is `permission`, the unattended mode is
    not set for such a role."""


class McpSection(Section):
    """How the agent receives the role's tool servers."""

    transport: Literal["acp", "env", "none"] = "none"
    """`acp`: in `session/new`. `env`: in a variable, as a JSON list, for stdio servers only."""
    variable: str = ""
    """The name of the variable, for `env`."""
    fields: Mapping[str, str | int | bool] = {}
    """More fields of each server's entry, for `env`."""

    @model_validator(mode="after")
    def _variable_for_env(self) -> "McpSection":
        if (self.transport == "env") != bool(self.variable):
            raise ValueError(
                "transport 'env' needs a variable, and other transports must not have one"
            )
        return self


class SkillsSection(Section):
    """Where the agent looks for skills, relative to its home and to the workspace."""

    home: tuple[Text, ...] = ()
    workspace: tuple[Text, ...] = ()


class ModeSection(Section):
    """The session mode in which the agent acts without asking for permission."""

    unattended: str


class TelemetrySection(Section):
    """The variables that turn off traffic to hosts other than the model."""

    env: Mapping[str, Text] = {}


class ClientSection(Section):
    """The client services that BenchFlow offers to the agent, all inside the sandbox."""

    fs: bool = False
    terminal: bool = False


class ProbeSection(Section):
    """The results of a real run, with its version, date and command, or why there was none."""

    verified_version: str | None = None
    date: str | None = None
    command: Text | None = None
    """The command of the run, from a checkout of BenchFlow or from anywhere."""
    untested: Text | None = None
    """Why no real run has finished a task."""
    results: Mapping[str, str] = {}


class Proof(Section):
    """Evidence that the agent can do something: one command that showed it."""

    version: Text
    """The version of the agent."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    command: Text = "bench agent probe"


class Failure(Proof):
    """A command that failed to show a fidelity."""

    reason: Text


ProvenFidelity = Literal[
    "state", "live", "live-ask", "live-call", "replay-ask", "replay-call", "replay"
]
"""`state`: new processes resume from copied session files. `live`: copies of the process
continue at a turn boundary. `live-ask`: copies of the process continue while the agent waits for
an answer, and each copy gets its own answer. `live-call`: the same at a model call within a turn.
`replay-ask`: the prompt that led to a question leads to the question again. `replay-call`: the
recorded model calls lead to the same next request. `replay`: from the recorded model calls, the
agent takes the same steps."""


class AgentDecl(Section):
    """One agent.

    `id`, `name`, `version`, `description` and `distribution` are the fields of the
    ACP registry; the others say how to run the agent.
    """

    id: AgentId
    name: Text
    version: Text
    description: Text
    repository: Text | None = None
    license: Text | None = None
    distribution: Distribution
    runtime: RuntimeSection = RuntimeSection()
    launch: LaunchSection
    command: CommandSection | None = None
    """For a program that does not speak ACP."""
    model: ModelSection
    auth: AuthSection | None = None
    session: SessionSection = SessionSection()
    ask: AskSection = AskSection()
    mcp: McpSection = McpSection()
    skills: SkillsSection = SkillsSection()
    mode: ModeSection | None = None
    telemetry: TelemetrySection = TelemetrySection()
    client: ClientSection = ClientSection()
    probe: ProbeSection = ProbeSection()
    proven: Mapping[ProvenFidelity, Proof] = {}
    """Written by tools that run the commands, such as `bench agent probe AGENT --write`."""
    unproven: Mapping[ProvenFidelity, Failure] = {}
    """The attempts that failed, written by the same tools."""

    @model_validator(mode="after")
    def _prompt_has_one_place(self) -> "AgentDecl":
        places = sum(part in ("{prompt}", "{prompt_file}") for part in self.launch.args)
        expects_argument = self.command is not None and not self.command.stdin
        if places != expects_argument:
            raise ValueError(
                "launch.args of an agent with [command] have one of '{prompt}' and '{prompt_file}'"
                " unless `stdin` is set, and other agents have none"
            )
        return self

    def require_snapshot(self) -> None:
        """Raise unless a new process can resume a session.

        Raises:
            SnapshotError: It cannot.
        """
        if self.session.snapshot == "none":
            raise SnapshotError(f"agent {self.id!r} has no session files")

    def asks(self, role: Role) -> bool:
        """Return whether the agent itself asks questions in this role."""
        switched_on = not self.ask.enable or wants_asks(role)
        return self.ask.channel in ("elicitation", "vendor") and switched_on

    def capabilities(self) -> AgentCapabilities:
        """Return the capabilities that the declaration states; ignore proofs of other versions."""
        return AgentCapabilities(
            protocol="acp" if self.command is None else "command",
            spawns=self.command is None,
            nudges=self.command is None or bool(self.command.continue_args),
            version=self.version,
            ask_user=self.ask.channel in ("elicitation", "vendor") or self.ask.mcp,
            session_snapshot=self.session.snapshot,
            acts_by=self.model.acts_by,
            proven={
                fidelity: f"{proof.version} {proof.date}"
                for fidelity, proof in self.proven.items()
                if proof.version == self.version
            },
        )
