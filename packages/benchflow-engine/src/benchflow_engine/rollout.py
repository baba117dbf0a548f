"""One rollout of one task: `benchflow.run`."""

import logging
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from benchflow_contracts import (
    BeganFrom,
    Event,
    FinishedRollout,
    ModelCall,
    NodeScored,
    PhaseEntered,
    RolloutFinished,
    RolloutIdentity,
    RolloutRecord,
    RolloutStarted,
    RolloutTree,
    SandboxImage,
    SandboxProvider,
    StoreError,
    Task,
    Trajectory,
    UpstreamAnswer,
    UsageError,
    WorldClosed,
)
from benchflow_contracts.redaction import redacting
from benchflow_export import write_trainer_rows
from benchflow_kernel import Planes, RolloutConfig, continue_from, run_rollout, trajectories
from benchflow_store import (
    RESUMED_FROM,
    StoredRollout,
    new_rollout_id,
    record_from_tree,
    write_inputs,
    write_prior_calls,
    write_result,
    write_rollout,
)

from .config import RunConfig
from .flags import run_config
from .learner import LearnerDirectory
from .model_gateway import open_gateways
from .pause import pausable_sandboxes
from .planes import assemble, open_provider
from .preflight import check_agent, check_endpoint, check_provider
from .secret_redactor import SecretRedactor
from .secrets import recorded_config, secrets_of
from .task_formats import runnable_task

Subscriber = Callable[[Event], None]
_logger = logging.getLogger(__name__)
_TIMED = {RolloutStarted, PhaseEntered, NodeScored, WorldClosed, RolloutFinished}


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished rollout."""

    tree: RolloutTree
    record: RolloutRecord
    directory: Path | None
    """The directory of its files, if one was requested."""

    @property
    def reward(self) -> float | None:
        """V of the root: the return of a rollout without forks; `None` if nothing was scored."""
        return self.record.reward

    @property
    def trajectories(self) -> list[Trajectory]:
        """One trajectory for each leaf."""
        return trajectories(self.tree)


@dataclass(frozen=True, slots=True)
class Continuation:
    """The start of a rollout that resumes an earlier one."""

    kept: Path | None
    """The directory of a saved checkpoint; `None` is the start of the task."""
    prompt: str | None = None
    """The next prompt; `None` runs the remaining turns of the original rollout."""
    calls: Sequence[ModelCall] = ()
    """The recorded model calls of the original rollout, up to the checkpoint."""
    image: SandboxImage | None = None
    """The image of the checkpoint, if the provider has loaded it."""
    began: BeganFrom | None = None
    """Set if the rollout is another attempt at the same one, for the log."""

    async def run(
        self,
        task: Task,
        config: RolloutConfig,
        planes: Planes,
        *,
        rollout_id: str,
        identity: RolloutIdentity,
        directory: Path | None,
        subscribers: Sequence[Subscriber],
    ) -> RolloutTree:
        """Resume; see the kernel's `continue_from`."""
        began = self.began
        meta = None if began is None else {RESUMED_FROM: began.model_dump(mode="json")}
        if self.kept is None:
            return await run_rollout(
                task,
                config,
                planes,
                rollout_id=rollout_id,
                identity=identity,
                directory=directory,
                subscribers=subscribers,
                meta=meta,
            )
        return await continue_from(
            self.kept,
            task,
            config,
            planes,
            prompt=self.prompt,
            rollout_id=rollout_id,
            identity=identity,
            directory=directory,
            subscribers=subscribers,
            image=self.image,
            meta=meta,
        )


async def run(
    task: str | Path | Task,
    *,
    config: RunConfig | None = None,
    jobs_dir: str | Path | None = None,
    subscribers: Sequence[Subscriber] = (),
    **flags: Any,  # noqa: ANN401 - checked by RunFlags
) -> RunResult:
    """Run one rollout and return its scored tree.

    `flags` are flags of `bench run`, such as `agent="oracle"` or `branch_n=2`; they override
    `config`. With `jobs_dir`, the rollout's files are written below it.
    A failed rollout is a result whose tree says why; only bad input raises an error.

    Raises:
        BenchFlowError: The task, an option or the manifest is wrong.
    """
    chosen = run_config(config, **flags)
    if chosen.reward.group_import_path is not None:
        raise UsageError(
            "a group reward scores several rollouts of a task, and this is one rollout",
            hint="use `bench eval create` or `bench serve`",
        )
    check_agent(chosen)
    loaded = task if isinstance(task, Task) else runnable_task(task, chosen.adapter_options())
    await check_endpoint(chosen)
    async with open_provider(chosen) as provider:
        return await run_in(
            provider,
            loaded,
            chosen,
            directory=None if jobs_dir is None else Path(jobs_dir) / new_rollout_id(loaded.id),
            subscribers=subscribers,
        )


