"""Decide where a branch forks, and capture its world there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchflow_contracts import (
    AgentProtocolError,
    Ask,
    BenchFlowError,
    Branched,
    BranchRecord,
    Checkpointed,
    Fidelity,
    ModelCall,
    PendingCall,
    RolloutNode,
    needs_processes,
)

from benchflow_kernel.branch import (
    BranchBudgetTracker,
    Captured,
    Checkpoint,
    CheckpointRefs,
    Exchange,
    FidelitySelector,
    ReplayLog,
    children_of,
    forks_at_ask,
    forks_at_turn,
    needs_base_checkpoint,
)
from benchflow_kernel.config import BranchPolicy
from benchflow_kernel.errors import FidelityError
from benchflow_kernel.faults import boundary
from benchflow_kernel.rollout.branch_start import Fork, Position
from benchflow_kernel.rollout.checkpoint_writer import CheckpointWriter
from benchflow_kernel.users import answer_probabilities

from .progress import BranchContext, Cursor
from .state_recorder import StateRecorder


@dataclass(frozen=True, slots=True)
class ForkServices:
    """The services that all branches of a rollout use to fork."""

    selector: FidelitySelector
    budget: BranchBudgetTracker
    refs: CheckpointRefs
    writer: CheckpointWriter


class ForkController:
    """Asks the policy at each state of one branch, and captures the world for a fork.

    The caller owns one reference to the checkpoint of each returned fork.
    """

    def __init__(
        self,
        branch: BranchContext,
        services: ForkServices,
        replay_log: ReplayLog,
        states: StateRecorder,
        on_fork: Callable[[Fork], None],
    ) -> None:
        self._branch = branch
        self._services = services
        self._replay_log = replay_log
        self._state_recorder = states
        self._on_fork = on_fork
        self._states = 0
        self._has_recorded_refusal = False

    async def at_turn(self, cursor: Cursor) -> Fork | None:
        """Fork at the start of a turn, or take a checkpoint that a later fork can replay from.

        Raises:
            FidelityError: The policy requires a fidelity that is not available here.
            SnapshotError: The world could not be captured.
        """
        states, self._states = self._states, self._states + 1
        start, policy = self._branch.start, self._branch.start.policy
        at_start = start.checkpoint is not None and cursor.turn == start.position.turn
        if at_start and not start.resumed:
            return None  # The parent was forked here.
        should_fork = policy is not None and forks_at_turn(policy, cursor.turn, states)
        if policy is not None and should_fork and self._is_allowed(cursor, policy, None):
            fork = await self._fork(cursor, policy, None)
            if fork is not None:
                return fork
        needs_base = policy is not None and needs_base_checkpoint(policy, cursor.turn)
        if needs_base or self._services.writer.saves_every_turn:
            await self._save_base(cursor)
        return None

    async def at_ask(self, cursor: Cursor, ask: Ask) -> Fork | None:
        """Fork at a question while the agent waits. If `None`, the user answers.

        A request to fork is refused by `None`.

        A rollout that keeps all checkpoints saves a live one here if it does not fork.

        Raises:
            AgentProtocolError: The question does not end a step of the tree.
            FidelityError: The policy requires a fidelity that is not available here.
        """
        start, policy = self._branch.start, self._branch.start.policy
        if ask.kind == "permission":
            return None
        step = self._branch.journal.node(cursor.node).step
        ends_step = step is not None and step.ask is not None and step.ask.id == ask.id
        if policy is None or not self._should_fork(cursor, policy, ask):
            if ends_step:
                await self._save_live(cursor, ask)
            return None
        is_restored = start.resumed and cursor.node == start.node
        if not (is_restored or ends_step):
            raise AgentProtocolError(f"the session did not end a step with ask {ask.id!r}")
        return await self._fork(cursor, policy, ask)

    def allows(self, cursor: Cursor, policy: BranchPolicy) -> bool:
        """Return whether the budget allows a fork that is not at a question."""
        return self._is_allowed(cursor, policy, None)

    async def at_call(self, cursor: Cursor, call: PendingCall) -> Fork | None:
        """Fork at a model call that is deferred. If `None`, the agent's call goes on.

        Raises:
            FidelityError: The policy requires a fidelity that is not available here.
        """
        policy = self._branch.start.policy
        assert policy is not None, "the policy decided to fork"
        return await self._fork(cursor, policy, None, call)

    def refuse_call(self, cursor: Cursor, reason: str) -> None:
        """Record why the branch does not fork at a model call.

        Raises:
            FidelityError: The policy requires a fidelity.
        """
        policy = self._branch.start.policy
        assert policy is not None, "the policy decided to fork"
        if policy.require is not None:
            raise FidelityError(f"fidelity {policy.require!r} is not available: {reason}")
        self._record_refusal(cursor, policy, reason)

    async def at_restored_ask(self, cursor: Cursor, ask: Ask) -> Fork | None:
        """Fork at the open question of a saved checkpoint, without another capture."""
        start, policy = self._branch.start, self._branch.start.policy
        if not start.resumed or policy is None or start.checkpoint is None:
            return None
        if not self._should_fork(cursor, policy, ask):
            return None
        answers = await self._answers(cursor, policy, ask)
        await self._state_recorder.at_fork(cursor.node, start.checkpoint)
        self._services.refs.acquire(start.checkpoint)
        self._services.budget.record_fork()
        return Fork(
            position=start.position,
            policy=policy,
            depth=start.depth,
            fidelity="live",
            reason="a saved checkpoint of this question",
            ask=ask,
            answers=answers,
            main=start.main,
        )

    def continues_after(self, fork: Fork) -> bool:
        """Return whether the branch continues after `fork`; if so, start the children."""
        if fork.policy.kind != "value":
            return False
        self._on_fork(fork)
        return True

    async def capture_end(self, cursor: Cursor) -> Position:
        """Capture the end of a branch that may be resumed. The caller owns one reference."""
        captured = await self._services.selector.capture(
            self._branch.world, cursor.turn, mid_turn=False, require=None
        )
        position = await self._position(cursor, captured, None, in_turn=False)
        await self._services.writer.save(position, captured.fidelity, fork=False)
        return position

    async def save_end(self, cursor: Cursor, ungraded_step: int | None) -> None:
        """Save the world of a branch whose agents have ended, if all checkpoints are kept.

        A world below a fork is not saved: a resumed rollout runs all branches of a fork again.
        Rewards that need processes need a live checkpoint. An error does not end the rollout.
        """
        branch, services = self._branch, self._services
        forked = any(map(is_forked, branch.journal.node(cursor.node).path))
        if forked or not services.writer.saves_every_turn:
            return
        needed = any(map(needs_processes, branch.plan.rewards(ungraded_step or 0)))
        try:
            captured = await services.selector.capture_ended(
                branch.world, cursor.turn, needs_processes=needed
            )
        except BenchFlowError as error:
            services.writer.report(cursor.node, error)
            return
        if captured is not None and captured.checkpoint is not None:
            position = position_at(cursor, captured.checkpoint)
            position = replace(position, ended=True, ungraded_step=ungraded_step)
            await self._save_aside(position, captured.checkpoint, captured.fidelity)

    async def aclose(self) -> None:
        """Release the branch's own checkpoint. Idempotent."""
        await self._replay_log.aclose()

    async def _save_base(self, cursor: Cursor) -> None:
        """Capture the start of a turn; if a session cannot be captured, keep the last base.

        The start is then saved with its processes, if the sandbox can.
        """
        base = await self._services.selector.capture_base(self._branch.world, cursor.turn)
        if base is not None:
            await self._rebase(cursor, base)
            await self._services.writer.save(position_at(cursor, base), "state", fork=False)
        else:
            await self._save_live(cursor, None)

    async def _save_live(self, cursor: Cursor, ask: Ask | None) -> None:
        """Save the world with its processes, if all checkpoints are kept and the sandbox can."""
        if not self._services.writer.saves_every_turn:
            return
        live = await self._services.selector.capture_live(self._branch.world, cursor.turn)
        if live is not None:
            await self._save_aside(
                position_at(cursor, live, open_question(cursor, ask)), live, "live"
            )

    async def _save_aside(
        self, position: Position, checkpoint: Checkpoint, fidelity: Fidelity
    ) -> None:
        """Record and save a checkpoint from which this rollout itself never starts."""
        self._services.refs.acquire(checkpoint)
        try:
            self.record_checkpoint(position.node, checkpoint)
            await self._services.writer.save(position, fidelity, fork=False)
        finally:
            await self._services.refs.release(checkpoint)

    async def _answers(
        self, cursor: Cursor, policy: BranchPolicy, ask: Ask | None
    ) -> Mapping[str, float] | None:
        """Return how probable each answer of the task's user is, if each answer gets a child."""
        if ask is None or policy.kind != "ask-user":
            return None
        branch = self._branch
        with boundary("environment"):
            steps = branch.journal.node(cursor.node).steps
            return await answer_probabilities(branch.world.user, ask, steps)

    async def _fork(
        self, cursor: Cursor, policy: BranchPolicy, ask: Ask | None, call: PendingCall | None = None
    ) -> Fork | None:
        answers = await self._answers(cursor, policy, ask)
        in_turn = ask is not None or call is not None
        # The program that asks for a fork is outside of the sandbox, so files restore its session.
        is_requested = ask is not None and ask.kind == "fork"
        captured = await self._services.selector.capture(
            self._branch.world,
            cursor.turn,
            mid_turn=in_turn and not is_requested,
            require=policy.require,
        )
        checkpoint = captured.checkpoint
        if is_requested and checkpoint is None:
            raise FidelityError(f"the session cannot be copied: {captured.reason}")
        if checkpoint is not None and not await self._fits_on_disk(cursor, policy, checkpoint):
            return None
        position = await self._position(cursor, captured, ask, in_turn=in_turn)
        position = replace(position, call=call)
        await self._state_recorder.at_fork(cursor.node, checkpoint)
        await self._services.writer.save(position, captured.fidelity, fork=True)
        self._services.budget.record_fork()
        return Fork(
            position=position,
            policy=policy,
            depth=self._branch.start.depth,
            fidelity=captured.fidelity,
            reason=captured.reason,
            ask=ask,
            answers=answers,
            main=self._branch.start.main,
        )

    async def _position(
        self, cursor: Cursor, captured: Captured, ask: Ask | None, *, in_turn: bool
    ) -> Position:
        """Return how to return here, and acquire the checkpoint for it."""
        question = open_question(cursor, ask)
        checkpoint, refs = captured.checkpoint, self._services.refs
        if checkpoint is None:
            base = self._replay_log.base_checkpoint
            assert base is not None, "the first turn always has a checkpoint"
            refs.acquire(base)
            script = (*self._replay_log.script, *question)
            calls = self._branch.world.calls_since(self._replay_log.calls_before)
            answered = self._replay_log.answered_before
            return replace(position_at(cursor, base, script, calls), calls_before=answered)
        if not in_turn:
            await self._rebase(cursor, checkpoint)
            refs.acquire(checkpoint)
        else:
            refs.acquire(checkpoint)
            await self._record(cursor, checkpoint)
        return position_at(cursor, checkpoint, question)

    async def _rebase(self, cursor: Cursor, base: Checkpoint) -> None:
        self._services.refs.acquire(base)
        await self._record(cursor, base)
        try:
            await self._replay_log.rebase(base, len(self._branch.world.calls), cursor.calls)
        finally:
            await self._services.refs.release(base)

    async def _record(self, cursor: Cursor, checkpoint: Checkpoint) -> None:
        """Record a complete checkpoint; release a checkpoint that cannot be recorded."""
        try:
            self.record_checkpoint(cursor.node, checkpoint)
        except BaseException:
            await self._services.refs.release(checkpoint)
            raise

    def record_checkpoint(self, node: str, checkpoint: Checkpoint) -> None:
        """Record a checkpoint in the log of the rollout."""
        self._branch.journal.append(
            Checkpointed,
            node=node,
            ref=checkpoint.image.ref,
            layers=checkpoint.layers,
            took_sec=checkpoint.took_sec,
        )
        self._state_recorder.at_checkpoint(node, checkpoint.state)

    def _should_fork(self, cursor: Cursor, policy: BranchPolicy, ask: Ask) -> bool:
        states, self._states = self._states, self._states + 1
        return forks_at_ask(policy, ask, states) and self._is_allowed(cursor, policy, ask)

    def _is_allowed(self, cursor: Cursor, policy: BranchPolicy, ask: Ask | None) -> bool:
        """Return whether the budget allows a fork."""
        children = children_of(policy, ask)
        refusal = self._services.budget.refusal(policy.budget, children, self._branch.start.depth)
        self._record_refusal(cursor, policy, refusal)
        return refusal is None

    async def _fits_on_disk(
        self, cursor: Cursor, policy: BranchPolicy, checkpoint: Checkpoint
    ) -> bool:
        """Return whether the budget allows the checkpoint's size; if not, release it."""
        refusal = self._services.budget.disk_refusal(checkpoint.image.bytes)
        if refusal is not None:
            await self._services.refs.release(checkpoint)
        self._record_refusal(cursor, policy, refusal)
        return refusal is None

    def _record_refusal(self, cursor: Cursor, policy: BranchPolicy, refusal: str | None) -> None:
        """Record once per branch why it does not fork. A record of a fork stays."""
        if refusal is None or self._has_recorded_refusal:
            return
        if is_forked(self._branch.journal.node(cursor.node)):
            return
        self._has_recorded_refusal = True
        record = BranchRecord(
            policy=policy.kind,
            fidelity="replay",
            reason=f"not forked: {refusal}",
            children=0,
        )
        self._branch.journal.append(Branched, node=cursor.node, record=record)


def is_forked(node: RolloutNode) -> bool:
    """Return whether branches start at this node."""
    return node.branch is not None and node.branch.children > 0


def open_question(cursor: Cursor, ask: Ask | None) -> tuple[Exchange, ...]:
    """Return the script of a position at which a question is open."""
    return () if ask is None else (Exchange(turn=cursor.turn, ask=ask, answer=None),)


def position_at(
    cursor: Cursor,
    checkpoint: Checkpoint,
    script: tuple[Exchange, ...] = (),
    calls: tuple[ModelCall, ...] = (),
) -> Position:
    """Return the position of a branch at a checkpoint."""
    return Position(
        node=cursor.node,
        turn=cursor.turn,
        schedule=cursor.schedule,
        checkpoint=checkpoint,
        script=script,
        calls=calls,
        calls_before=cursor.calls,
    )
