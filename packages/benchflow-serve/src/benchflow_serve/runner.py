"""Runs one rollout of the service by the engine."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import BenchFlowError, Event, RolloutIdentity, SandboxProvider, Task
from benchflow_contracts.pausing import PauseSwitch, pausable_by
from benchflow_engine.config import RunConfig
from benchflow_engine.leftovers import reap_leftovers
from benchflow_engine.planes import open_provider
from benchflow_engine.resume import resume_rollout
from benchflow_engine.rollout import RunResult, run_in

from .model_source import ModelUse

SCOPE = "bench-serve"
"""The scope of the sandboxes of every service; the directory tells services apart."""


class DeadlineError(BenchFlowError):
    """The rollout ran for longer than its request allows."""

    boundary = "usage"
    default_culprit = "operator"
    default_hint = "give a longer deadline_sec"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a rollout."""

    rollout: str
    """The id of the rollout in the service."""
    number: int
    """From 1."""
    directory: str
    """The name of the directory of its files."""
    task: Task
    config: RunConfig
    model: ModelUse
    switch: PauseSwitch
    deadline_sec: float | None = None
    resumes: str | None = None
    """The directory of an earlier attempt, whose rest is run."""


class RolloutRunner:
    """Runs attempts on one sandbox provider, in the event loop that opened it."""

    def __init__(self, provider: SandboxProvider, home: Path, place: Path, epoch: int) -> None:
        """Prepare the runner.

        Args:
            provider: The open provider of all rollouts.
            home: The directory of the attempts.
            place: The directory of the service, as the sandboxes are labelled.
            epoch: The number of this process in the service.
        """
        self._provider = provider
        self._home = home
        self._place = str(place.resolve())
        self._epoch = str(epoch)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: RunConfig, home: Path, place: Path, epoch: int
    ) -> AsyncGenerator["RolloutRunner"]:
        """Yield a runner with a provider of its own. What a killed server left is deleted first."""
        async with open_provider(config) as provider:
            runner = cls(provider, home, place, epoch)
            await reap_leftovers(provider, SCOPE, runner._epoch, job_dir=runner._place)
            yield runner

    async def run(self, attempt: Attempt, on_event: Callable[[Event], None]) -> RunResult:
        """Run an attempt to its end. Its record is on disk on return.

        Raises:
            DeadlineError: The rollout ran for too long.
            BenchFlowError: The rollout could not start.
            asyncio.CancelledError: The rollout was cancelled, and is torn down.
        """
        limit = asyncio.timeout(attempt.deadline_sec)
        try:
            async with limit:
                with pausable_by(attempt.switch):
                    return await self._run(attempt, on_event)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineError(
                f"the rollout ran for more than {attempt.deadline_sec:g} s"
            ) from error

    async def _run(self, attempt: Attempt, on_event: Callable[[Event], None]) -> RunResult:
        identity = RolloutIdentity(
            scope=SCOPE,
            job_dir=self._place,
            slot=attempt.rollout,
            attempt=attempt.number,
            epoch=self._epoch,
        )
        out = self._home / attempt.directory
        if attempt.resumes is not None:
            return await resume_rollout(
                self._home / attempt.resumes,
                out=out,
                provider=self._provider,
                config=attempt.config,
                identity=identity,
                subscribers=(on_event,),
                prepare=attempt.model.prepare,
            )
        return await run_in(
            self._provider,
            attempt.task,
            attempt.config,
            directory=out,
            subscribers=(on_event,),
            identity=identity,
            prepare=attempt.model.prepare,
        )

    async def count_sandboxes(self) -> int:
        """Return the number of open sandboxes of this service."""
        records = self._provider.sandboxes(scope=SCOPE)
        return len([r async for r in records if r.identity.job_dir in {None, self._place}])
