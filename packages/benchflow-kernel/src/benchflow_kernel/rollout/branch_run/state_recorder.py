"""Record the environment's state where a branch starts, forks and begins its turns."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from benchflow_contracts import BenchFlowError, EnvState

from benchflow_kernel.branch import Checkpoint
from benchflow_kernel.faults import within

from .progress import BranchContext

if TYPE_CHECKING:
    from benchflow_contracts.pausing import RunningTimeout

_READ_SEC: Final = 30


class StateRecorder:
    """Records the states of one branch that `capture_state` asks for, except those of leaves.

    These states are only for the record. A state that cannot be read is reported in the log, and
    the time to read a state does not count against the branch's deadline. So neither changes a
    reward.
    """

    def __init__(self, branch: BranchContext) -> None:
        self._branch = branch
        self.deadline: RunningTimeout | None = None
        """The scope of the execute deadline that runs."""

    async def at_turn(self, node: str) -> None:
        """Record the state at the start of a turn, while no agent acts.

        The checkpoint that the rollout resumes from counts as a root.
        """
        start = self._branch.start
        origin = start.checkpoint if node == start.node else None
        if origin is not None and origin.from_disk:
            await self.at_fork(node, origin)
        elif self._is_due(node, is_fork=False):
            await self._read(node)

    async def at_fork(self, node: str, checkpoint: Checkpoint | None) -> None:
        """Record the state of a fork. Without a checkpoint, read it while the agent waits."""
        if not self._is_due(node, is_fork=True):
            return
        if checkpoint is None:
            await self._read(node)
        elif checkpoint.state is not None:
            self._branch.journal.record_state(node, checkpoint.state)

    def at_checkpoint(self, node: str, state: EnvState | None) -> None:
        """Record a state that a checkpoint has."""
        if state is not None and self._is_due(node, is_fork=False):
            self._branch.journal.record_state(node, state)

    def _is_due(self, node: str, *, is_fork: bool) -> bool:
        policy, record = self._branch.plan.config.capture_state, self._branch.journal.node(node)
        is_off = policy not in {"forks", "all"} or self._branch.world.environment is None
        if is_off or record.state_ref is not None:
            return False
        return policy == "all" or is_fork or record.parent is None

    async def _read(self, node: str) -> None:
        journal, work = self._branch.journal, "reading the environment's state"
        try:
            with nullcontext() if self.deadline is None else self.deadline.suspended():
                async with within(_READ_SEC, "environment", work):
                    state = await self._branch.world.query()
        except BenchFlowError as error:
            journal.record_missing_state(node, str(error))
            return
        if state is not None:
            journal.record_state(node, state)
