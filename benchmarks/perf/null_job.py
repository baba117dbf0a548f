"""The planes of `null_engine.py` for a job, which finds them by import path."""

from collections.abc import AsyncGenerator

from benchflow_contracts import ReapPolicy, SandboxCapabilities, SandboxRecord, Task
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from null_engine import Gate, NullAgent, NullProvider, NullReward

GATES: list[Gate] = []
"""Holds the rollouts at their prompt, if there is one."""


class Sandboxes(NullProvider):
    """The provider of a job, of which a rollout needs one descriptor."""

    open_files_per_rollout = 1

    async def ready(self) -> None:
        """Be ready."""

    async def capabilities(self) -> SandboxCapabilities:
        """Return what a null box can do."""
        return SandboxCapabilities(isolation="none", freeze="kernel")

    async def sandboxes(self, *, scope: str) -> AsyncGenerator[SandboxRecord]:
        """Yield no sandbox."""
        del scope
        for record in ():
            yield record

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Delete nothing."""
        del policy
        return []

    async def aclose(self) -> None:
        """Hold nothing."""


def provider(**_: object) -> Sandboxes:
    """Return the provider."""
    return Sandboxes()


def agent() -> NullAgent:
    """Return an agent of one step."""
    return NullAgent(1, GATES[0] if GATES else None)


def rewards(_task: Task, **_: object) -> list[NullReward]:
    """Return the reward."""
    return [NullReward()]


def config() -> RunConfig:
    """Return the configuration that names the null planes."""
    return run_config(
        agent_import_path="null_job:agent",
        sandbox_import_path="null_job:provider",
        reward_import_path="null_job:rewards",
    )
