"""Episodes of Gymnasium environments as tasks: `gymnasium://CartPole-v1?split=seeds&index=3`."""

from benchflow_contracts import DataTask
from benchflow_env_outside import SeededTasks, seeded_task


def gymnasium_tasks() -> SeededTasks:
    """Return the source of tasks. Its address is the id of an environment."""
    return SeededTasks(episode_task)


def episode_task(environment_id: str, seed: int, **options: object) -> DataTask:
    """Return the task of one episode. `options` are further `[environment.options]`."""
    return seeded_task(
        "gymnasium",
        environment_id,
        seed,
        options={"id": environment_id, **options},
        instruction=f"Act in the Gymnasium environment {environment_id} by the tool `step`.",
        data={"seed": seed},
    )
