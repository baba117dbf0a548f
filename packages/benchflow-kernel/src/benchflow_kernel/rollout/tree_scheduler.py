"""TreeScheduler: runs every world of a rollout, its branch, its verdict and its forks."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchflow_contracts import (
    BenchFlowError,
    Branched,
    NodeValued,
    RewardError,
    SandboxCapabilities,
    StoreError,
    WorldClosed,
)

from benchflow_kernel.branch import (
    BranchBudgetTracker,
    CheckpointRefs,
    FidelitySelector,
    MachineSlots,
)
from benchflow_kernel.config import BranchBudget
from benchflow_kernel.faults import boundary, run_shielded, start_shielded
from benchflow_kernel.resolve import Plan
from benchflow_kernel.tree import value_of
from benchflow_kernel.world import World

from .branch_run import BranchRun, ForkServices
from .branch_start import BranchStart, Fork, Position
from .checkpoint_writer import CheckpointWriter
from .record import Journal, log_dir_of
from .verify import score_lowest, verify


@dataclass(slots=True)
class FailureLog:
    """The failures of a rollout's branches, and the number of graded leaves."""

    graded: int = 0
    """Leaves with a verdict, scored or not."""
    losses: list[BenchFlowError] = field(default_factory=list[BenchFlowError])
    """The errors of failed children."""
    leaks: list[BenchFlowError] = field(default_factory=list[BenchFlowError])
    """The errors of the teardown."""

    @property
    def failure(self) -> BenchFlowError | None:
        """The first error of a child, if all children failed."""
        return self.losses[0] if self.losses and not self.graded else None


@dataclass(slots=True)
class BranchResult:
    """The end of a branch: a fork, a leaf, or an error."""

    fork: Fork | None = None
    leaf: str | None = None
    end: Position | None = None
    """The end of the branch, to continue from. The reader owns a reference to its checkpoint."""
    error: BenchFlowError | None = None


