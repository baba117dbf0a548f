"""Inject a fault into a world right before its agent continues: an ablation."""

from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts import (
    Agent,
    AgentCapabilities,
    AgentNeeds,
    Role,
    Sandbox,
    Session,
    SessionSnapshot,
    SessionState,
    UsageError,
)


class FaultyWorld:
    """An Agent whose world gets a fault first: each command runs as root in its sandbox.

    The checks of the checkpoint run before, so the agent gets exactly the saved world plus the
    fault.
    """

    def __init__(self, agent: Agent, commands: Sequence[str]) -> None:
        self._agent = agent
        self._commands = tuple(commands)

    @property
    def name(self) -> str:
        """The registry name of the agent."""
        return self._agent.name

    def capabilities(self) -> AgentCapabilities:
        """Return the value of the agent."""
        return self._agent.capabilities()

    async def needs(self, role: Role) -> AgentNeeds:
        """Return the value of the agent."""
        return await self._agent.needs(role)

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> Session:
        """Inject the fault, then start the agent."""
        await self._break(sandbox)
        return await self._agent.connect(sandbox, role, resume=resume, log_dir=log_dir)

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> Session:
        """Inject the fault, then resume the agent."""
        await self._break(sandbox)
        return await self._agent.attach(sandbox, role, state, log_dir=log_dir)

    async def _break(self, sandbox: Sandbox) -> None:
        for command in self._commands:
            done = await sandbox.exec(command, user="root", timeout=60)
            if not done.ok:
                said = (done.stderr or done.stdout).strip()[-200:] or "it said nothing"
                raise UsageError(
                    f"the fault {command!r} ended with {done.exit_code}: {said}",
                    hint="a fault is a shell command that root runs in the sandbox",
                )
