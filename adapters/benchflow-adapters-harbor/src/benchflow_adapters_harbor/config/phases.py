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
    def _check_shared(self) -> "VerifierPhase":
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' has no use for an environment table")
        return self

    def mode(self) -> VerifierMode | None:
        """Return what this table says alone, `None` when it says nothing."""
        if self.environment_mode is not None:
            return self.environment_mode
        return None if self.environment is None else "separate"


_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])", re.IGNORECASE)


def step_name(name: str) -> str:
    """Return a step's name, which is also a directory's.

    Raises:
        ValueError: Some operating system could not have a directory of that name.
    """
    device = _DEVICE.fullmatch(name.partition(".")[0].rstrip(" "))
    if not name.strip() or name.endswith((".", " ")) or _FORBIDDEN.search(name) or device:
        raise ValueError(f"{name[:80]!r} is no portable name of a directory")
    if len(name.encode("utf-8", "surrogatepass")) > 255:
        raise ValueError("longer than 255 bytes")
    return name


def step_key(name: str) -> str:
    """Return what two names share that some file system would take for one."""
    return unicodedata.normalize("NFC", name).casefold()


class StepConfig(Record):
    """One step; `[agent]`, `[verifier]` and `artifacts` add to the task's own."""

    name: Annotated[str, AfterValidator(step_name)]
    agent: AgentPhase = AgentPhase()
    verifier: VerifierPhase = VerifierPhase()
    min_reward: float | Mapping[str, float] | None = None
    """Below it no further step runs; a number is meant for the key `reward`."""
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = ()
