"""The executor that runs a dispatch by the engine, and the meaning of its completion."""

import logging
import re
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from benchflow_contracts import (
    BenchFlowError,
    Completion,
    Dispatch,
    Event,
    NodeError,
    RolloutIdentity,
    RolloutTree,
    SandboxProvider,
    StoreError,
    Task,
    UpstreamAnswer,
    UsageError,
)
from benchflow_contracts.limits import HasCosts
from benchflow_engine.config import RunConfig
from benchflow_engine.learner import LearnerDirectory
from benchflow_engine.rollout import RunResult, run_in
from benchflow_kernel import Planes
from benchflow_store import MODEL_DIR, read_model_calls, record_from_error, write_result

from .attempt_events import EventCollector, stored_events
from .budget import SANDBOX_COST, measured_judge
from .holding import RolloutHolds
from .scheduling import End

RESUMES: Final = "resumes"
"""The key of a payload: the rollout of an earlier attempt, whose rest is run."""
_logger = logging.getLogger(__name__)


class RolloutInputs(NamedTuple):
    """What a dispatch stands for."""

    provider: SandboxProvider
    task: Task
    config: RunConfig
    learner: LearnerDirectory | None = None
    """The learner store, in a sequential job."""


class AttemptModels(Protocol):
    """Chooses the model endpoint of each attempt, instead of the configuration of the job."""

    def configure(self, dispatch: Dispatch, config: RunConfig) -> RunConfig:
        """Return the configuration of an attempt that is about to start."""
        ...

    def prepare(self, dispatch: Dispatch, planes: Planes) -> Planes:
        """Return the planes whose gateway sends the calls; see `prepare` of `run_in`."""
        ...


