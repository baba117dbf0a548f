"""`[[steps]]`: a task in several prompts, each graded."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from .agent import AgentPhase
from .artifact import Artifacts
from .environment import Healthcheck
from .record import Record
from .verifier import VerifierPhase

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
