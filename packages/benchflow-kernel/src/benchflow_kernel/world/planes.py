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
    """Concrete providers, already resolved. All of them outlive the rollout."""

    provider: SandboxProvider
    agents: Mapping[str, Agent]
    """By the name that `Role.agent` uses."""
    rewards: Sequence[Reward]
    """The one named `reward` is the return of a leaf."""
    environment: EnvironmentFactory | None
    """`None` when the task needs no world beyond its files."""
    user: Callable[[], UserModel]
    """Called once per world: a forked child has a user of its own."""
    gateway: ModelGateway | None = None
    """Records every model call; without one, agents reach the endpoint through the relay."""
    step_rewards: Sequence[Sequence[Reward]] = ()
    """For a task of several steps, what grades each of them; empty is `rewards` for all."""
    seal: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Puts a code under the key `seal` of a kept checkpoint, for whoever goes on from it."""
