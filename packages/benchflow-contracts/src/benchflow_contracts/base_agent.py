"""Base classes for agents that do not speak ACP."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
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
from .errors import AgentError, AgentTimeoutError, SnapshotError
from .pausing import running_timeout
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
    """A `Session` that needs `run_turn`, which calls `add_step`. It cannot be saved.

    `run_turn` may let `limit_turn` apply the time limit of the role, and `cancel`.
    """

    def __init__(self, sandbox: Sandbox, role: Role) -> None:
        self.sandbox = sandbox
        self.role = role
        self._id = uuid4().hex
        self._steps: list[Step] = []
        self._is_closed = False
        self._cancelling: asyncio.Timeout | None = None
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

    async def limit_turn(self, work: Awaitable[StopReason]) -> StopReason:
        """Await the work of a turn. Return its stop reason, or `cancelled` after `cancel`.

        Raises:
            AgentTimeoutError: The work took longer than the role allows. Pauses do not count.
        """
        limit = running_timeout(self.role.timeout_sec)
        cancelling = self._cancelling = asyncio.timeout(None)
        try:
            async with limit, cancelling:
                return await work
        except TimeoutError as error:
            if cancelling.expired():
                return "cancelled"
            if not limit.expired():
                raise
            text = f"the turn took more than {self.role.timeout_sec:g} s"
            raise AgentTimeoutError(text) from error
        finally:
            self._cancelling = None

    async def cancel(self) -> None:
        """End the work that `limit_turn` awaits. Without such work, do nothing."""
        if self._cancelling is not None and self._cancelling.when() is None:
            self._cancelling.reschedule(asyncio.get_running_loop().time())

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
