"""The Agent plane: who acts, and the live session."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from ._model import Model, RareModel
from .ask import Answer, Ask
from .bundle import Bundle
from .door import Door
from .gateway import ModelCall
from .sandbox import Sandbox
from .step import Step, StopReason, ToolStatus

AskUserHandler = Callable[[Ask], Awaitable[Answer]]
StepHandler = Callable[[Step], None]


@dataclass(frozen=True, slots=True)
class StepActivity:
    """The agent began a step."""


@dataclass(frozen=True, slots=True)
class ToolActivity:
    """A tool call began, or has its first result."""

    call: str
    """`ToolCall.id`."""
    title: str
    name: str | None
    kind: str
    status: ToolStatus
    """`completed` or `failed` at the result, else another one."""


Activity = StepActivity | ToolActivity
ActivityHandler = Callable[[Activity], None]


class McpServer(RareModel):
    """A tool server that the agent can use in its session."""

    name: str
    transport: Literal["stdio", "http", "sse"] = "stdio"
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    url: str | None = None
    headers: Mapping[str, str] = {}


class Role(Model):
    """How an agent takes part in a rollout."""

    name: str = "agent"
    agent: str = "scripted"
    """A registry name, or `module:attr` from the operator's own command line."""
    model: str | None = None
    reasoning_effort: str | None = None
    env: Mapping[str, str] = {}
    skills: tuple[str, ...] = ()
    """Names of the skills this role was given."""
    skills_dir: str | None = None
    """The directory of the skills inside the sandbox."""
    mcp_servers: tuple[McpServer, ...] = ()
    timeout_sec: float = Field(default=3600, gt=0)
    """For one prompt turn. If it is not set explicitly, the task's limit applies."""
    solution_command: str = ""
    """`[solution] command`, for agents that need the solution."""
    solution_may_fail: bool = False
    """`[solution] may_fail`, for agents that need the solution."""
    idle_timeout_sec: float = Field(default=600, gt=0)
    """The longest time without an update from the agent."""


class AgentCapabilities(RareModel):
    """What the agent can do, as a probe has shown it."""

    protocol: str
    version: str | None = None
    nudges: bool = True
    """Whether a session accepts a second prompt."""
    spawns: bool = False
    """Whether its sessions start processes by `Sandbox.spawn`."""
    spawning_solution: str | None = None
    """A file of the task's `solution/`. With this file, the sessions start processes by
    `Sandbox.spawn`, although `spawns` is False."""
    ask_user: bool = False
    session_snapshot: Literal["none", "files", "same_path_files"] = "none"
    acts_by: Literal["model", "script", "caller"] = "model"
    """What decides the actions. `script`: no model, so limits on model calls do not concern it.
    `caller`: the program that drives the session, which limits its own model calls."""
    proven: Mapping[str, str] = {}
    """What the probe saw forked, such as `live`, `live-ask` or `state`: version and date."""


class AgentNeeds(Model):
    """What the agent must find in the sandbox before it can start."""

    bundles: tuple[Bundle, ...] = ()
    doors: tuple[Door, ...] = ()
    env: Mapping[str, str] = {}
    solution: bool = False
    """Whether the task's `solution/` is uploaded to `/solution`. Only the oracle needs it."""


class SessionSnapshot(RareModel):
    """A session at a turn boundary: what a new process needs to resume it."""

    agent: str
    session_id: str
    cwd: str
    files: tuple[str, ...] = ()
    """Absolute paths of the session's files inside the sandbox."""
    config: Mapping[str, str | bool] = {}
    """Mode, model and options to apply again after loading."""
    steps: int = Field(default=0, ge=0)
    """The steps so far, so that a loaded session continues to count."""
    ask: Ask | None = None
    """The Ask of the kind `fork` that was open. A child answers it by `Session.answer`."""


class SessionState(RareModel):
    """The host's half of a session whose process is in a live image.

    It belongs to the instant of the freeze in which it was captured. Any number of children may
    resume from it. It can be written as JSON.
    """

    agent: str
    session_id: str
    process_id: str
    """The agent's process, for `Sandbox.attach`. Empty if no process of the agent runs there."""
    ask: Ask | None = None
    """The question that was open."""
    at_call: bool = False
    """Whether the agent was in a turn and waited for its model; see `SupportsCallForks`."""
    steps: tuple[Step, ...] = ()
    data: Mapping[str, Any] = {}
    """JSON values that only the agent's plane reads."""


