"""Run a rollout: worlds and their branches, recorded as one tree."""

import logging
from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import uuid4

from benchflow_contracts import (
    BenchFlowError,
    NodeCredited,
    NodeFailed,
    NodeScored,
    RolloutFinished,
    RolloutIdentity,
    RolloutStarted,
    RolloutTree,
    SandboxCapabilities,
    SandboxImage,
    StoreError,
    Task,
)

from benchflow_kernel.config import RolloutConfig
from benchflow_kernel.events import EventCallback, EventLog
from benchflow_kernel.faults import boundary, node_error, within
from benchflow_kernel.resolve import Plan, Planes, Schedule, make_plan
from benchflow_kernel.tree import credit_of

from .branch_start import BranchStart, Position
from .checkpoint_manifest import IMAGE, CheckpointManifest, read_manifest
from .preflight import (
    check_capabilities,
    check_limits,
    check_shared_files,
    check_turns,
    needs_capabilities,
)
from .record import Journal, meta_of, write_tree
from .resume import is_only_graded, resumed_position, resumed_turns
from .tree_scheduler import FailureLog, TreeScheduler
from .verify import is_ungraded

_logger = logging.getLogger(__name__)

_NO_CAPABILITIES = SandboxCapabilities(isolation="none")


async def run_rollout(
    task: Task,
    config: RolloutConfig,
    planes: Planes,
    *,
    rollout_id: str | None = None,
    identity: RolloutIdentity | None = None,
    directory: Path | None = None,
    subscribers: Sequence[EventCallback] = (),
    meta: Mapping[str, object] | None = None,
) -> RolloutTree:
    """Run one rollout to its end and return its tree.

    A failure is data: it is attributed to one boundary and recorded at its node and in
    `RolloutTree.error`. The tree then has the status `failed`, and the node has no reward. An
    agent that runs out of time or stops early is not a failure: its result is graded, and its
    node says why it ended. The status is `ungraded` if no leaf has a verdict. An error with
    the status `completed` happened in the teardown; the verdict is valid.

    With `directory`, each event is written to `events.jsonl` at once, states go below `states/`,
    and `tree.json` is written at the end. `agent/` and `verifier/` belong to the world of the root,
    and `branches/NODE/{agent,verifier}` to the world of each child.

    Everything is torn down before this returns or raises. A cancellation is recorded in the
    log and raised again.

    `identity` is what the caller knows of the rollout. The kernel adds the rest for each sandbox.
    `meta` has more entries for the first event of the log.

    Raises:
        StoreError: The record cannot be written, or `directory` has a record already.
    """
    with _log(directory, subscribers) as log:
        rollout = Rollout(task, config, planes, Journal(log, directory), directory, identity)
        rollout.meta = dict(meta or {})
        return await rollout.run(rollout_id or uuid4().hex)


async def continue_from(  # noqa: PLR0913 - the published signature
    checkpoint: Path,
    task: Task,
    config: RolloutConfig,
    planes: Planes,
    *,
    prompt: str | None = None,
    rollout_id: str | None = None,
    identity: RolloutIdentity | None = None,
    directory: Path | None = None,
    subscribers: Sequence[EventCallback] = (),
    image: SandboxImage | None = None,
    meta: Mapping[str, object] | None = None,
) -> RolloutTree:
    """Resume from a saved checkpoint in a new rollout, and return its tree.

    `checkpoint` is its directory (see `saved_checkpoints`); it is only read. The
    new tree begins with the steps to the checkpoint. The remaining turns of the earlier rollout
    run, or one turn with `prompt` instead. An open question is answered first, or forked by
    `config.branch`; turns count from the first turn of the earlier rollout. Roles come from
    `config`, by name: a role with the same agent continues its session, a role with another
    agent starts a new session in the restored world. If the agents had ended and there is no
    `prompt`, the world is only graded. `image` is the checkpoint's image, if the provider has
    loaded it; the rollout discards it. `meta` replaces `continued_from` in the log. For the rest,
    see `run_rollout`.

    Raises:
        StoreError: The checkpoint is missing or incomplete, or the record cannot be written.
    """
    manifest = read_manifest(checkpoint)
    with _log(directory, subscribers) as log:
        rollout = Rollout(task, config, planes, Journal(log, directory), directory, identity)
        rollout.origin = origin = Origin(checkpoint, manifest, prompt, image)
        rollout.meta = {"continued_from": origin.meta} if meta is None else dict(meta)
        return await rollout.run(rollout_id or uuid4().hex)


def _log(directory: Path | None, subscribers: Sequence[EventCallback]) -> EventLog:
    log = EventLog(None if directory is None else directory / "events.jsonl")
    for subscriber in subscribers:
        log.subscribe(subscriber)
    return log


@dataclass(frozen=True, slots=True)
class Origin:
    """The saved checkpoint that a rollout resumes from."""

    path: Path
    manifest: CheckpointManifest
    prompt: str | None
    image: SandboxImage | None

    @property
    def only_graded(self) -> bool:
        """Whether no turn is left to run."""
        return is_only_graded(self.manifest, self.prompt)

    @property
    def meta(self) -> dict[str, str]:
        """The entry for the log."""
        saved = self.manifest
        return {"rollout_id": saved.rollout_id, "node": saved.node, "ref": saved.ref}