async def run_in(  # noqa: PLR0913 - one keyword per part of a run
    provider: SandboxProvider,
    task: Task,
    config: RunConfig,
    *,
    directory: Path | None = None,
    subscribers: Sequence[Subscriber] = (),
    identity: RolloutIdentity | None = None,
    continuation: "Continuation | None" = None,
    prepare: Callable[[Planes], Planes] | None = None,
    on_answer: Callable[[UpstreamAnswer], None] | None = None,
    learner: LearnerDirectory | None = None,
    rollout_id: str | None = None,
) -> RunResult:
    """Run one rollout on a provider that the caller owns.

    Its sandboxes have `identity`, with the rollout added; the record has its slot. With
    `continuation` it resumes from a saved checkpoint. `prepare` may change the planes right before
    they are used. `on_answer` hears how the model endpoint answers the gateway's calls. `learner`
    is the learner store, whose use is in the record. `rollout_id` names a rollout without a
    directory, whose name it is otherwise. The switch of `pausing.pausable_by` pauses the
    rollout: its sandboxes and its time limits stand still. A cancellation is recorded and raised.
    """
    rollout_id = directory.name if directory else rollout_id or new_rollout_id(task.id)
    identity = identity or RolloutIdentity()
    # Only a token for sandboxes outside has the secret. To mask it costs time at each event.
    secret = None if config.model.access.mode == "tunnel" else token_urlsafe(24)
    hidden = secrets_of(config, (task.id, rollout_id)) | ({secret} if secret else set[str]())
    with redacting(SecretRedactor(hidden)):
        async with open_gateways(config, directory, on_answer, secret) as (gateway, judge, probe):
            planes = replace(assemble(config, task, provider, gateway), judge=judge)
            if prepare is not None:
                planes = prepare(planes)
            continues = continuation is not None and continuation.kept is not None
            rollout = config.rollout_config()
            await check_provider(config, task, planes, rollout=rollout, continues=continues)
            if directory is not None:
                _write_beginning(directory, task, config, rollout_id, continuation)
            start = run_rollout if continuation is None else continuation.run
            times = _TimedEvents()
            try:
                async with pausable_sandboxes(planes.provider) as pausable:
                    tree = await start(
                        task,
                        rollout,
                        replace(planes, provider=pausable, shared_files=learner),
                        rollout_id=rollout_id,
                        identity=_identity(identity, rollout_id, planes),
                        directory=directory,
                        subscribers=(*subscribers, times.receive),
                    )
            except CancelledError:
                _write_cancelled(directory, task, config, identity)
                raise
        record = record_from_tree(tree, task, config.ran_with, identity=identity, probe=probe)
        if learner is not None:
            record = await learner.finish(record)
        if directory is not None:
            write_outcome(directory, tree, record, task, times.events)
    return RunResult(tree=tree, record=record, directory=directory)


def _write_beginning(
    directory: Path,
    task: Task,
    config: RunConfig,
    rollout_id: str,
    continuation: "Continuation | None",
) -> None:
    """Write what is known before the rollout runs."""
    recorded = recorded_config(config, (task.id, rollout_id))
    write_inputs(directory, task, config.ran_with, recorded)
    if continuation is not None:
        write_prior_calls(directory, continuation.calls)


class _TimedEvents:
    """Keeps the events from which the times of phases and verdicts follow: few, and small ones."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def receive(self, event: Event) -> None:
        """Keep an event of these kinds."""
        if type(event) in _TIMED:
            self.events.append(event)


def write_outcome(
    directory: Path,
    tree: RolloutTree,
    record: RolloutRecord,
    task: Task,
    events: Sequence[Event] | None = None,
) -> None:
    """Write the files of a rollout that has ended, its summary last.

    `events` are the events of the log with the times of phases and verdicts, from the first event
    to the last one (default: all events, which are read).

    Raises:
        StoreError: A file cannot be written.
    """
    if events is None:
        events = StoredRollout(directory).log.events
    write_rollout(directory, tree, events)
    finished = FinishedRollout(
        tree=tree,
        task_digest=record.task_digest,
        instruction=task.instruction,
        agent=record.agent,
        model=record.model,
        sandbox=record.sandbox,
        finished_at=record.finished_at,
        task_path=task.path,
        task_format=task.format,
        events=events,
        directory=directory,
    )
    write_trainer_rows(directory, finished)
    write_result(directory, record)


def _write_cancelled(
    directory: Path | None, task: Task, config: RunConfig, identity: RolloutIdentity
) -> None:
    if directory is None:
        return
    try:
        tree = StoredRollout(directory).tree
        write_result(directory, record_from_tree(tree, task, config.ran_with, identity=identity))
    except StoreError as error:
        # The caller waits for the cancellation, not for this error.
        _logger.info("a cancelled rollout has no record: %s", error)


def _identity(given: RolloutIdentity, rollout_id: str, planes: Planes) -> RolloutIdentity:
    environment = None if planes.environment is None else planes.environment().name
    return given.model_copy(update={"rollout": rollout_id, "environment": environment})
