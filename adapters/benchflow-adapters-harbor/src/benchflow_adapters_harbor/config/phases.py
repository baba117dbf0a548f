"""`[agent]`, `[verifier]` and `[[steps]]`."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from .artifact import Artifacts, CollectHook
from .environment import HarborEnvironment, Healthcheck
from .network import PhaseNetwork
from .record import Record, Seconds


class AgentPhase(PhaseNetwork):
    """Limits on the agent's run."""

    timeout_sec: Seconds | None = None
    """`None` is unlimited."""
    user: str | int | None = None
    """`None` is the image's own user."""


VerifierMode = Literal["shared", "separate"]
"""`shared` grades in the agent's container, `separate` in another container."""


class VerifierPhase(PhaseNetwork):
    """How a task, or one of its steps, is graded."""

    timeout_sec: Seconds = 600
    env: Mapping[str, str] = {}
    user: str | int | None = None
    environment_mode: VerifierMode | None = None
    environment: HarborEnvironment | None = None
    collect: tuple[CollectHook, ...] = ()

    @model_validator(mode="after")
    def _check_shared(self) -> "VerifierPhase":
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' does not allow an environment table")
        return self

    def mode(self) -> VerifierMode | None:
        """Return the mode that this table gives, or None."""
        if self.environment_mode is not None:
            return self.environment_mode
        return None if self.environment is None else "separate"


_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])", re.IGNORECASE)


def step_name(name: str) -> str:
    """Return a step's name, which is also the name of its directory.

    Raises:
        ValueError: Some operating system does not allow a directory of that name.
    """
    device = _DEVICE.fullmatch(name.partition(".")[0].rstrip(" "))
    if not name.strip() or name.endswith((".", " ")) or _FORBIDDEN.search(name) or device:
        raise ValueError(f"{name[:80]!r} is not a portable name of a directory")
    if len(name.encode("utf-8", "surrogatepass")) > 255:
        raise ValueError("longer than 255 bytes")
    return name


def step_key(name: str) -> str:
    """Return the key that is equal for names that some file system treats as equal."""
    return unicodedata.normalize("NFC", name).casefold()


class StepConfig(Record):
    """One step. Its `[agent]`, `[verifier]` and `artifacts` add to those of the task."""

    name: Annotated[str, AfterValidator(step_name)]
    agent: AgentPhase = AgentPhase()
    verifier: VerifierPhase = VerifierPhase()
    min_reward: float | Mapping[str, float] | None = None
    """If the reward is lower, no further step runs. A number is for the key `reward`."""
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = ()