class Rollout:
    """One rollout, for one call of `run`."""

    def __init__(
        self,
        task: Task,
        config: RolloutConfig,
        planes: Planes,
        journal: Journal,
        directory: Path | None,
        identity: RolloutIdentity | None,
    ) -> None:
        self._task = task
        self._config = config
        self._planes = planes
        self._journal = journal
        self._directory = directory
        self._identity = identity
        self._failures = FailureLog()
        self.origin: Origin | None = None
        self.meta: dict[str, object] = {}

    async def run(self, rollout_id: str) -> RolloutTree:
        """Run the rollout; see `run_rollout`."""
        root = self._journal.new_id()
        self._journal.append(
            RolloutStarted,
            rollout_id=rollout_id,
            task_id=self._task.id,
            root=root,
            meta=self._meta(),
        )
        try:
            with boundary("internal"):
                await self._run_branches(rollout_id, root)
        except CancelledError:
            self._finish_cancelled()
            raise
        except BenchFlowError as error:
            if error.boundary == "internal":
                _logger.exception("a defect of BenchFlow ended rollout %s", rollout_id)
            self._finish("failed", error)
        else:
            failure = self._failures.failure
            if failure is not None:
                self._finish("failed", failure)
            else:
                ungraded = is_ungraded(self._journal.tree)
                self._finish("ungraded" if ungraded else "completed", None)
        return self._journal.tree

    def _meta(self) -> dict[str, object]:
        meta: dict[str, object] = meta_of(self._task, self._config, self._planes)
        if self._identity is not None:
            meta["identity"] = self._identity.model_dump(mode="json")
        return {**meta, **self.meta}

    async def _run_branches(self, rollout_id: str, root: str) -> None:
        self._journal.enter_phase(root, "setup")
        seconds = self._config.deadlines.provision
        async with within(seconds, "agent", "making the agents available"):
            plan = await make_plan(
                self._task,
                self._config,
                self._planes,
                rollout_id,
                identity=self._identity,
                schedule=self._schedule,
            )
        check_limits(plan)
        check_shared_files(plan)
        scheduler = TreeScheduler(
            plan,
            self._journal,
            self._directory,
            self._failures,
            await self._capabilities(plan),
        )
        try:
            position = await self._begin(plan, root)
            scheduler.adopt(position)
            resumed = self.origin is not None
            policy, world = self._config.branch, position.node
            await scheduler.run_branch(
                BranchStart(world, position, policy=policy, main=True, resumed=resumed)
            )
        finally:
            await scheduler.aclose()

    @property
    def _schedule(self) -> Schedule | None:
        origin = self.origin
        if origin is None:
            return None
        return partial(resumed_turns, manifest=origin.manifest, prompt=origin.prompt)

    async def _begin(self, plan: Plan, root: str) -> Position:
        """Return the start of the root's branch. Load the files of a saved checkpoint."""
        origin = self.origin
        if origin is None:
            return Position(node=root, turn=0, schedule=plan.turns)
        image, only_graded = origin.image, origin.only_graded
        if image is None:
            async with within(self._config.deadlines.start, "snapshot", "loading the checkpoint"):
                image = await self._planes.provider.load(origin.path / IMAGE)
        try:
            tip = self._replay_history(root, origin)
            return resumed_position(plan, origin.manifest, image, tip, only_graded=only_graded)
        except BenchFlowError:
            await self._planes.provider.discard(image)
            raise

    def _replay_history(self, root: str, origin: Origin) -> str:
        """Add the steps to a saved checkpoint below `root`; return the last node."""
        tip = root
        for saved in origin.manifest.history:
            if saved.step is not None:
                node = self._journal.new_id()
                self._journal.add_step(tip, node, saved.step, saved.label)
                tip = node
            for name, result in saved.results.items():
                self._journal.append(NodeScored, node=tip, name=name, result=result)
            if saved.error is not None and origin.only_graded:
                self._journal.append(NodeFailed, node=tip, error=saved.error)
        return tip

    async def _capabilities(self, plan: Plan) -> SandboxCapabilities:
        """Return the provider's capabilities. Do not ask without a fork or a saved checkpoint."""
        if not needs_capabilities(plan.config):
            return _NO_CAPABILITIES
        with boundary("sandbox"):
            capabilities = await self._planes.provider.capabilities()
        check_turns(plan)
        check_capabilities(plan, capabilities)
        return capabilities

    def _finish(
        self,
        status: Literal["completed", "ungraded", "failed", "cancelled"],
        error: BenchFlowError | None,
    ) -> None:
        if error is None and self._failures.leaks:
            error = self._failures.leaks[0]
        record = None if error is None else node_error(error)
        self._record_credit()
        self._journal.append(RolloutFinished, status=status, error=record)
        if self._directory is not None:
            write_tree(self._journal.tree, self._directory)

    def _record_credit(self) -> None:
        """Record the advantages of a forked tree. A tree without forks has none."""
        tree = self._journal.tree
        if not any(node.branch is not None and node.branch.children for node in tree.nodes):
            return
        for node, credit in credit_of(tree).items():
            self._journal.append(NodeCredited, node=node, credit=credit)

    def _finish_cancelled(self) -> None:
        try:
            self._finish("cancelled", None)
        except StoreError as error:
            # The caller waits for the cancellation, not for this error.
            _logger.info("the record of a cancelled rollout is incomplete: %s", error)