RETRIED: Final = ("sandbox", "reward")
"""Boundaries of errors that are tried again. The faults of an agent or its model stay its."""
_VARIABLE_PARTS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}\b|\d+(\.\d+)?|/[^\s:'\"]+")
_FINGERPRINT_CHARS = 200


class EngineExecutor:
    """Runs each dispatch. Its files are in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        inputs: Callable[[Dispatch], RolloutInputs],
        *,
        on_answer: Callable[[UpstreamAnswer], None] | None = None,
        job_dir: Path | None = None,
        holds: RolloutHolds | None = None,
        models: AttemptModels | None = None,
    ) -> None:
        """Prepare the executor.

        Args:
            directory: The parent of the rollouts' directories.
            inputs: Returns what a dispatch stands for.
            on_answer: Hears how model endpoints answer; see `run_in`.
            job_dir: The directory of the job, as its sandboxes are labelled (default:
                `directory`).
            holds: May pause a rollout while it runs.
            models: Chooses where the model calls go.
        """
        self._directory = directory
        self._place = str((job_dir or directory).resolve())
        self._inputs = inputs
        self._on_answer = on_answer
        self._holds = holds
        self._models = models

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        """Run the rollout; see `Executor`. Its record is on disk on return, if the disk works."""
        with nullcontext() if self._holds is None else self._holds.rollout(dispatch):
            return await self._complete(dispatch, on_event)

    async def _complete(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        inputs = self._inputs(dispatch)
        if self._models is not None:
            inputs = inputs._replace(config=self._models.configure(dispatch, inputs.config))
        task, config = inputs.task, inputs.config
        home = self._directory / dispatch.rollout
        identity = RolloutIdentity(
            scope=dispatch.job,
            job_dir=self._place,
            slot=dispatch.slot,
            attempt=dispatch.attempt,
            epoch=str(dispatch.epoch),
        )
        started = time.time()
        measured: dict[str, float] = {}
        collector = EventCollector()

        def receive(event: Event) -> None:
            collector.receive(event)
            on_event(event)

        try:
            result = await self._run(inputs, dispatch, identity, receive)
            record, measured = result.record, measure(result.tree, result.directory or home)
            measured |= measured_judge(record.judge)
        except BenchFlowError as error:
            ran = config.ran_with
            record = record_from_error(home.name, task, ran, error, identity=identity)
            try:
                write_result(home, record)
            except StoreError as failure:
                record = record_from_error(home.name, task, ran, failure, identity=identity)
        if isinstance(inputs.provider, HasCosts):
            cost = inputs.provider.cost_usd(dispatch.rollout)
            measured = measured if cost is None else {**measured, SANDBOX_COST: cost}
        completion = Completion.of(
            dispatch,
            "scored" if record.is_final else "unscored",
            record=record.model_dump(mode="json"),
            error=record.error,
            measured=measured,
            # An attempt that had ended before has its events on disk.
            events=collector.events() or stored_events(self._directory / record.rollout_id),
            started_at=started,
            finished_at=record.finished_at,
        )
        return completion.model_copy(update={"rollout": record.rollout_id})

    async def _run(
        self,
        inputs: RolloutInputs,
        dispatch: Dispatch,
        identity: RolloutIdentity,
        on_event: Callable[[Event], None],
    ) -> RunResult:
        """Run the rollout from its start, or the rest of an earlier attempt.

        If an earlier attempt lacks only its summary, the result is of its directory.
        """
        home = self._directory / dispatch.rollout
        models = self._models
        prepare = None if models is None else partial(models.prepare, dispatch)
        earlier = dispatch.payload.get(RESUMES)
        if isinstance(earlier, str):
            from benchflow_engine.resume import resume_rollout, was_cut_short  # noqa: PLC0415

            try:
                if was_cut_short(self._directory / earlier):
                    return await resume_rollout(
                        self._directory / earlier,
                        out=home,
                        provider=inputs.provider,
                        config=inputs.config,
                        identity=identity,
                        subscribers=(on_event,),
                        prepare=prepare,
                        on_answer=self._on_answer,
                    )
            except UsageError as error:
                _logger.warning("%s runs from its start: %s", dispatch.slot, error)
        return await run_in(
            inputs.provider,
            inputs.task,
            inputs.config,
            directory=home,
            subscribers=(on_event,),
            identity=identity,
            prepare=prepare,
            on_answer=self._on_answer,
            learner=inputs.learner,
        )


def measure(tree: RolloutTree, directory: Path) -> dict[str, float]:
    """Return the tokens of all steps, and the cost of the recorded model calls.

    What no step or no call reported is left out.
    """
    usages = [node.step.usage for node in tree.nodes if node.step and node.step.usage]
    measured: dict[str, float] = {}
    if usages:
        measured["tokens_in"] = float(sum(usage.input_tokens for usage in usages))
        measured["tokens_out"] = float(sum(usage.output_tokens for usage in usages))
    if (directory / MODEL_DIR).is_dir():
        calls = read_model_calls(directory).values()
        costs = [call.cost_usd for call in calls if call.cost_usd is not None]
        if costs:
            measured["cost_usd"] = sum(costs)
    return measured


def end_of(completion: Completion, boundaries: Collection[str] = RETRIED) -> End:
    """Return what a completion means for the schedule.

    An attempt that was cancelled, and an error that may pass, do not count against the task. An
    error of the host may pass, and an error of `boundaries`.
    """
    error = completion.error
    if completion.status == "scored":
        return End(scored=True)
    if completion.status == "cancelled" and error is None:
        return End(scored=False)
    if completion.status == "lost":
        return End(scored=False, fingerprint="lost", may_pass=True, reason="the worker was lost")
    if error is None:
        return End(scored=False, fingerprint="no score", reason="the rollout has no score")
    from .status import error_text  # noqa: PLC0415 - a job without errors needs no views

    return End(
        scored=False,
        fingerprint=fingerprint(error),
        may_pass=may_pass(error, boundaries),
        retry_after=error.retry_after or 0,
        # Every other rollout writes to the same disk.
        stops_job=error.stops_job or error.boundary == "store",
        reason=error_text(error.type, error.message),
    )


def may_pass(error: NodeError, boundaries: Collection[str] = RETRIED) -> bool:
    """Return whether the next attempt may succeed: an error of the host, or of `boundaries`."""
    return error.retryable and (error.boundary in boundaries or error.caused_by == "host")


def fingerprint(error: NodeError) -> str:
    """Return a text that is the same for the same error of another rollout.

    Numbers, hex digits and paths are left out.
    """
    message = _VARIABLE_PARTS.sub("#", error.message)
    return f"{error.boundary} {error.type}: {message[:_FINGERPRINT_CHARS]}"
