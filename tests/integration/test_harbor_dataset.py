"""A job of Harbor tasks: planned from a directory, with other images and time limits."""

from pathlib import Path

from benchflow_engine.task_formats import runnable_task
from benchflow_jobs.planning import plan_job, read_job

TASK = """\
version = "1.0"
[agent]
timeout_sec = 40.0
[verifier]
timeout_sec = 30.0
[environment]
memory_mb = 512
"""
JOB = """\
[dataset]
paths = ["{folder}"]

[[variants]]
id = "own"

[[variants]]
id = "other"
image = "debian:13"

[tasks.hello]
agent_timeout_sec = 5
"""


def write_harbor_task(folder: Path) -> None:
    files = {
        "task.toml": TASK,
        "instruction.md": "Say hello.\n",
        "environment/Dockerfile": "FROM debian:12\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_harbor_tasks_are_planned_and_get_the_image_of_the_variant(tmp_path: Path) -> None:
    write_harbor_task(tmp_path / "tasks" / "hello")
    (tmp_path / "job.toml").write_text(JOB.format(folder=tmp_path / "tasks"))
    plan = plan_job(read_job(tmp_path / "job.toml"))
    (planned,) = plan.tasks
    assert (planned.id, planned.format, planned.memory_mb) == ("hello", "harbor", 512)
    assert planned.path is not None
    task = runnable_task(planned.path)
    assert task.digest == planned.digest
    own, other = (plan.effective_task(index, task) for index in range(2))
    assert own.parts.recipe is not None
    assert (other.parts.recipe, other.config.environment.image) == (None, "debian:13")
    assert own.config.agent.timeout_sec == other.config.agent.timeout_sec == 5
    assert own.config.verifier.timeout_sec == 30