class TreeScheduler:
    """Runs branches, at most `budget.concurrency` worlds at once, and forks them.

    Children also wait for a slot of the machine: all rollouts together run at most one child
    for each CPU. Children of a `caller` policy do not wait, because their caller may need all.
    """

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        directory: Path | None,
        failures: FailureLog,
        capabilities: SandboxCapabilities,
    ) -> None:
        policy = plan.config.branch
        budget = BranchBudget() if policy is None else policy.budget
        deadlines = plan.config.deadlines
        refs = CheckpointRefs(plan.planes.provider, deadlines.teardown, failures.leaks)
        self._plan = plan
        self._journal = journal
        self._directory = directory
        self._failures = failures
        self._slots = asyncio.Semaphore(1 if policy is None else budget.concurrency)
        self._services = ForkServices(
            selector=FidelitySelector(capabilities, deadlines.provision),
            budget=BranchBudgetTracker(budget, refs, lambda: journal.tokens),
            refs=refs,
            writer=CheckpointWriter(plan, directory, failures.leaks, journal.node),
        )

    async def run_branch(self, start: BranchStart) -> BranchResult:
        """Run the branch of `start` and all its forks.

        A failure of a child is recorded in the tree and does not affect its siblings. A
        failure of a main branch is raised after the children of its value forks have ended.

        Raises:
            BenchFlowError: A main branch failed.
            StoreError: The record cannot be written; everything is torn down.
        """
        value_forks: list[Fork] = []
        async with AsyncExitStack() as teardowns:
            async with asyncio.TaskGroup() as children:
                slot = await teardowns.enter_async_context(await self._slot(start))
                on_value_fork = partial(self._start_value_fork, children, value_forks)
                result = await self._run_in_world(start, on_value_fork, slot, teardowns)
            if value_forks:
                self._record_values(value_forks[-1].node)
            if result.error is not None and start.main:
                raise result.error
            if result.fork is not None:
                await self._run_children(result.fork)
        return result

    async def _slot(self, start: BranchStart) -> AsyncExitStack:
        """Wait until one more world may run. Closing the result releases the place."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._slots)
            is_called = start.policy is not None and start.policy.kind == "caller"
            if not (start.main or is_called):
                await stack.enter_async_context(MachineSlots.of_this_machine().slot())
            return stack.pop_all()

    def adopt(self, position: Position) -> None:
        """Take ownership of the checkpoint that the rollout begins with."""
        if position.checkpoint is not None:
            self._services.refs.acquire(position.checkpoint)

    async def aclose(self) -> None:
        """Discard every checkpoint that is left. Idempotent."""
        await self._services.refs.aclose()

    def _start_value_fork(
        self, group: asyncio.TaskGroup, value_forks: list[Fork], fork: Fork
    ) -> None:
        value_forks.append(fork)
        group.create_task(self._run_children(fork))

    async def _run_children(self, fork: Fork) -> None:
        """Run the children of a fork, then continue with the best one if the policy requires it."""
        ends: list[Position] = []
        try:
            self._journal.append(Branched, node=fork.node, record=fork.record)
            async with asyncio.TaskGroup() as group:
                for child in fork.children(self._journal.new_id):
                    group.create_task(self._run_child(child, ends))
            self._record_values(fork.node)
            if fork.policy.kind == "best-of":
                await self._continue_best(fork, ends)
        finally:
            for position in (fork.position, *ends):
                await self._services.refs.release(position.checkpoint)

    async def _run_child(self, child: BranchStart, ends: list[Position]) -> None:
        result = await self.run_branch(child)
        if result.end is not None:
            ends.append(result.end)

    async def _continue_best(self, fork: Fork, ends: list[Position]) -> None:
        """Restore the best child of `fork` and run the rest of the schedule from it."""
        best = self._best(fork, ends)
        if best is None:
            error = RewardError(
                "no child can continue: no child that ended its turn has a score",
                hint="read the verdicts of the children",
            )
            self._failures.losses.append(error)
            self._journal.record_failure(fork.node, error)
            return
        for position in [other for other in ends if other is not best]:
            ends.remove(position)
            await self._services.refs.release(position.checkpoint)
        await self.run_branch(fork.winner(self._journal.new_id(), best))
        self._record_values(best.node)

    def _best(self, fork: Fork, ends: list[Position]) -> Position | None:
        """Return the child with the highest reward, the first of equal ones."""
        order = [leaf.id for leaf in self._journal.node(fork.node).leaves]
        scored = [
            (reward, -order.index(position.node), position)
            for position in ends
            if (reward := self._journal.node(position.node).reward) is not None
        ]
        return max(scored, key=lambda entry: entry[:2])[2] if scored else None

    async def _run_in_world(
        self,
        start: BranchStart,
        on_value_fork: Callable[[Fork], None],
        slot: AsyncExitStack,
        teardowns: AsyncExitStack,
    ) -> BranchResult:
        """Create a world for `start`, run its branch in it, and tear it down.

        The world keeps its slot until its teardown. A forked world is torn down while children
        with a slot already run; `teardowns` waits for the teardown.
        """
        checkpoint = start.checkpoint
        world = World(
            self._plan,
            node=start.id,
            log_dir=log_dir_of(self._directory, start.id, child=start.id != start.node),
            on_phase=partial(self._journal.enter_phase, start.id),
            on_created=partial(self._journal.record_sandbox, start.id),
            carried={} if checkpoint is None else checkpoint.sessions,
        )
        run = BranchRun(self._plan, self._journal, world, start, self._services, on_value_fork)
        result = BranchResult()
        try:
            with boundary("internal"):
                await self._run(start, world, run, result)
        except BenchFlowError as error:
            await self._record_loss(start, run, error, result)
        finally:
            close = self._close_world(start, world, run, slot)
            if result.fork is None:
                await run_shielded(close)
            else:
                start_shielded(close, teardowns)
                if self._plan.model_path == "token":  # which the children's files may have
                    await run_shielded(world.close_route(self._failures.leaks))
        return result

    async def _run(
        self, start: BranchStart, world: World, run: BranchRun, result: BranchResult
    ) -> None:
        await run.open()
        position = start.position
        if position.ended:
            result.leaf, ungraded = await run.finish(), position.ungraded_step
        else:
            result.fork = await run.execute()
            if result.fork is not None:
                return
            result.end = await run.capture_end()
            result.leaf, ungraded = await run.finish(), run.progress.ungraded_step
            if self._journal.node(result.leaf).results and not run.progress.has_acted:
                return  # The winner has no turns left, so keep its score.
            await run.save_end()
        self._journal.enter_phase(start.id, "verify")
        await verify(self._plan, self._journal, world, result.leaf, ungraded)
        self._failures.graded += 1

    async def _record_loss(
        self,
        start: BranchStart,
        run: BranchRun,
        error: BenchFlowError,
        result: BranchResult,
    ) -> None:
        """Record a failed branch in the tree; raise if the whole rollout fails."""
        if result.end is not None:
            await self._services.refs.release(result.end.checkpoint)
            result.end = None
        if isinstance(error, StoreError):
            raise error
        cause = run.cause_of(error)
        lost = start.label is not None and not run.has_steps
        node = start.id if lost else run.progress.tip
        if lost:
            self._journal.add_lost_child(node, start.node, start.label, error, cause)
        else:
            self._journal.record_failure(node, error, cause)
        if cause.by == "agent":
            # Otherwise an agent could avoid a bad score by making itself impossible to grade.
            score_lowest(self._journal, self._plan.task, node, cause)
            self._failures.graded += 1
            return
        result.error = error
        if not start.main:
            self._failures.losses.append(error)

    async def _close_world(
        self, start: BranchStart, world: World, run: BranchRun, slot: AsyncExitStack
    ) -> None:
        async with slot:
            try:
                self._journal.enter_phase(start.id, "teardown")
            finally:
                self._failures.leaks.extend(await world.aclose())
                await run.aclose()
            self._journal.append(WorldClosed, node=start.id)

    def _record_values(self, node_id: str) -> None:
        """Record V(s) of the node and of every fork above it, including the root."""
        for node in reversed(self._journal.node(node_id).path):
            forked = node.branch is not None and node.branch.children > 0
            if forked or node.parent is None:
                value = value_of(node)
                if value is not None:
                    self._journal.append(NodeValued, node=node.id, value=value)
