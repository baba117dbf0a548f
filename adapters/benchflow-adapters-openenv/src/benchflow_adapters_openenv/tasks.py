"""Episodes of an OpenEnv server as tasks: `openenv://127.0.0.1:8000?split=seeds&index=3`."""

import hashlib

from benchflow_contracts import DataTask
from benchflow_env_outside import SeededTasks, seeded_task


def openenv_tasks() -> SeededTasks:
    """Return the source of tasks. Its address is the host and the port of a server."""
    return SeededTasks(lambda address, seed: episode_task(f"http://{address}", seed))


def episode_task(url: str, seed: int, **reset: object) -> DataTask:
    """Return the task of one episode. `reset` are further arguments of the reset."""
    return seeded_task(
        "openenv",
        url.partition("://")[2],
        seed,
        options={"url": url},
        instruction=f"Act in the environment of the OpenEnv server {url} by its tools.",
        data=reset,
        suffix=_suffix(reset),
    )


def _suffix(reset: dict[str, object]) -> str:
    """Return a short name for the arguments, so that equal seeds with others are other tasks."""
    if not reset:
        return ""
    return "-" + hashlib.sha256(repr(sorted(reset.items())).encode()).hexdigest()[:8]
