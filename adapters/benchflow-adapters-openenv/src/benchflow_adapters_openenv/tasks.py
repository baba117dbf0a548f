"""Episodes of an OpenEnv server as tasks: `openenv://127.0.0.1:8000?split=seeds&index=3`."""

import hashlib
import re
from collections.abc import Sequence

from benchflow_contracts import DataTask, TaskConfig, TaskSplit

_UNSAFE = re.compile(r"[^a-z0-9._-]+")
_LARGEST_RETURN = 1e12


class OpenEnvTasks:
    """One split without end: a task for each seed, from 0."""

    def splits(self, address: str) -> Sequence[TaskSplit]:
        """Return the split `seeds`."""
        del address
        return [TaskSplit(name="seeds")]

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        """Return the tasks of the seeds from `start`. `address` is the server's host and port."""
        del split
        url = f"http://{address}"
        return [episode_task(url, seed) for seed in range(start, start + limit)]


def episode_task(url: str, seed: int, **reset: object) -> DataTask:
    """Return the task of one episode. `reset` are further arguments of the reset.

    The return is the sum of the rewards.
    """
    name = _UNSAFE.sub("-", url.partition("://")[2].lower()).strip("-._") or "server"
    config = {
        "name": f"openenv/{name}-{seed}" + _suffix(reset),
        "environment": {"provider": "openenv", "options": {"url": url}},
        "verifier": {
            "type": "environment",
            "options": {"rule": "sum"},
            "reward_range": [-_LARGEST_RETURN, _LARGEST_RETURN],
        },
    }
    return DataTask(
        config=TaskConfig.model_validate(config),
        instruction=f"Act in the environment of the OpenEnv server {url} by its tools.",
        data=reset,
        seed=seed,
    )


def _suffix(reset: dict[str, object]) -> str:
    """Return a short name for the arguments, so that equal seeds with others are other tasks."""
    if not reset:
        return ""
    return "-" + hashlib.sha256(repr(sorted(reset.items())).encode()).hexdigest()[:8]
