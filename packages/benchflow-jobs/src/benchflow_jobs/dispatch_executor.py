"""The executor of a worker on another host: it builds each rollout from its dispatch alone."""

import asyncio
import logging
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import (
    BenchFlowError,
    Completion,
    Dispatch,
    Event,
    EvidenceStore,
    SandboxProvider,
    UsageError,
)
from benchflow_contracts.scratch import scratch_directory
from benchflow_engine.config import RunConfig
from benchflow_engine.descriptors import check_descriptors
from benchflow_engine.leftovers import reap_leftovers
from benchflow_engine.planes import open_provider
from benchflow_store.database import ObjectEvidenceStore
from pydantic import ValidationError

from .attempt_evidence import store_directory
from .executor import EngineExecutor, RolloutInputs
from .rollout_payload import RolloutPayload, TaskCache
from .worker import failure_of

EXECUTOR: Final = f"{__name__}:open_executor"
"""The import path of the executor."""
MARK_FILE: Final = "workers.mark"
"""The file of a job's directory by which a worker knows that it sees this directory."""
_logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_executor(
    *,
    job: str,
    directory: str,
    mark: str = "",
    evidence: str | None = None,
    sandboxes: Sequence[Mapping[str, Any]] = (),
) -> "AsyncGenerator[DispatchExecutor]":
    """Yield an executor for the dispatches of one job.

    What dead workers of the job left on this host is removed first.

    Args:
        job: The name of the job.
        directory: The absolute path of the job's directory on the driver's host.
        mark: The content of `workers.mark` there.
        evidence: The URL of an evidence store, through which the files of rollouts go to the
            driver. Without it, this host has to see the directory.
        sandboxes: The tables `sandbox` of the job's variants. Their providers are opened at once.

    Raises:
        BenchFlowError: This host does not see the directory, or cannot create the sandboxes.
    """
    async with AsyncExitStack() as blocks:
        store: EvidenceStore | None = None
        place = Path(directory)
        if evidence is None:
            _check_shared(place, mark)
        else:
            store = ObjectEvidenceStore(evidence)
            place = blocks.enter_context(scratch_directory("job"))
        providers = _HostProviders(blocks, job, directory)
        for table in sandboxes:
            await providers.open(RunConfig.model_validate({"sandbox": table}))
        yield DispatchExecutor(providers.open, place, Path(directory), store)


class DispatchExecutor:
    """Runs dispatches whose payload is a `RolloutPayload`."""

    def __init__(
        self,
        open_provider: Callable[[RunConfig], Awaitable[SandboxProvider]],
        place: Path,
        job_dir: Path,
        evidence: EvidenceStore | None,
    ) -> None:
        self._open_provider = open_provider
        self._place = place
        self._job_dir = job_dir
        self._evidence = evidence
        self._tasks = TaskCache()

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        """Run the rollout; see `Executor`.

        With an evidence store, the completion names all files, and none of them is left here.
        """
        try:
            inputs = await self._inputs(dispatch)
        except BenchFlowError as error:
            return Completion.of(dispatch, "unscored", error=failure_of(error))
        engine = EngineExecutor(self._place, lambda _: inputs, job_dir=self._job_dir)
        if self._evidence is None:
            return await engine.run(dispatch, on_event)
        try:
            completion = await engine.run(dispatch, on_event)
            files = await store_directory(self._evidence, self._place / completion.rollout)
            return completion.model_copy(update={"files": tuple(files)})
        except BenchFlowError as error:
            # Without its files, a rollout does not count.
            return Completion.of(dispatch, "unscored", error=failure_of(error))
        finally:
            await asyncio.to_thread(shutil.rmtree, self._place / dispatch.rollout, True)

    async def _inputs(self, dispatch: Dispatch) -> RolloutInputs:
        try:
            payload = RolloutPayload.model_validate(dispatch.payload)
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(map(str, fault["loc"]))
            raise UsageError(
                f"the payload of slot {dispatch.slot!r} is malformed: {place}: {fault['msg']}",
                hint="install the same version of BenchFlow on every worker",
            ) from error
        config = payload.config()
        task = payload.changed(await self._tasks.load(payload))
        return RolloutInputs(await self._open_provider(config), task, config)


class _HostProviders:
    """The sandbox providers of this host, each opened once."""

    def __init__(self, blocks: AsyncExitStack, job: str, directory: str) -> None:
        self._blocks = blocks
        self._job = job
        self._directory = directory
        self._opened: dict[str, SandboxProvider] = {}
        self._lock = asyncio.Lock()

    async def open(self, run: RunConfig) -> SandboxProvider:
        """Return the provider of a configuration.

        Raises:
            BenchFlowError: The provider cannot create sandboxes here.
        """
        key = run.sandbox.model_dump_json()
        async with self._lock:
            if key not in self._opened:
                provider = await self._blocks.enter_async_context(open_provider(run))
                await provider.ready()
                check_descriptors(provider, 1)
                await self._clear_up(provider)
                self._opened[key] = provider
            return self._opened[key]

    async def _clear_up(self, provider: SandboxProvider) -> None:
        """Delete what dead workers of the job left here, also those of this run of the job."""
        report = await reap_leftovers(provider, self._job, "", job_dir=self._directory)
        if report.sandboxes or report.errors:
            _logger.warning("%s", report)


def _check_shared(directory: Path, mark: str) -> None:
    try:
        found = (directory / MARK_FILE).read_text(encoding="utf-8")
    except OSError as error:
        found = error.strerror or str(error)
    if found != mark:
        raise UsageError(
            f"this host does not see the job's directory {str(directory)!r}",
            hint="put the jobs on a file system that all workers share, or set evidence.url",
        )
