"""Save a rollout that is to end early, so that a later attempt continues it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from benchflow_contracts import Answer, Ask, BenchFlowError, needs_processes
from benchflow_contracts.pausing import pause_switch

from benchflow_kernel.branch import Captured, Checkpoint, FidelitySelector
from benchflow_kernel.rollout.branch_start import Position

from .fork_controller import ForkServices, is_forked, open_question, position_at
from .progress import BranchContext, Cursor


class RolloutSaver:
    """Saves one branch at its next state that can be restored, if the rollout's switch asks for it.

    The branch then stands still, and the owner of the rollout cancels it. If the branch cannot be
    saved at a state, it continues. A branch below a fork is not saved, because a resumed rollout
    runs all branches of a fork again.
    """

    def __init__(
        self,
        branch: BranchContext,
        services: ForkServices,
        record: Callable[[str, Checkpoint], None],
    ) -> None:
        self._branch = branch
        self._services = services
        self._record = record
        self._switch = pause_switch()
        self._is_saved = False

    async def at_turn(self, cursor: Cursor) -> None:
        """Save the start of a turn: live, or by files."""
        await self._save(cursor, None)

    async def at_ask(self, cursor: Cursor, ask: Ask) -> None:
        """Save a question to the user, live."""
        step = self._branch.journal.node(cursor.node).step
        ends_step = step is not None and step.ask is not None and step.ask.id == ask.id
        if ask.kind == "question" and ends_step:
            await self._save(cursor, ask)

    async def answered(self, cursor: Cursor, ask: Ask, answer: Awaitable[Answer]) -> Answer:
        """Return the user's answer. Save the question if that is asked for while the user thinks.

        A user may think for hours.
        """
        saving = asyncio.get_running_loop().create_task(self._save_when_asked(cursor, ask))
        try:
            result = await answer
            if self._is_saved:
                await saving  # The owner of the rollout cancels it.
            return result
        finally:
            saving.cancel()
            await asyncio.wait([saving])

    async def _save_when_asked(self, cursor: Cursor, ask: Ask) -> None:
        await self._switch.wait_save()
        await self.at_ask(cursor, ask)

    async def at_end(self, cursor: Cursor, ungraded_step: int | None) -> None:
        """Save the world after its agents have ended. The later attempt only grades."""
        if not self._is_asked(cursor):
            return
        needed = any(map(needs_processes, self._branch.plan.rewards(ungraded_step or 0)))
        try:
            captured = await (await self._selector()).capture_ended(
                self._branch.world, cursor.turn, needs_processes=needed
            )
            if captured is None:
                self._switch.refuse_save("its grading needs processes, which cannot be saved")
            elif captured.checkpoint is not None:
                position = position_at(cursor, captured.checkpoint)
                ended = replace(position, ended=True, ungraded_step=ungraded_step)
                await self._write(ended, captured, captured.checkpoint)
        except BenchFlowError as error:
            self._switch.refuse_save(str(error))

    async def _save(self, cursor: Cursor, ask: Ask | None) -> None:
        if not self._is_asked(cursor):
            return
        try:
            captured = await (await self._selector()).capture(
                self._branch.world, cursor.turn, mid_turn=ask is not None, require=None
            )
            if captured.checkpoint is not None:
                script = open_question(cursor, ask)
                position = position_at(cursor, captured.checkpoint, script)
                await self._write(position, captured, captured.checkpoint)
        except BenchFlowError as error:
            self._switch.refuse_save(str(error))

    def _is_asked(self, cursor: Cursor) -> bool:
        if not self._switch.wants_save:
            return False
        if any(map(is_forked, self._branch.journal.node(cursor.node).path)):
            self._switch.refuse_save("it has forked, and only a whole fork can be resumed")
            return False
        return True

    async def _selector(self) -> FidelitySelector:
        """Return a selector for what the sandbox can do; nobody may have asked before."""
        plan = self._branch.plan
        capabilities = await plan.planes.provider.capabilities()
        return FidelitySelector(capabilities, plan.config.deadlines.provision)

    async def _write(self, position: Position, captured: Captured, checkpoint: Checkpoint) -> None:
        self._services.refs.acquire(checkpoint)
        try:
            self._record(position.node, checkpoint)
            await self._services.writer.save_now(position, captured.fidelity)
        finally:
            await self._services.refs.release(checkpoint)
        self._is_saved = True
        await self._switch.end_saved()
