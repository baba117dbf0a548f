"""The Rollout: worlds and their lines, grown into one tree."""

import logging
from asyncio import CancelledError
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from uuid import uuid4

from benchflow_contracts import (
    BenchFlowError,
    NodeCredited,
    RolloutConfig,
    RolloutFinished,
    RolloutStarted,
    RolloutTree,
    SandboxCapabilities,
    StoreError,
    Task,
)

from benchflow_kernel.branch import MachineSlots, check_fidelity, check_turns
from benchflow_kernel.events import EventCallback, EventLog
from benchflow_kernel.faults import boundary, node_error, within
from benchflow_kernel.tree import credit_of
from benchflow_kernel.world import Plan, Planes, make_plan

from .growth import Growth, Tally
from .journal import Journal
from .record import meta_of
from .start import Position, Start
from .store import write_tree

_logger = logging.getLogger(__name__)


async def run_rollout(
    task: Task,
    config: RolloutConfig,
    planes: Planes,
    *,
    rollout_id: str | None = None,
    directory: Path | None = None,
    subscribers: Sequence[EventCallback] = (),
) -> RolloutTree:
    """Run one rollout to its end and return its tree.

    A failure is data: it is attributed to one boundary, recorded at the node where it
    struck and in `RolloutTree.error`, and the tree comes back with status `failed` and
    without a reward there. An agent that runs out of time or stops early is no failure:
    what it left behind is graded, and its node says why it ended. An error beside the
    status `completed` is one of the teardown; the verdict stands.

    With `directory`, `events.jsonl` is written there as it happens and `tree.json` at
    the end; `agent/` and `verifier/` belong to the root's world and
    `branches/NODE/{agent,verifier}` to each child's.

    Everything that was started is torn down before this returns or raises. On
    cancellation the log says so, and the cancellation is raised again.

    Raises:
        StoreError: The record cannot be written, or `directory` holds one already.
    """
    path = None if directory is None else directory / "events.jsonl"
    with EventLog(path) as log:
        for subscriber in subscribers:
            log.subscribe(subscriber)
        rollout = Rollout(task, config, planes, Journal(log), directory)
        return await rollout.run(rollout_id or uuid4().hex)


class Rollout:
    """One rollout, for one call of `run`."""

    def __init__(
        self,
        task: Task,
        config: RolloutConfig,
        planes: Planes,
        journal: Journal,
        directory: Path | None,
    ) -> None:
        self._task = task
        self._config = config
        self._planes = planes
        self._journal = journal
        self._directory = directory
        self._tally = Tally()

    async def run(self, rollout_id: str) -> RolloutTree:
        """Run it; see `run_rollout`."""
        root = self._journal.new_id()
        self._journal.append(
            RolloutStarted,
            rollout_id=rollout_id,
            task_id=self._task.id,
            root=root,
            meta=meta_of(self._task, self._config, self._planes),
        )
        try:
            with boundary("internal"):
                await self._live(rollout_id, root)
        except CancelledError:
            self._finish_cancelled()
            raise
        except BenchFlowError as error:
            if error.boundary == "internal":
                _logger.exception("a defect of BenchFlow ended rollout %s", rollout_id)
            self._finish("failed", error)
        else:
            failure = self._tally.failure
            self._finish("completed" if failure is None else "failed", failure)
        return self._journal.tree

    async def _live(self, rollout_id: str, root: str) -> None:
        self._journal.phase(root, "setup")
        seconds = self._config.deadlines.provision
        async with within(seconds, "agent", "making the agents available"):
            plan = await make_plan(self._task, self._config, self._planes, rollout_id)
        growth = Growth(
            plan,
            self._journal,
            self._directory,
            self._tally,
            await self._capabilities(plan),
            MachineSlots.of_this_machine(),
        )
        position = Position(node=root, turn=0, schedule=plan.turns)
        try:
            await growth.grow(Start(root, position, policy=self._config.branch, main=True))
        finally:
            await growth.aclose()

    async def _capabilities(self, plan: Plan) -> SandboxCapabilities:
        """Return what forks can be built on; without a policy nobody asks for any."""
        policy = self._config.branch
        if policy is None:
            return SandboxCapabilities(isolation="none")
        check_turns(policy, plan.max_turns)
        with boundary("sandbox"):
            capabilities = await self._planes.provider.capabilities()
        names = {turn.role.agent for turn in plan.turns}
        agents = [(name, self._planes.agents[name].capabilities()) for name in sorted(names)]
        check_fidelity(policy, self._planes.provider.name, capabilities, agents)
        return capabilities

    def _finish(
        self, status: Literal["completed", "failed", "cancelled"], error: BenchFlowError | None
    ) -> None:
        if error is None and self._tally.leaks:
            error = self._tally.leaks[0]
        record = None if error is None else node_error(error)
        self._give_credit()
        self._journal.append(RolloutFinished, status=status, error=record)
        if self._directory is not None:
            write_tree(self._journal.tree, self._directory)

    def _give_credit(self) -> None:
        """Record the advantages of a tree that was forked; a line on its own has none."""
        tree = self._journal.tree
        if not any(node.branch is not None and node.branch.children for node in tree.nodes):
            return
        for node, credit in credit_of(tree).items():
            self._journal.append(NodeCredited, node=node, credit=credit)

    def _finish_cancelled(self) -> None:
        try:
            self._finish("cancelled", None)
        except StoreError:
            # The cancellation is what the caller waits for.
            _logger.exception("the record of a cancelled rollout is incomplete")
