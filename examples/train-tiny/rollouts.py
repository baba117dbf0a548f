"""Rollouts of the lock, as groups of samples: the trainer's side of BenchFlow."""

import asyncio
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchflow import RunConfig
from benchflow_contracts import SandboxProvider
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_export import RolloutGroup, TrainerOptions, group_rollouts
from benchflow_store import StoredRollout, new_rollout_id

TASK = Path(__file__).parent / "tasks" / "lock"
# The limit of calls is part of the game, so a rollout that reaches it is trained on.
OPTIONS = TrainerOptions(truncated="train", require_tokens=True)


class LockRollouts:
    """Runs the lock, one sandbox provider for all rollouts."""

    def __init__(self, base_url: str, directory: Path, concurrency: int = 2) -> None:
        self._tables = {
            "agent": {
                "name": "policy",
                "model": "tiny",
                "env": {"BENCHFLOW_POLICY_MAX_CALLS": "5"},
            },
            "model": {"base_url": base_url, "upstream": "vllm"},
        }
        self._directory = directory
        self._free = asyncio.Semaphore(concurrency)
        self._task = runnable_task(TASK, RunConfig().adapter_options())
        self._stack = AsyncExitStack()
        self._provider: SandboxProvider | None = None

    async def __aenter__(self) -> "LockRollouts":
        config = RunConfig.model_validate(self._tables)
        self._provider = await self._stack.enter_async_context(open_provider(config))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def group(self, trees: int, branch: Mapping[str, Any] | None = None) -> RolloutGroup:
        """Run `trees` rollouts of the task, which `branch` forks, and return their samples."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run(branch)) for _ in range(trees)]
        directories = [task.result() for task in tasks]
        finished = [StoredRollout(each).read_finished() for each in directories]
        made = group_rollouts("lock", finished, OPTIONS)
        for each in directories:
            shutil.rmtree(each)
        return made

    async def _run(self, branch: Mapping[str, Any] | None) -> Path:
        assert self._provider is not None, "enter the block first"
        config = RunConfig.model_validate({**self._tables, "branch": branch})
        directory = self._directory / new_rollout_id("lock")
        async with self._free:
            await run_in(self._provider, self._task, config, directory=directory)
        return directory
