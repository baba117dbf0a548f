"""The agent `nop`, which does nothing. Every task must score it 0."""

from pathlib import Path

from benchflow_contracts import (
    AgentCapabilities,
    AgentError,
    AgentNeeds,
    Role,
    Sandbox,
    SessionSnapshot,
    SessionState,
    Step,
)

from .plain_session import PlainSession


class NopSession(PlainSession):
    """Ends each turn immediately."""

    async def act(self, step: Step) -> Step:
        """Return the empty step."""
        return step


class NopAgent:
    """Starts no process and changes nothing."""

    name = "nop"

    def capabilities(self) -> AgentCapabilities:
        """Return the capabilities of sessions without state."""
        return AgentCapabilities(protocol="none", session_snapshot="files", acts_by="script")

    async def needs(self, role: Role) -> AgentNeeds:
        """Need nothing."""
        del role
        return AgentNeeds()

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> NopSession:
        """Return a session."""
        del log_dir
        before = resume.steps if resume else 0
        return NopSession(self.name, role, sandbox.spec.workdir, steps_before=before)

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> NopSession:
        """Raise: the agent has no process.

        Raises:
            AgentError: Always.
        """
        del sandbox, role, log_dir
        raise AgentError(f"session {state.session_id!r} is not of agent {self.name!r}")