class Session(Protocol):
    """A live agent session.

    Every call ends: with a result, or with an `AgentError` if the agent breaks its protocol, ends,
    or is silent for longer than the role allows.
    """

    @property
    def id(self) -> str:
        """The agent's own id of the session."""
        ...

    @property
    def steps(self) -> list[Step]:
        """The finished steps so far, in order."""
        ...

    async def prompt(self, text: str) -> StopReason:
        """Run one prompt turn: the instruction, or a nudge. All its steps are reported on return.

        Raises:
            AgentError: The agent failed.
            SandboxError: The host or the operator caused a failure, also in a call that the agent
                asked for. An agent that saw such a failure is not graded.
        """
        ...

    async def cancel(self) -> None:
        """End the running turn with stop reason `cancelled`. Do nothing when idle."""
        ...

    def on_ask_user(self, handler: AskUserHandler) -> None:
        """Let `handler` answer every Ask. The agent waits for the answer.

        The step that the Ask ends is reported (`on_step`) before the handler is called.
        """
        ...

    def on_step(self, handler: StepHandler) -> None:
        """Call `handler` with each step as the step ends. It must not block."""
        ...

    async def snapshot(self) -> SessionSnapshot:
        """Describe the session at a turn boundary, or at an open Ask of the kind `fork`.

        Raises:
            SnapshotError: A turn is running, or the agent cannot resume a session.
        """
        ...

    async def capture(self) -> SessionState:
        """Copy the host's half of the session, for children of a live snapshot.

        Call it inside `sandbox.freeze()`, at a turn boundary or while the handler of an Ask
        runs. The copy holds all output that the process wrote before the freeze. The session
        itself continues.

        Raises:
            SnapshotError: The agent cannot be captured, or not now; `retryable` if a later try may
                succeed, such as after a running tool call.
        """
        ...

    async def answer(self, answer: Answer) -> StopReason:
        """Answer the restored Ask, and run the rest of its prompt turn, as `prompt` does.

        Call it once, as the first call after `Agent.attach`.

        Raises:
            RuntimeError: No restored Ask is open.
        """
        ...

    async def aclose(self) -> None:
        """End the agent's process and all processes that it started. Idempotent."""
        ...


@runtime_checkable
class SupportsActivity(Protocol):
    """A `Session` that reports what its agent does before the step ends."""

    def on_activity(self, handler: ActivityHandler) -> None:
        """Call `handler` at the start of each step, and at the start and result of each tool call.

        The handler must not block. An activity may belong to a step that is never reported.
        """
        ...


@runtime_checkable
class NeedsModelCalls(Protocol):
    """A `Session` that makes its steps from the recorded model calls of its agent."""

    def read_calls_from(self, source: Callable[[], Sequence[ModelCall]]) -> None:
        """Use `source` in the next turn. It returns the calls since the start of that turn.

        The calls are complete, and sorted by their start.
        """
        ...


@runtime_checkable
class SupportsCallForks(Protocol):
    """A `Session` that can be forked while its agent waits for the model.

    The model's endpoint has just refused a call for a moment, so the agent is about to repeat it.
    """

    async def end_step(self, *, also_empty: bool) -> None:
        """End the open step of the running turn, and report the step.

        A step without an action of the agent is only ended with `also_empty`, because it may have
        model calls. Wait until the agent has reported the results of its tool calls.

        Raises:
            SnapshotError: No turn runs, the agent waits for an answer, or a tool call does not end
                within a few seconds; `retryable` if a later try may succeed.
        """
        ...

    async def capture_at_call(self) -> SessionState:
        """Return what `capture` does, within a turn. Call it inside `sandbox.freeze()`.

        Raises:
            SnapshotError: As `end_step`.
        """
        ...

    async def resume_turn(self) -> StopReason:
        """Run the rest of the restored turn, as `prompt` does.

        Call it once, as the first call after `Agent.attach` with a state `at_call`.

        Raises:
            RuntimeError: The state is not `at_call`.
        """
        ...


class Agent(Protocol):
    """An agent under test, or the policy under training.

    An entry point of the group `benchflow.agents` is a zero-argument callable that
    returns an Agent, or the Agent class itself.
    """

    @property
    def name(self) -> str:
        """The registry name."""
        ...

    def capabilities(self) -> AgentCapabilities:
        """Return what a probe has shown, from the agent's declaration."""
        ...

    async def needs(self, role: Role) -> AgentNeeds:
        """Return what the sandbox must have. May install the agent on the host first.

        Raises:
            AgentError: The agent cannot be made available on this machine.
        """
        ...

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> Session:
        """Start the agent inside `sandbox` and open (or load) a session.

        `log_dir` is a host directory for the wire log and the agent's stderr. The agent plane
        creates it.

        Raises:
            AgentError: The agent did not start, or refused the session. No process is left.
        """
        ...

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> Session:
        """Continue with the process that is in `sandbox` from a live image.

        Nothing is started and nothing is sent. `Session.steps` are the steps of `state`.

        Raises:
            AgentError: The state is not this agent's, or its process is not there.
        """
        ...
