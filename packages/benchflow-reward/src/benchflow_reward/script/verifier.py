"""ScriptVerifier: the task's `tests/test.sh` decides."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchflow_contracts import (
    Evidence,
    Grading,
    RewardError,
    RolloutNode,
    SandboxError,
    SnapshotError,
    VerifyResult,
    host_error,
    host_is_short,
)

from .failure_attribution import attribute_failure
from .grading_protocol import GradingProtocol, LiveNode
from .hermetic import grade_hermetic
from .in_place import grade_where_needed
from .native import NATIVE
from .shared import grade_shared
from .twin import grade_twin

_MODES = {"hermetic": grade_hermetic, "twin": grade_twin, "shared": grade_shared}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptVerifier:
    """Runs `tests/test.sh` and reads the reward file that it leaves.

    `hermetic` and `twin` end the agent's sandbox, so this is the last Reward to score a
    node. `VerifyResult.grading` says how it was graded.
    """

    isolation: Literal["hermetic", "twin", "shared"] | None = None
    """Overrides the task's `[verifier] isolation`, and whether a twin may be followed by a
    grading in place."""
    protocol: GradingProtocol = NATIVE
    """How the tests are placed, run and read."""
    needs_processes: bool = True
    """Whether it uses processes of the agent's sandbox: for collect hooks, a twin or shared tests.
    """
    stops_processes: bool = False
    """Whether it surely reads files while no process runs, as `hermetic` does."""
    name: str = "reward"

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Grade the node.

        When the agent prevented a verdict, the reward is the lowest of the task's range, and
        `VerifyResult.cause` says how.

        Raises:
            EvidenceMissingError: There is no live world, or no task.
            RewardError: The tests crashed, ran out of time or left no valid reward, or the
                grading sandbox failed. There is no reward then.
        """
        live = LiveNode.of(node, evidence, self.protocol, reward=self.name)
        verifier = live.task.config.verifier
        settled = partial(_attributed, live)
        if self.isolation is None and verifier.isolation == "twin" and verifier.may_grade_in_place:
            return await grade_where_needed(live, settled)
        mode = self.isolation or verifier.isolation
        return await settled(mode, _MODES[mode](live))


async def _attributed(
    live: LiveNode, mode: Grading, grading: Awaitable[VerifyResult]
) -> VerifyResult:
    try:
        return await grading
    except (SandboxError, SnapshotError, RewardError) as error:
        return await attribute_failure(live, mode, error)
    except (OSError, MemoryError, RuntimeError) as error:
        if not host_is_short(error):
            raise
        return await attribute_failure(live, mode, host_error(f"grade {live.task.id!r}", error))
