"""Growth: every world of a rollout, its line, its verdict and its forks."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchflow_contracts import (
    BenchFlowError,
    Branched,
    BranchRecord,
    NodeValued,
    RolloutNode,
    StoreError,
)

from benchflow_kernel.branch import POLICY_NAME, REPLAY_REASON, Checkpoint, check_invariant
from benchflow_kernel.faults import boundary, shielded, within
from benchflow_kernel.tree import value_of
from benchflow_kernel.world import Plan, World

from .journal import Journal
from .line import Line
from .start import Fork, Start
from .store import log_dir_of
from .verify import verify


@dataclass(slots=True)
class Tally:
    """What became of the lines of a rollout."""

    graded: int = 0
    """Leaves that came to their verdict, scored or not."""
    losses: list[BenchFlowError] = field(default_factory=list[BenchFlowError])
    """Why children were lost."""
    leaks: list[BenchFlowError] = field(default_factory=list[BenchFlowError])
    """What could not be undone."""

    @property
    def failure(self) -> BenchFlowError | None:
        """The first loss, when nothing but losses came of the rollout."""
        return self.losses[0] if self.losses and not self.graded else None


class Growth:
    """Runs lines, at most `budget.concurrency` worlds at once, and forks them."""

    def __init__(self, plan: Plan, journal: Journal, directory: Path | None, tally: Tally) -> None:
        policy = plan.config.branch
        self._plan = plan
        self._journal = journal
        self._directory = directory
        self._tally = tally
        self._slots = asyncio.Semaphore(1 if policy is None else policy.budget.concurrency)

    async def grow(self, start: Start) -> None:
        """Run the line of `start` and everything that forks from it.

        The failure of a child is recorded in the tree and does not reach its siblings.

        Raises:
            BenchFlowError: The root's own line failed.
            StoreError: The record cannot be written; everything is torn down.
        """
        async with self._slots:
            fork = await self._inhabit(start)
        if fork is None:
            return
        try:
            await self._branch(fork)
        finally:
            if fork.checkpoint is not start.checkpoint:
                await shielded(self._discard(fork.checkpoint))

    async def _branch(self, fork: Fork) -> None:
        labels = fork.labels
        record = BranchRecord(
            policy=POLICY_NAME, fidelity="replay", reason=REPLAY_REASON, children=len(labels)
        )
        self._journal.append(Branched, node=fork.node, record=record)
        children = [fork.child(index, self._journal.new_id()) for index in range(len(labels))]
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(self.grow(child))
        self._value(self._journal.node(fork.node))

    async def _inhabit(self, start: Start) -> Fork | None:
        """Give `start` a world, run its line there, and tear the world down."""
        checkpoint = start.checkpoint
        world = World(
            self._plan,
            node=start.id,
            log_dir=log_dir_of(self._directory, start.id, child=checkpoint is not None),
            enter=partial(self._journal.phase, start.id),
            carried={} if checkpoint is None else checkpoint.sessions,
        )
        line = Line(self._plan, self._journal, world, start, self._discard)
        fork: Fork | None = None
        try:
            with boundary("internal"):
                fork = await self._run(start, world, line)
        except BenchFlowError as error:
            self._record_loss(start, line, error)
        finally:
            await shielded(self._leave(start, world, line, forked=fork is not None))
        return fork

    async def _run(self, start: Start, world: World, line: Line) -> Fork | None:
        if start.checkpoint is None:
            world.setup()
            await world.open()
        else:
            self._journal.phase(start.id, "setup")
            world.setup()
            await world.open(start.checkpoint.image)
            await check_invariant(world, start.checkpoint)
        fork = await line.execute()
        if fork is None:
            leaf = await line.finish()
            self._journal.phase(start.id, "verify")
            await verify(self._plan, self._journal, world, leaf)
            self._tally.graded += 1
        return fork

    def _record_loss(self, start: Start, line: Line, error: BenchFlowError) -> None:
        """Note a failed line in the tree; raise when it takes the rollout with it."""
        if isinstance(error, StoreError):
            raise error
        if start.label is not None and not line.has_steps:
            self._journal.lost(start.id, start.node, start.label, error)
        else:
            self._journal.failed(line.tip, error)
        if start.label is None:
            raise error
        self._tally.losses.append(error)

    async def _leave(self, start: Start, world: World, line: Line, *, forked: bool) -> None:
        try:
            self._journal.phase(start.id, "teardown")
        finally:
            self._tally.leaks.extend(await world.aclose())
            checkpoint = line.checkpoint
            if not forked and checkpoint is not None and checkpoint is not start.checkpoint:
                await self._discard(checkpoint)

    async def _discard(self, checkpoint: Checkpoint) -> None:
        seconds = self._plan.config.deadlines.teardown
        try:
            async with within(seconds, "sandbox", "discarding a checkpoint"):
                await self._plan.planes.provider.discard(checkpoint.image)
        except BenchFlowError as error:
            self._tally.leaks.append(error)

    def _value(self, fork: RolloutNode) -> None:
        """Tell V(s) of the fork and of every fork above, the root included."""
        for node in reversed(fork.path):
            if node.branch is not None or node.parent is None:
                value = value_of(node)
                if value is not None:
                    self._journal.append(NodeValued, node=node.id, value=value)
