"""A declaration as an Agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from benchflow_contracts import (
    AgentCapabilities,
    AgentNeeds,
    Role,
    Sandbox,
    Session,
    SessionSnapshot,
    SessionState,
    UsageError,
)

from .acp_messages import import_messages
from .ask_mcp.tool import AskTool, wants_tool
from .limits import WireLimits

if TYPE_CHECKING:
    from pathlib import Path

    from .declaration import AgentDecl
    from .session import AcpSession


class DeclaredAgent(ABC):
    """An agent that a declaration describes. Subclasses open its sessions."""

    def __init__(self, decl: AgentDecl, *, path: Path | None = None) -> None:
        """Use this declaration. `path` is the file from which it was read, if any."""
        self.decl = decl
        self._path = path

    @property
    def name(self) -> str:
        """The declaration's id."""
        return self.decl.id

    @property
    def declaration_path(self) -> Path:
        """The file of the declaration.

        Raises:
            UsageError: The declaration was not read from a file.
        """
        if self._path is None:
            raise UsageError(f"agent {self.name!r} has no declaration file")
        return self._path

    def capabilities(self) -> AgentCapabilities:
        """Return the capabilities that the declaration states."""
        return self.decl.capabilities()

    def asks(self, role: Role) -> bool:
        """Return whether the agent can ask its user a question in this role."""
        return self.decl.asks(role) or self.asks_by_tool(role)

    def asks_by_tool(self, role: Role) -> bool:
        """Return whether the agent gets the portable question tool in this role."""
        return wants_tool(self.decl, role)

    async def needs(self, role: Role) -> AgentNeeds:
        """Install the agent if it is missing; return its directories as bundles."""
        from .install import install  # noqa: PLC0415 - see connect

        del role
        return AgentNeeds(bundles=(await install(self.decl)).bundles)

    def installed_needs(self) -> AgentNeeds | None:
        """Return the needs of the agent if it is installed; install nothing."""
        from .install import find_installation  # noqa: PLC0415 - see connect

        installation = find_installation(self.decl)
        return None if installation is None else AgentNeeds(bundles=installation.bundles)

    @abstractmethod
    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> Session:
        """Open a session, as `Agent.connect`."""

    @abstractmethod
    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> Session:
        """Continue with a live process, as `Agent.attach`."""


class AcpAgent(DeclaredAgent):
    """An agent that speaks ACP over the pipes of a process inside the sandbox."""

    def __init__(
        self, decl: AgentDecl, *, path: Path | None = None, limits: WireLimits | None = None
    ) -> None:
        """Use this declaration. `path` is the file from which it was read, if any."""
        super().__init__(decl, path=path)
        self._limits = limits or WireLimits()
        self._homes: dict[tuple[str | None, str], str] = {}
        """The home directories found in sandboxes, by image and user, for resumed sessions."""

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
            AgentError: The agent did not start, or refused the session. Its processes are dead.
        """
        # A list of agents, and agents without a protocol, need none of these modules.
        import_messages()
        from .ask_mcp.joined_process import JoinedProcess  # noqa: PLC0415
        from .install import install  # noqa: PLC0415
        from .launch import Launcher  # noqa: PLC0415
        from .session_factory import SessionFactory  # noqa: PLC0415

        installation = await install(self.decl)
        broker = None
        if wants_tool(self.decl, role):
            broker, role = await AskTool(self.decl, sandbox, role).start()
        user = (sandbox.spec.image, sandbox.spec.user)
        home = self._homes.get(user) if resume is not None else None
        launcher = Launcher(self.decl, sandbox, role, home=home)
        factory = SessionFactory(self.decl, sandbox, role, self._limits, log_dir)
        try:
            process = await launcher.launch(installation)
        except BaseException:
            if broker is not None:
                await broker.aclose()
            raise
        if broker is not None:
            process = JoinedProcess(process, broker)
        if launcher.home is not None:
            self._homes[user] = launcher.home
        return await factory.open(process, launcher, resume)

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> AcpSession:
        """Continue with the live process that a fork copied into `sandbox`.

        Any number of children may continue from one state. The children share nothing.

        Raises:
            AgentError: The state is of another agent or cannot be read, or the process is
                missing.
        """
        import_messages()
        from .session_factory import SessionFactory  # noqa: PLC0415 - see connect

        factory = SessionFactory(self.decl, sandbox, role, self._limits, log_dir)
        return await factory.attach(state)
