"""Rollouts of the lock, as groups of samples: the trainer's side of BenchFlow."""

import asyncio
import shutil
from collections.abc import Mapping
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
    """Runs the lock against a model endpoint. It is a `GroupServer` of benchflow-export."""

    def __init__(self, base_url: str, directory: Path, concurrency: int = 3) -> None:
        self._tables = {
            "agent": {
                "name": "policy",
                "model": "tiny",
                "env": {"BENCHFLOW_POLICY_MAX_CALLS": "4"},
            },
            "model": {"base_url": base_url, "upstream": "vllm"},
        }
        self._directory = directory
        self._concurrency = concurrency
        self._task = runnable_task(TASK, RunConfig().adapter_options())

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        """Return a group of `size` independent rollouts."""
        del task_id
        return await self.group(size)

    def set_policy_version(self, version: int) -> None:
        """Do nothing: each answer of the endpoint names its weights."""

    async def group(self, trees: int, branch: Mapping[str, Any] | None = None) -> RolloutGroup:
        """Run `trees` rollouts of the task, which `branch` forks, and return their samples."""
        config = RunConfig.model_validate({**self._tables, "branch": branch})
        free = asyncio.Semaphore(self._concurrency)
        async with open_provider(config) as provider, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run(provider, config, free)) for _ in range(trees)]
        directories = [task.result() for task in tasks]
        finished = [StoredRollout(each).read_finished() for each in directories]
        made = group_rollouts("lock", finished, OPTIONS)
        for each in directories:
            shutil.rmtree(each)
        return made

    async def _run(
        self, provider: SandboxProvider, config: RunConfig, free: asyncio.Semaphore
    ) -> Path:
        directory = self._directory / new_rollout_id("lock")
        async with free:
            await run_in(provider, self._task, config, directory=directory)
        return directory
