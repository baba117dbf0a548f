"""Base classes for agents that do not speak ACP."""

from abc import ABC, abstractmethod
from pathlib import Path
from uuid import uuid4

from .agent import (
    AgentCapabilities,
    AgentNeeds,
    AskUserHandler,
    Role,
    Session,
    SessionSnapshot,
    SessionState,
    StepHandler,
)
from .ask import Answer
from .errors import AgentError, SnapshotError
from .sandbox import Sandbox
from .step import Step, StopReason


class BaseAgent(ABC):
    """An `Agent` that needs a `name` and `connect`. It asks nothing and cannot be forked live."""

    name: str
    """The registry name."""
    static_capabilities: AgentCapabilities = AgentCapabilities(protocol="python")

    def capabilities(self) -> AgentCapabilities:
        """Return `static_capabilities`."""
        return self.static_capabilities

    async def needs(self, role: Role) -> AgentNeeds:
        """Need nothing in the sandbox."""
        del role
        return AgentNeeds()

    @abstractmethod
    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> Session:
        """Open a session; see `Agent.connect`."""

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> Session:
        """Refuse: a live snapshot cannot contain the agent's session."""
        del sandbox, role, log_dir
        raise AgentError(f"agent {self.name!r} cannot be attached to session {state.session_id!r}")


class BaseSession(ABC):
    """A `Session` that needs `run_turn`, which calls `add_step`. It cannot be saved."""

    def __init__(self, sandbox: Sandbox, role: Role) -> None:
        self.sandbox = sandbox
        self.role = role
        self._id = uuid4().hex
        self._steps: list[Step] = []
        self._is_closed = False
        self._on_step: StepHandler | None = None
        self.ask_user: AskUserHandler | None = None
        """Answers an Ask. Set before the first prompt."""

    @property
    def id(self) -> str:
        """A new name for each session."""
        return self._id

    @property
    def steps(self) -> list[Step]:
        """The finished steps so far, in order."""
        return list(self._steps)

    async def prompt(self, text: str) -> StopReason:
        """Run one prompt turn by `run_turn`; see `Session.prompt`."""
        if self._is_closed:
            raise AgentError(f"session {self.id!r} is closed")
        return await self.run_turn(text)

    @abstractmethod
    async def run_turn(self, prompt: str) -> StopReason:
        """Act on `prompt`, call `add_step` for each step, and return why the turn ended.

        The first step has the prompt, and the last one the stop reason.
        """

    def add_step(self, step: Step) -> None:
        """Record a finished step and report it."""
        self._steps.append(step)
        if self._on_step is not None:
            self._on_step(step)

    def on_step(self, handler: StepHandler) -> None:
        """Call `handler` with each step as it finishes."""
        self._on_step = handler

    def on_ask_user(self, handler: AskUserHandler) -> None:
        """Set `ask_user`."""
        self.ask_user = handler

    async def cancel(self) -> None:  # noqa: B027 - a default, not a hole
        """Do nothing: a turn ends by itself."""

    async def snapshot(self) -> SessionSnapshot:
        """Refuse: the session cannot be saved."""
        raise SnapshotError(f"session {self.id!r} cannot be saved")

    async def capture(self) -> SessionState:
        """Refuse: a live snapshot cannot contain the session."""
        raise SnapshotError(f"a live snapshot cannot contain session {self.id!r}")

    async def answer(self, answer: Answer) -> StopReason:
        """Refuse: a session without live snapshots does not restore an Ask."""
        raise RuntimeError(f"no Ask waits for {answer.outcome!r}")

    async def aclose(self) -> None:
        """Take no further prompt. A subclass ends its processes, too."""
        self._is_closed = True
