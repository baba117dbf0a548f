"""AgentDecl: everything BenchFlow knows about one agent, as data."""

from collections.abc import Mapping
from typing import Annotated, Literal

from benchflow_contracts import AgentCapabilities, Role
from pydantic import BaseModel, ConfigDict, Field, model_validator

ASK_SWITCH = "BENCHFLOW_ASK"
"""The variable of a role's env that turns on `[ask] enable`."""


def wants_asks(role: Role) -> bool:
    """Whether the role's agent is to be made to ask its user."""
    return role.env.get(ASK_SWITCH) == "1"


AgentId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
Text = Annotated[str, Field(max_length=16384)]


class Section(BaseModel):
    """A frozen table. Unknown keys and wrong types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PackageSource(Section):
    """One pinned package of a registry: `name==version` for uvx, `name@version` for npx."""

    package: Text


class BinarySource(Section):
    """A program that is already there."""

    path: Text | None = None
    """A host directory shown to the sandbox; `None` when its image has the program."""


class BuiltinSource(Section):
    """A program that ships in a Python package and is copied into the sandbox."""

    package: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
    """The import name of the package, which must be installed on the host."""
    file: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]
    """A Python file or a directory, relative to the package."""
    target: Text
    """Its absolute path inside the sandbox."""


class Distribution(Section):
    """Where the agent comes from: exactly one of the four."""

    npx: PackageSource | None = None
    uvx: PackageSource | None = None
    binary: BinarySource | None = None
    builtin: BuiltinSource | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "Distribution":
        given = [self.npx, self.uvx, self.binary, self.builtin]
        if sum(source is not None for source in given) != 1:
            raise ValueError("give exactly one of npx, uvx, binary and builtin")
        return self


class RuntimeSection(Section):
    """The interpreters that the agent needs on the host, as `>=X.Y`."""

    python: Annotated[str, Field(pattern=r"^>=\d+(\.\d+)*$")] | None = None
    node: Annotated[str, Field(pattern=r"^>=\d+(\.\d+)*$")] | None = None


class LaunchSection(Section):
    """How the process is started. Values are templates, see `render`."""

    cmd: Text
    """A program name: looked up in the installed package, then on the sandbox's PATH."""
    args: tuple[Text, ...] = ()
    env: Mapping[str, Text] = {}
    files: Mapping[str, Text] = {}
    """Absolute path template to content template; written before the start."""
    start_timeout_sec: float = Field(default=60, gt=0, strict=False)
    """For each call before the first prompt."""


class ModelSection(Section):
    """How the agent reaches its model."""

    wire: Literal["anthropic", "openai-chat", "openai-responses", "gemini", "none"]
    config_option: str | None = None
    """The session option that `role.model` is set with, besides the templates."""
    effort_option: str | None = None
    """The session option that `role.reasoning_effort` is set with."""


class AuthSection(Section):
    """What to authenticate with after initialize."""

    method_id: str


class SessionSection(Section):
    """How a session is carried to a new process. Only what a probe has shown."""

    paths: tuple[Text, ...] = ()
    """Templates of the files that hold the sessions."""
    snapshot: Literal["none", "files", "same_path_files"] = "none"
    fork: Literal["none", "live", "live_after_load"] = "none"
    cwd_bound: bool = False
    """Whether a session loads only in the directory it was made in."""
    resume: Literal["load", "fork"] = "load"
    """How a new process goes on: with the same session, or with a fork that has its own id."""
    reapply: tuple[Literal["mode", "config"], ...] = ("mode", "config")
    """What must be set again after loading."""


class AskSection(Section):
    """How the agent puts questions to its user."""

    channel: Literal["elicitation", "permission", "vendor", "none"] = "none"
    """`permission`: it never asks a question, but can be made to ask before it acts."""
    mcp: bool = False
    """Whether every role gets the portable `ask_user` tool, see `ask_mcp`."""
    tool: Annotated[str, Field(pattern=r"^[a-z_]{0,32}ask_user[a-z_]{0,32}$")] = "ask_user"
    """The name of that tool, for an agent that hides every tool called `ask_user`."""
    enable: Mapping[str, str | bool] = {}
    """Session options without which it never asks. They change how the agent works, so
    they are set only for a role whose env has `ASK_SWITCH` as "1"."""
    args: tuple[Text, ...] = ()
    """Arguments that it needs besides, for such a role."""
    env: Mapping[str, Text] = {}
    """Variables that it needs besides, for such a role. An agent whose channel is
    `permission` is not put into its unattended mode then."""


class McpSection(Section):
    """The way an agent receives tool servers, so that their tools reach its model."""

    transport: Literal["acp", "env", "none"] = "none"
    """`acp`: in `session/new`. `env`: in a variable, as a JSON list; only servers on stdio."""
    variable: str = ""
    """For `env`, the name of that variable."""
    fields: Mapping[str, str | int | bool] = {}
    """For `env`, what the entry of each server has besides."""

    @model_validator(mode="after")
    def _variable_for_env(self) -> "McpSection":
        if (self.transport == "env") != bool(self.variable):
            raise ValueError("transport 'env' needs a variable, and no other transport takes one")
        return self


class SkillsSection(Section):
    """Where the agent looks for skills, relative to its home and to the workspace."""

    home: tuple[Text, ...] = ()
    workspace: tuple[Text, ...] = ()


class ModeSection(Section):
    """The session mode in which the agent acts without a gate on every call."""

    unattended: str


class TelemetrySection(Section):
    """What turns off the traffic that is not for the model."""

    env: Mapping[str, Text] = {}


class ClientSection(Section):
    """The client services that the agent is offered, all inside the sandbox."""

    fs: bool = False
    terminal: bool = False


class ProbeSection(Section):
    """What was really seen, with which version and when."""

    verified_version: str | None = None
    date: str | None = None
    results: Mapping[str, str] = {}


class Proof(Section):
    """What one command has shown."""

    version: Text
    """Of the agent."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    command: Text = "bench agent probe"


class Failure(Proof):
    """What one command has not shown."""

    reason: Text


ProvenFidelity = Literal["state", "live", "live-ask", "replay-ask", "replay"]
"""`state`: new processes go on from copied session files. `live`: copies of the process
go on at a turn boundary. `live-ask`: they do while it waits for an answer, each with an
answer of its own. `replay-ask`: the prompt that led to a question leads there again.
`replay`: from the recorded model calls the agent takes the same steps again."""


class AgentDecl(Section):
    """One agent.

    `id`, `name`, `version`, `description` and `distribution` are the fields of the
    ACP registry; the rest is what it takes to evaluate the agent.
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
    """Written by what ran the commands, such as `bench agent probe AGENT --write`."""
    unproven: Mapping[ProvenFidelity, Failure] = {}
    """Written likewise: what was tried and failed."""

    def asks(self, role: Role) -> bool:
        """Whether the agent itself puts questions to the user of this role."""
        switched_on = not self.ask.enable or wants_asks(role)
        return self.ask.channel in ("elicitation", "vendor") and switched_on

    def capabilities(self) -> AgentCapabilities:
        """Return what the declaration vouches for. A proof of another version is none."""
        return AgentCapabilities(
            protocol="acp",
            version=self.version,
            ask_user=self.ask.channel in ("elicitation", "vendor") or self.ask.mcp,
            session_snapshot=self.session.snapshot,
            proven={
                fidelity: f"{proof.version} {proof.date}"
                for fidelity, proof in self.proven.items()
                if proof.version == self.version
            },
        )
