"""Crossroads: where a line may fork, and its world as it was there."""

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
    Checkpoint,
    Exchange,
    Ladder,
    Purse,
    Rung,
    Shelf,
    children_of,
    forks_at_ask,
    forks_at_turn,
    needs_floor,
)
from benchflow_kernel.scenes import LoweredTurn
from benchflow_kernel.world import World

from .fork import Fork
from .journal import Journal
from .keeper import Keeper
from .start import Position, Start
from .trail import Trail


@dataclass(frozen=True, slots=True)
class Forking:
    """What all lines of a rollout fork with."""

    ladder: Ladder
    purse: Purse
    shelf: Shelf
    keeper: Keeper


@dataclass(frozen=True, slots=True)
class Here:
    """Where a line is."""

    node: str
    turn: int
    schedule: tuple[LoweredTurn, ...]


class Crossroads:
    """Asks the policy at each state of one line, and captures its world when it is to fork.

    Of a fork that is returned, the caller owns one hold of its checkpoint.
    """

    def __init__(
        self, forking: Forking, journal: Journal, world: World, start: Start, trail: Trail
    ) -> None:
        self._forking = forking
        self._journal = journal
        self._world = world
        self._start = start
        self._trail = trail
        self._states = 0
        self._refused = False

    async def at_turn(self, here: Here) -> Fork | None:
        """Fork at a turn's start, or make sure that a later fork can come back to it.

        Raises:
            FidelityError: The policy demands more than can be had here.
            SnapshotError: The world could not be captured.
        """
        states, self._states = self._states, self._states + 1
        start, policy = self._start, self._start.policy
        if start.checkpoint is not None and not start.resumed and here.turn == start.position.turn:
            return None  # here its parent was forked
        wants = policy is not None and forks_at_turn(policy, here.turn, states)
        if policy is not None and wants and self._allowed(here, policy, None):
            fork = await self._fork(here, policy, None)
            if fork is not None:
                return fork
        if self._forking.keeper.all or (policy is not None and needs_floor(policy, here.turn)):
            await self._floor(here)
        return None

    async def at_ask(self, here: Here, ask: Ask) -> Fork | None:
        """Fork at a question, while the agent waits; `None` leaves it to the user.

        Raises:
            AgentProtocolError: The question is no node of the tree.
            FidelityError: The policy demands more than can be had here.
        """
        policy = self._start.policy
        if policy is None or ask.kind != "question":
            return None
        states, self._states = self._states, self._states + 1
        if not forks_at_ask(policy, ask, states) or not self._allowed(here, policy, ask):
            return None
        step = self._journal.node(here.node).step
        resumed_here = self._start.resumed and here.node == self._start.node
        if not resumed_here and (step is None or step.ask is None or step.ask.id != ask.id):
            raise AgentProtocolError(f"the session did not end a step with ask {ask.id!r}")
        return await self._fork(here, policy, ask)

    def at_carried(self, here: Here, ask: Ask) -> Fork | None:
        """Fork at a question that a kept checkpoint carried in: it is captured already."""
        start, policy = self._start, self._start.policy
        if not start.resumed or policy is None or start.checkpoint is None:
            return None
        states, self._states = self._states, self._states + 1
        if not forks_at_ask(policy, ask, states) or not self._allowed(here, policy, ask):
            return None
        self._forking.shelf.hold(start.checkpoint)
        self._forking.purse.pay()
        return Fork(
            position=start.position,
            policy=policy,
            depth=start.depth,
            fidelity="live",
            reason="a kept checkpoint of this very question",
            ask=ask,
            main=start.main,
        )

    async def seal(self, here: Here) -> Position:
        """Capture the end of a line that may be gone on from. The caller owns one hold."""
        rung = await self._forking.ladder.climb(
            self._world, here.turn, mid_turn=False, require=None
        )
        position = await self._reach(here, rung, None)
        await self._forking.keeper.keep(position, rung.fidelity, fork=False)
        return position

    async def _floor(self, here: Here) -> None:
        """Capture a turn's start; where no session can be carried, the last one stands."""
        floor = await self._forking.ladder.floor(self._world, here.turn)
        if floor is not None:
            await self._advance(here, floor)
            await self._forking.keeper.keep(self._at(here, floor), "state", fork=False)

    async def _fork(self, here: Here, policy: BranchPolicy, ask: Ask | None) -> Fork | None:
        rung = await self._forking.ladder.climb(
            self._world, here.turn, mid_turn=ask is not None, require=policy.require
        )
        if rung.checkpoint is not None and not await self._affords(here, policy, rung.checkpoint):
            return None
        position = await self._reach(here, rung, ask)
        await self._forking.keeper.keep(position, rung.fidelity, fork=True)
        self._forking.purse.pay()
        return Fork(
            position=position,
            policy=policy,
            depth=self._start.depth,
            fidelity=rung.fidelity,
            reason=rung.reason,
            ask=ask,
            main=self._start.main,
        )

    async def _reach(self, here: Here, rung: Rung, ask: Ask | None) -> Position:
        """Return how to come back here, and hold the checkpoint that it takes."""
        question = () if ask is None else (Exchange(turn=here.turn, ask=ask, answer=None),)
        checkpoint, shelf = rung.checkpoint, self._forking.shelf
        if checkpoint is None:
            floor = self._trail.floor
            assert floor is not None, "the first turn always has a checkpoint"
            shelf.hold(floor)
            script = (*self._trail.script, *question)
            return self._at(here, floor, script, self._world.calls_since(self._trail.calls_before))
        if ask is None:
            await self._advance(here, checkpoint)
            shelf.hold(checkpoint)
        else:
            shelf.hold(checkpoint)
            await self._publish(here, checkpoint)
        return self._at(here, checkpoint, question)

    def _at(
        self,
        here: Here,
        checkpoint: Checkpoint,
        script: tuple[Exchange, ...] = (),
        calls: tuple[ModelCall, ...] = (),
    ) -> Position:
        return Position(
            node=here.node,
            turn=here.turn,
            schedule=here.schedule,
            checkpoint=checkpoint,
            script=script,
            calls=calls,
        )

    async def _advance(self, here: Here, floor: Checkpoint) -> None:
        self._forking.shelf.hold(floor)
        await self._publish(here, floor)
        try:
            await self._trail.advance(floor, len(self._world.calls))
        finally:
            await self._forking.shelf.release(floor)

    async def _publish(self, here: Here, taken: Checkpoint) -> None:
        """Tell of a checkpoint that is whole; one that cannot be told of is let go."""
        try:
            self._journal.append(
                Checkpointed,
                node=here.node,
                ref=taken.image.ref,
                layers=taken.layers,
                took_sec=taken.took_sec,
            )
        except BaseException:
            await self._forking.shelf.release(taken)
            raise

    def _allowed(self, here: Here, policy: BranchPolicy, ask: Ask | None) -> bool:
        """Whether the budget has room; the tree is told once per line why it has none."""
        children = children_of(policy, ask)
        refusal = self._forking.purse.refusal(policy.budget, children, self._start.depth)
        return self._told(here, policy, refusal)

    async def _affords(self, here: Here, policy: BranchPolicy, taken: Checkpoint) -> bool:
        """Whether a checkpoint may be held; one that may not is let go."""
        refusal = self._forking.purse.no_room(taken.image.bytes)
        if refusal is not None:
            await self._forking.shelf.release(taken)
        return self._told(here, policy, refusal)

    def _told(self, here: Here, policy: BranchPolicy, refusal: str | None) -> bool:
        if refusal is not None and not self._refused:
            self._refused = True
            record = BranchRecord(
                policy=policy.kind,
                fidelity="replay",
                reason=f"not forked: {refusal}",
                children=0,
            )
            self._journal.append(Branched, node=here.node, record=record)
        return refusal is None
