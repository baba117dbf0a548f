"""AcpAgent: a declaration as an Agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow_contracts import (
    AgentCapabilities,
    AgentNeeds,
    Role,
    Sandbox,
    SessionCarry,
    SessionSnapshot,
)

from .ask_mcp.tool import AskTool, wants_tool
from .limits import WireLimits

if TYPE_CHECKING:
    from pathlib import Path

    from .declaration import AgentDecl
    from .session import AcpSession


class AcpAgent:
    """An agent that speaks ACP over the pipes of a process inside the sandbox."""

    def __init__(self, decl: AgentDecl, *, limits: WireLimits | None = None) -> None:
        self.decl = decl
        self._limits = limits or WireLimits()
        self._homes: dict[tuple[str | None, str], str] = {}
        """Found in boxes, by image and user: a session that goes on has its parent's."""

    @property
    def name(self) -> str:
        """The declaration's id."""
        return self.decl.id

    def capabilities(self) -> AgentCapabilities:
        """Return what the declaration vouches for."""
        return self.decl.capabilities()

    def asks(self, role: Role) -> bool:
        """Whether this role's agent has a way to put a question to its user."""
        return self.decl.asks(role) or self.asks_by_tool(role)

    def asks_by_tool(self, role: Role) -> bool:
        """Whether this role's agent is given the portable question tool."""
        return wants_tool(self.decl, role)

    async def needs(self, role: Role) -> AgentNeeds:
        """Install the agent when it is missing; return its directories as mounts."""
        from .install import install  # noqa: PLC0415 - see connect

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
        # The schema models of the ACP library take about a second to import, which must not
        # be a cost of looking at the list of agents; the rest none of agents without a protocol.
        from .ask_mcp.joined import JoinedProcess  # noqa: PLC0415
        from .attach import Attachment  # noqa: PLC0415
        from .install import install  # noqa: PLC0415
        from .launch import Launcher  # noqa: PLC0415

        installed = await install(self.decl)
        broker = None
        if wants_tool(self.decl, role):
            broker, role = await AskTool(self.decl, sandbox, role).start()
        box = (sandbox.spec.image, sandbox.spec.user)
        home = self._homes.get(box) if resume is not None else None
        launcher = Launcher(self.decl, sandbox, role, home=home)
        attachment = Attachment(self.decl, sandbox, role, self._limits, log_dir)
        try:
            process = await launcher.launch(installed)
        except BaseException:
            if broker is not None:
                await broker.aclose()
            raise
        if broker is not None:
            process = JoinedProcess(process, broker)
        if launcher.found_home is not None:
            self._homes[box] = launcher.found_home
        return await attachment.open(process, launcher, resume)

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        carry: SessionCarry,
        *,
        log_dir: Path | None = None,
    ) -> AcpSession:
        """Go on with the live process that a fork carried into `sandbox`.

        Any number of children may go on from one carry; they share nothing.

        Raises:
            AgentError: The carry is not this agent's, cannot be read, or its process is
                not there.
        """
        from .attach import Attachment  # noqa: PLC0415 - see connect

        attachment = Attachment(self.decl, sandbox, role, self._limits, log_dir)
        return await attachment.adopt(carry)
