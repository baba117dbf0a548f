"""ForkController: where a line may fork, and its world as it was there."""

from dataclasses import dataclass

from benchflow_contracts import (
    AgentProtocolError,
    Ask,
    Branched,
    BranchPolicy,
    BranchRecord,
    Checkpointed,
    ModelCall,
)

from benchflow_kernel.branch import (
    BranchBudgetTracker,
    Captured,
    Checkpoint,
    CheckpointRefs,
    Exchange,
    FidelitySelector,
    children_of,
    forks_at_ask,
    forks_at_turn,
    needs_base_checkpoint,
)
from benchflow_kernel.scenes import LoweredTurn
from benchflow_kernel.world import World

from .branch_start import BranchStart, Position
from .checkpoint_writer import CheckpointWriter
from .fork import Fork
from .journal import Journal
from .replay_log import ReplayLog


@dataclass(frozen=True, slots=True)
class ForkServices:
    """What all lines of a rollout fork with."""

    selector: FidelitySelector
    budget: BranchBudgetTracker
    refs: CheckpointRefs
    writer: CheckpointWriter


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a line is."""

    node: str
    turn: int
    schedule: tuple[LoweredTurn, ...]


class ForkController:
    """Asks the policy at each state of one line, and captures its world when it is to fork.

    Of a fork that is returned, the caller owns one hold of its checkpoint.
    """

    def __init__(
        self,
        services: ForkServices,
        journal: Journal,
        world: World,
        start: BranchStart,
        replay_log: ReplayLog,
    ) -> None:
        self._services = services
        self._journal = journal
        self._world = world
        self._start = start
        self._replay_log = replay_log
        self._states = 0
        self._refused = False

    async def at_turn(self, cursor: Cursor) -> Fork | None:
        """Fork at a turn's start, or make sure that a later fork can come back to it.

        Raises:
            FidelityError: The policy demands more than can be had cursor.
            SnapshotError: The world could not be captured.
        """
        states, self._states = self._states, self._states + 1
        start, policy = self._start, self._start.policy
        if (
            start.checkpoint is not None
            and not start.resumed
            and cursor.turn == start.position.turn
        ):
            return None  # here its parent was forked
        wants = policy is not None and forks_at_turn(policy, cursor.turn, states)
        if policy is not None and wants and self._allowed(cursor, policy, None):
            fork = await self._fork(cursor, policy, None)
            if fork is not None:
                return fork
        if self._services.writer.saves_every_turn or (
            policy is not None and needs_base_checkpoint(policy, cursor.turn)
        ):
            await self._save_base(cursor)
        return None

    async def at_ask(self, cursor: Cursor, ask: Ask) -> Fork | None:
        """Fork at a question, while the agent waits; `None` leaves it to the user.

        Raises:
            AgentProtocolError: The question is no node of the tree.
            FidelityError: The policy demands more than can be had cursor.
        """
        policy = self._start.policy
        if policy is None or ask.kind != "question":
            return None
        states, self._states = self._states, self._states + 1
        if not forks_at_ask(policy, ask, states) or not self._allowed(cursor, policy, ask):
            return None
        step = self._journal.node(cursor.node).step
        resumed_here = self._start.resumed and cursor.node == self._start.node
        if not resumed_here and (step is None or step.ask is None or step.ask.id != ask.id):
            raise AgentProtocolError(f"the session did not end a step with ask {ask.id!r}")
        return await self._fork(cursor, policy, ask)

    def at_restored_ask(self, cursor: Cursor, ask: Ask) -> Fork | None:
        """Fork at a question that a kept checkpoint carried in: it is captured already."""
        start, policy = self._start, self._start.policy
        if not start.resumed or policy is None or start.checkpoint is None:
            return None
        states, self._states = self._states, self._states + 1
        if not forks_at_ask(policy, ask, states) or not self._allowed(cursor, policy, ask):
            return None
        self._services.refs.acquire(start.checkpoint)
        self._services.budget.record_fork()
        return Fork(
            position=start.position,
            policy=policy,
            depth=start.depth,
            fidelity="live",
            reason="a kept checkpoint of this very question",
            ask=ask,
            main=start.main,
        )

    async def seal(self, cursor: Cursor) -> Position:
        """Capture the end of a line that may be gone on from. The caller owns one hold."""
        captured = await self._services.selector.capture(
            self._world, cursor.turn, mid_turn=False, require=None
        )
        position = await self._reach(cursor, captured, None)
        await self._services.writer.save(position, captured.fidelity, fork=False)
        return position

    async def _save_base(self, cursor: Cursor) -> None:
        """Capture a turn's start; where no session can be carried, the last one stands."""
        base = await self._services.selector.capture_base(self._world, cursor.turn)
        if base is not None:
            await self._advance(cursor, base)
            await self._services.writer.save(self._at(cursor, base), "state", fork=False)

    async def _fork(self, cursor: Cursor, policy: BranchPolicy, ask: Ask | None) -> Fork | None:
        captured = await self._services.selector.capture(
            self._world, cursor.turn, mid_turn=ask is not None, require=policy.require
        )
        if captured.checkpoint is not None and not await self._affords(
            cursor, policy, captured.checkpoint
        ):
            return None
        position = await self._reach(cursor, captured, ask)
        await self._services.writer.save(position, captured.fidelity, fork=True)
        self._services.budget.record_fork()
        return Fork(
            position=position,
            policy=policy,
            depth=self._start.depth,
            fidelity=captured.fidelity,
            reason=captured.reason,
            ask=ask,
            main=self._start.main,
        )

    async def _reach(self, cursor: Cursor, captured: Captured, ask: Ask | None) -> Position:
        """Return how to come back cursor, and hold the checkpoint that it takes."""
        question = () if ask is None else (Exchange(turn=cursor.turn, ask=ask, answer=None),)
        checkpoint, refs = captured.checkpoint, self._services.refs
        if checkpoint is None:
            base = self._replay_log.base_checkpoint
            assert base is not None, "the first turn always has a checkpoint"
            refs.acquire(base)
            script = (*self._replay_log.script, *question)
            return self._at(
                cursor, base, script, self._world.calls_since(self._replay_log.calls_before)
            )
        if ask is None:
            await self._advance(cursor, checkpoint)
            refs.acquire(checkpoint)
        else:
            refs.acquire(checkpoint)
            await self._publish(cursor, checkpoint)
        return self._at(cursor, checkpoint, question)

    def _at(
        self,
        cursor: Cursor,
        checkpoint: Checkpoint,
        script: tuple[Exchange, ...] = (),
        calls: tuple[ModelCall, ...] = (),
    ) -> Position:
        return Position(
            node=cursor.node,
            turn=cursor.turn,
            schedule=cursor.schedule,
            checkpoint=checkpoint,
            script=script,
            calls=calls,
        )

    async def _advance(self, cursor: Cursor, base: Checkpoint) -> None:
        self._services.refs.acquire(base)
        await self._publish(cursor, base)
        try:
            await self._replay_log.rebase(base, len(self._world.calls))
        finally:
            await self._services.refs.release(base)

    async def _publish(self, cursor: Cursor, taken: Checkpoint) -> None:
        """Tell of a checkpoint that is whole; one that cannot be told of is let go."""
        try:
            self._journal.append(
                Checkpointed,
                node=cursor.node,
                ref=taken.image.ref,
                layers=taken.layers,
                took_sec=taken.took_sec,
            )
        except BaseException:
            await self._services.refs.release(taken)
            raise

    def _allowed(self, cursor: Cursor, policy: BranchPolicy, ask: Ask | None) -> bool:
        """Whether the budget has room; the tree is told once per line why it has none."""
        children = children_of(policy, ask)
        refusal = self._services.budget.refusal(policy.budget, children, self._start.depth)
        return self._record_refusal(cursor, policy, refusal)

    async def _affords(self, cursor: Cursor, policy: BranchPolicy, taken: Checkpoint) -> bool:
        """Whether a checkpoint may be held; one that may not is let go."""
        refusal = self._services.budget.disk_refusal(taken.image.bytes)
        if refusal is not None:
            await self._services.refs.release(taken)
        return self._record_refusal(cursor, policy, refusal)

    def _record_refusal(self, cursor: Cursor, policy: BranchPolicy, refusal: str | None) -> bool:
        if refusal is not None and not self._refused:
            self._refused = True
            record = BranchRecord(
                policy=policy.kind,
                fidelity="replay",
                reason=f"not forked: {refusal}",
                children=0,
            )
            self._journal.append(Branched, node=cursor.node, record=record)
        return refusal is None
