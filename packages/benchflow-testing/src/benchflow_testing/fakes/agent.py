"""An agent that follows a script inside the runner."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow_contracts.agent import (
    AgentCapabilities,
    AgentNeeds,
    Role,
    SessionSnapshot,
    SessionState,
)
from benchflow_contracts.errors import AgentError, SandboxError
from benchflow_contracts.sandbox import Sandbox

from .faults import FakeFaults, Fault
from .sandbox import FakeSandbox
from .script import Move
from .session import FakeSession

FAKE_AGENT_CAPABILITIES = AgentCapabilities(
    protocol="fake",
    version="1",
    nudges=True,
    ask_user=True,
    session_snapshot="files",
    proven={"live": "1 2026-11-22", "live-ask": "1 2026-11-22", "state": "1 2026-11-22"},
)


class FakeAgent:
    """Follows `turns`: one list of moves for each prompt of a session.

    Every session starts at the first turn, unless it resumes from a snapshot. So a repeated
    prompt asks the same question again. A session that is attached in a child of a live
    snapshot continues inside its turn. Faults are keyed by `needs`, `connect`,
    `attach`, and the session's `prompt`, `cancel`, `snapshot`, `capture` and `answer`.
    """

    def __init__(
        self,
        turns: Sequence[Sequence[Move]] = (),
        *,
        name: str = "fake",
        capabilities: AgentCapabilities = FAKE_AGENT_CAPABILITIES,
        needs: AgentNeeds | None = None,
        session_type: type[FakeSession] = FakeSession,
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.sessions: list[FakeSession] = []
        """Every opened session, in order."""
        self.roles: list[Role] = []
        """The role of each call of `needs`, in order."""
        self._turns = [list(moves) for moves in turns]
        self._name = name
        self._capabilities = capabilities
        self._needs = needs or AgentNeeds()
        self._session_type = session_type

    @property
    def name(self) -> str:
        """The registry name."""
        return self._name

    def capabilities(self) -> AgentCapabilities:
        """Return the value of the constructor."""
        return self._capabilities

    async def needs(self, role: Role) -> AgentNeeds:
        """Return the value of the constructor."""
        self.roles.append(role)
        await self.faults.raise_or_hang("needs")
        return self._needs

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> FakeSession:
        """Open a session."""
        await self.faults.raise_or_hang("connect")
        session = self._session_type(
            self._turns, sandbox, role, agent=self.name, faults=self.faults, resume=resume
        )
        session.log_dir = log_dir
        self.sessions.append(session)
        return session

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> FakeSession:
        """Continue with the process that a live snapshot copied into a fake sandbox."""
        await self.faults.raise_or_hang("attach")
        if state.agent != self.name:
            raise AgentError(f"session {state.session_id!r} is of agent {state.agent!r}")
        if not isinstance(sandbox, FakeSandbox):
            raise AgentError(f"session {state.session_id!r} needs a fake sandbox")
        try:
            process = await sandbox.attach(state.process_id)
        except SandboxError as error:
            raise AgentError(
                f"session {state.session_id!r} has no process here: {error}"
            ) from error
        session = self._session_type(
            self._turns, sandbox, role, agent=self.name, faults=self.faults, process=process
        )
        session.continue_from(state)
        session.log_dir = log_dir
        self.sessions.append(session)
        return session
