"""`bench rollout import`: trajectories that BenchFlow did not run."""

from pathlib import Path

from benchflow_engine.flags import RunFlags
from benchflow_engine.posthoc.imports import import_rollouts
from benchflow_engine.task_formats import runnable_task

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json, print_table, visible
from .rollout_flags import Run, configuration


async def import_rollout(
    file: Path,
    *,
    format: str,  # noqa: A002 - the flag's name
    task: str | None = None,
    flags: Run = RunFlags(),
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Import trajectories that BenchFlow did not run, as rollouts.

    They can be read, compared and exported like rollouts of BenchFlow. An export for a trainer
    refuses them without `--imported train`, because they are not on-policy data. Exit code 1: a
    rollout has no reward.

    Examples:
        bench rollout import traces.jsonl --format verifiers
        bench rollout import trajectory.json --format atif --task tasks/greet --model NAME
        bench rollout import production.jsonl --format traces --json

    Args:
        file: File of the trajectories.
        format: Format of the file: `verifiers` (episodes of verifiers 0.4), `inspect` (a log of
            Inspect), `atif` (a trajectory of Harbor), `traces` (OTLP, or records of
            `benchflow-monitor`), or a format of another installed package.
        task: Task whose rewards score the trajectories by their steps alone (default: the verdicts
            of the file). A reward that needs a sandbox is refused.
    """
    config = configuration(flags)
    loaded = None if task is None else runnable_task(task, config.adapter_options())
    written = await import_rollouts(file, format, jobs_dir, task=loaded, config=config)
    rows = [{**record.model_dump(mode="json"), "directory": str(path)} for path, record in written]
    if json:
        print_json(rows)
    else:
        table = [
            [visible(path.name), str(record.leaves), str(record.steps), fmt.reward(record.reward)]
            for path, record in written
        ]
        print_table(["rollout", "leaves", "steps", "reward"], table, empty="no rollouts")
        note(f"imported {len(written)} rollouts below {jobs_dir}")
    return int(any(record.reward is None for _, record in written))
