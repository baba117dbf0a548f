"""Growth: every world of a rollout, its line, its verdict and its forks."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchflow_contracts import (
    BenchFlowError,
    BranchBudget,
    Branched,
    Cause,
    NodeValued,
    RewardError,
    SandboxCapabilities,
    StoreError,
    WorldClosed,
    blame,
    expect_host,
)

from benchflow_kernel.branch import Ladder, MachineSlots, Purse, Shelf, check_child, seed_of
from benchflow_kernel.faults import boundary, proven, shielded, shielded_beside
from benchflow_kernel.tree import value_of
from benchflow_kernel.world import Plan, World

from .crossroads import Forking
from .fork import Fork
from .journal import Journal
from .keeper import Keeper
from .line import Line
from .start import Position, Start
from .store import log_dir_of
from .verify import score_lowest, verify


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


@dataclass(slots=True)
class Ending:
    """How a line ended: in a fork, in a leaf, or in an error."""

    fork: Fork | None = None
    leaf: str | None = None
    sealed: Position | None = None
    """How to go on from the leaf. The reader owns one hold of its checkpoint."""
    error: BenchFlowError | None = None


class Growth:
    """Runs lines, at most `budget.concurrency` worlds at once, and forks them.

    Children also wait for a slot of the machine, so that no number of rollouts runs
    more of them than it has CPUs.
    """

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        directory: Path | None,
        tally: Tally,
        capabilities: SandboxCapabilities,
        machine: MachineSlots,
    ) -> None:
        policy = plan.config.branch
        budget = BranchBudget() if policy is None else policy.budget
        deadlines = plan.config.deadlines
        shelf = Shelf(plan.planes.provider, deadlines.teardown, tally.leaks)
        self._plan = plan
        self._journal = journal
        self._directory = directory
        self._tally = tally
        self._machine = machine
        self._slots = asyncio.Semaphore(1 if policy is None else budget.concurrency)
        self._forking = Forking(
            ladder=Ladder(capabilities, deadlines.provision),
            purse=Purse(budget, shelf, lambda: journal.tokens),
            shelf=shelf,
            keeper=Keeper(plan, directory, tally.leaks, journal.node),
        )

    async def grow(self, start: Start) -> Ending:
        """Run the line of `start` and everything that forks from it.

        The failure of a child is recorded in the tree and does not reach its siblings.
        That of a main line is raised once its probes have ended.

        Raises:
            BenchFlowError: A main line failed.
            StoreError: The record cannot be written; everything is torn down.
        """
        probed: list[Fork] = []
        async with AsyncExitStack() as last:
            async with asyncio.TaskGroup() as probes:
                slot = await last.enter_async_context(await self._slot(start))
                probe = partial(self._probe, probes, probed)
                ending = await self._inhabit(start, probe, slot, last)
            if probed:
                self._value(probed[-1].node)
            if ending.error is not None and start.main:
                raise ending.error
            if ending.fork is not None:
                await self._branch(ending.fork)
        return ending

    async def _slot(self, start: Start) -> AsyncExitStack:
        """Wait until one more world may run. Closing the result frees its place."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._slots)
            if not start.main:
                await stack.enter_async_context(self._machine.one())
            return stack.pop_all()

    def adopt(self, position: Position) -> None:
        """Take over the checkpoint that the rollout begins with."""
        if position.checkpoint is not None:
            self._forking.shelf.hold(position.checkpoint)

    async def aclose(self) -> None:
        """Discard every checkpoint that is left. Idempotent."""
        await self._forking.shelf.aclose()

    def _probe(self, group: asyncio.TaskGroup, probed: list[Fork], fork: Fork) -> None:
        probed.append(fork)
        group.create_task(self._branch(fork))

    async def _branch(self, fork: Fork) -> None:
        """Run the children of a fork, and then the best of them, when that is asked."""
        sealed: list[Position] = []
        try:
            self._journal.append(Branched, node=fork.node, record=fork.record)
            async with asyncio.TaskGroup() as group:
                for child in fork.children(self._journal.new_id):
                    group.create_task(self._grow_into(child, sealed))
            self._value(fork.node)
            if fork.policy.kind == "best-of":
                await self._go_on(fork, sealed)
        finally:
            for position in (fork.position, *sealed):
                await self._forking.shelf.release(position.checkpoint)

    async def _grow_into(self, child: Start, sealed: list[Position]) -> None:
        ending = await self.grow(child)
        if ending.sealed is not None:
            sealed.append(ending.sealed)

    async def _go_on(self, fork: Fork, sealed: list[Position]) -> None:
        """Restore the best child of `fork` and run the rest of the schedule from it."""
        best = self._best(fork, sealed)
        if best is None:
            error = RewardError(
                "no child can be gone on from: none of those that ended their turn has a score",
                hint="read the verdicts of the children",
            )
            self._tally.losses.append(error)
            self._journal.failed(fork.node, error)
            return
        for position in [other for other in sealed if other is not best]:
            sealed.remove(position)
            await self._forking.shelf.release(position.checkpoint)
        await self.grow(fork.winner(self._journal.new_id(), best))
        self._value(best.node)

    def _best(self, fork: Fork, sealed: list[Position]) -> Position | None:
        """Return the child with the highest reward; of equal ones, the first."""
        order = [leaf.id for leaf in self._journal.node(fork.node).leaves]
        scored = [
            (reward, -order.index(position.node), position)
            for position in sealed
            if (reward := self._journal.node(position.node).reward) is not None
        ]
        return max(scored, key=lambda one: one[:2])[2] if scored else None

    async def _inhabit(
        self,
        start: Start,
        probe: Callable[[Fork], None],
        slot: AsyncExitStack,
        last: AsyncExitStack,
    ) -> Ending:
        """Give `start` a world, run its line there, and tear the world down.

        The world holds its slot until then. A forked world is torn down beside those of its
        children that have a slot already; `last` waits for that.
        """
        checkpoint = start.checkpoint
        world = World(
            self._plan,
            node=start.id,
            log_dir=log_dir_of(self._directory, start.id, child=start.id != start.node),
            on_phase=partial(self._journal.phase, start.id),
            on_created=partial(self._journal.made, start.id),
            carried={} if checkpoint is None else checkpoint.sessions,
        )
        line = Line(self._plan, self._journal, world, start, self._forking, probe)
        ending = Ending()
        try:
            with boundary("internal"):
                await self._run(start, world, line, ending)
        except BenchFlowError as error:
            cause = _cause_of(error, world, line)
            await self._record_loss(start, line, error, cause, ending)
        finally:
            leave = self._leave(start, world, line, slot)
            if ending.fork is None:
                await shielded(leave)
            else:
                shielded_beside(leave, last)
        return ending

    async def _run(self, start: Start, world: World, line: Line, ending: Ending) -> None:
        await self._open(start, world, line)
        await line.attach()
        ending.fork = await line.execute()
        if ending.fork is not None:
            return
        ending.sealed = await line.seal()
        ending.leaf = await line.finish()
        if self._journal.node(ending.leaf).results and not line.prompted:
            return  # a winner that nothing was left for: its verdict stands
        self._journal.phase(start.id, "verify")
        await verify(self._plan, self._journal, world, ending.leaf, line.ungraded)
        self._tally.graded += 1

    async def _open(self, start: Start, world: World, line: Line) -> None:
        checkpoint = start.checkpoint
        if checkpoint is None:
            world.setup()
            await world.open()
            return
        self._journal.phase(start.id, "setup")
        world.setup()
        await world.open(
            checkpoint.image,
            live=checkpoint.live,
            state=checkpoint.state,
            replay=start.position.calls,
            upload_agent_files=checkpoint.kept,
            step=line.task_step,
        )
        if checkpoint.live is not None:
            await world.evict(checkpoint.live.unused_agents)
        ahead = line.connect if line.opens_at_once else None
        await proven(check_child(world, checkpoint), ahead)
        await world.reseed(seed_of(self._plan.rollout_id, start.id))

    async def _record_loss(
        self, start: Start, line: Line, error: BenchFlowError, cause: Cause, ending: Ending
    ) -> None:
        """Note a failed line in the tree; raise when it takes the rollout with it."""
        if ending.sealed is not None:
            await self._forking.shelf.release(ending.sealed.checkpoint)
            ending.sealed = None
        if isinstance(error, StoreError):
            raise error
        lost = start.label is not None and not line.has_steps
        node = start.id if lost else line.tip
        if lost:
            self._journal.lost(node, start.node, start.label, error, cause)
        else:
            self._journal.failed(node, error, cause)
        if cause.by == "agent":
            # It would be rid of a bad score by making itself impossible to grade.
            score_lowest(self._journal, self._plan.task, node, cause)
            self._tally.graded += 1
            return
        ending.error = error
        if not start.main:
            self._tally.losses.append(error)

    async def _leave(self, start: Start, world: World, line: Line, slot: AsyncExitStack) -> None:
        async with slot:
            try:
                self._journal.phase(start.id, "teardown")
            finally:
                self._tally.leaks.extend(await world.aclose())
                await line.aclose()
            self._journal.append(WorldClosed, node=start.id)

    def _value(self, node_id: str) -> None:
        """Tell V(s) of the node and of every fork above, the root included."""
        for node in reversed(self._journal.node(node_id).path):
            forked = node.branch is not None and node.branch.children > 0
            if forked or node.parent is None:
                value = value_of(node)
                if value is not None:
                    self._journal.append(NodeValued, node=node.id, value=value)


def _cause_of(error: BenchFlowError, world: World, line: Line) -> Cause:
    """Return who caused `error`: the host when it failed processes of a sandbox with an agent."""
    cause = blame(error, inside="agent" if line.acted else "task")
    if not line.acted or cause.by not in {"agent", "unknown"}:
        return cause
    try:
        expect_host(world.sandbox)
    except BenchFlowError as short:
        return Cause(by="host", what=f"{cause.what}; {short}")
    return cause
