"""`[verifier]`."""

from collections.abc import Mapping
from typing import Literal

from pydantic import model_validator

from .artifact import CollectHook
from .environment import HarborEnvironment
from .network import PhaseNetwork
from .record import Seconds

VerifierMode = Literal["shared", "separate"]
"""`shared` grades in the agent's container, `separate` in one of its own."""


class VerifierPhase(PhaseNetwork):
    """How a task, or one of its steps, is graded."""

    timeout_sec: Seconds = 600
    env: Mapping[str, str] = {}
    user: str | int | None = None
    environment_mode: VerifierMode | None = None
    environment: HarborEnvironment | None = None
    collect: tuple[CollectHook, ...] = ()

    @model_validator(mode="after")
    def _shared_has_no_container(self) -> "VerifierPhase":
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' has no use for an environment table")
        return self

    def mode(self) -> VerifierMode | None:
        """Return what this table says alone, `None` when it says nothing."""
        if self.environment_mode is not None:
            return self.environment_mode
        return None if self.environment is None else "separate"
