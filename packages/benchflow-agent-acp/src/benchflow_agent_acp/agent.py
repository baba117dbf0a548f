"""AcpAgent: a declaration as an Agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow_contracts import (
    AgentCapabilities,
    AgentError,
    AgentNeeds,
    Process,
    Role,
    Sandbox,
    SessionCarry,
    SessionSnapshot,
)

from .install import install
from .launch import Launcher
from .limits import WireLimits

if TYPE_CHECKING:
    from pathlib import Path

    from .declaration import AgentDecl
    from .session import AcpSession, SessionState


class AcpAgent:
    """An agent that speaks ACP over the pipes of a process inside the sandbox."""

    def __init__(self, decl: AgentDecl, *, limits: WireLimits | None = None) -> None:
        self.decl = decl
        self._limits = limits or WireLimits()

    @property
    def name(self) -> str:
        """The declaration's id."""
        return self.decl.id

    def capabilities(self) -> AgentCapabilities:
        """Return what the declaration vouches for."""
        return self.decl.capabilities()

    async def needs(self, role: Role) -> AgentNeeds:
        """Install the agent when it is missing; return its directories as mounts."""
        del role
        return AgentNeeds(mounts=(await install(self.decl)).mounts)

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> AcpSession:
        """Start the agent inside `sandbox` and open (or load) a session.

        Raises:
            AgentError: It did not start, or refused the session. No process is left.
        """
        # The schema models of the ACP library take about a second to import, which
        # must not be a cost of looking at the list of agents.
        from .attach import Attachment  # noqa: PLC0415

        launcher = Launcher(self.decl, sandbox, role)
        process = await launcher.launch(await install(self.decl))
        attachment = Attachment(self.decl, sandbox, role, self._limits, log_dir)
        return await attachment.open(process, launcher, resume)

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        carry: SessionCarry,
        *,
        log_dir: Path | None = None,
    ) -> AcpSession:
        """Refuse: not carried yet."""
        del sandbox, role, log_dir
        raise AgentError(f"session {carry.session_id!r} cannot be carried")

    async def adopt(
        self,
        process: Process,
        state: SessionState,
        sandbox: Sandbox,
        role: Role,
        *,
        log_dir: Path | None = None,
    ) -> AcpSession:
        """Return the session of a forked process, from a copy of its client's state.

        The other end of `process` must be in the very state that it was in when
        `AcpSession.state` was called.
        """
        from .attach import Attachment  # noqa: PLC0415 - see connect

        attachment = Attachment(self.decl, sandbox, role, self._limits, log_dir)
        return attachment.adopt(process, state)
