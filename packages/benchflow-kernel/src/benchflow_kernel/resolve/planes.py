"""The four planes that a rollout is run on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchflow_contracts import (
    Agent,
    EnvironmentFactory,
    ModelGateway,
    Reward,
    SandboxProvider,
    UserModel,
)


@dataclass(frozen=True, slots=True)
class Planes:
    """The providers of a rollout, already looked up. They outlive the rollout."""

    provider: SandboxProvider
    agents: Mapping[str, Agent]
    """By the name that `Role.agent` uses."""
    rewards: Sequence[Reward]
    """The one named `reward` is the return of a leaf."""
    environment: EnvironmentFactory | None
    """`None` for a task without an environment."""
    user: Callable[[], UserModel]
    """Called once per world: each forked child has its own user."""
    gateway: ModelGateway | None = None
    """Records every model call. `None`: agents reach the endpoint through the relay."""
    step_rewards: Sequence[Sequence[Reward]] = ()
    """The rewards of each step of a task with steps; empty uses `rewards` for all steps."""
    seal: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Add an authentication code under the key `seal` to the manifest of a saved checkpoint."""
