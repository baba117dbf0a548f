"""A production rollout as a row for a trainer, or as the beginning of a task."""

import shutil
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import UsageError, VerifyResult
from benchflow_engine.scaffold import write_task
from benchflow_export import steps_to_messages, trajectory_to_verifiers_record
from benchflow_traces import ObservedRollout

from .reader import MonitorReader
from .views import load_rollout

_NO_TESTS: Final = """\
#!/bin/sh
# Write the reward to /logs/verifier/reward.txt. Until then, no rollout of this task has a score.
echo "this task has no tests yet" >&2
exit 1
"""


def dataset_row(
    reader: MonitorReader, rollout_id: str, reward: str | None = None
) -> dict[str, Any]:
    """Return a row of the format `verifiers`: messages, metadata and metrics.

    `reward` names the source whose value is the reward of the row. Without it, the row has the
    value of the only source, or is unscored if there are several. All values are metrics.

    Raises:
        UsageError: The rollout is unknown, or its spans were deleted by age.
    """
    rollout = _loaded(reader, rollout_id)
    sql = "SELECT source, value FROM monitor_rewards WHERE rollout = ? AND step = ''"
    sql += " AND granularity = 'terminal' AND value IS NOT NULL ORDER BY source"
    values = {source: float(value) for source, value in reader.query(sql, (rollout_id,))}
    if reward is not None and reward not in values:
        raise UsageError(
            f"the rollout has no value of the reward {reward!r}",
            hint=f"its rewards are {', '.join(values) or 'none'}",
        )
    chosen = reward or (next(iter(values)) if len(values) == 1 else None)
    verdict = (
        VerifyResult(reward=values[chosen], items=values)
        if chosen is not None
        else VerifyResult(reward=None, items=values, error="no reward was chosen")
    )
    last = rollout.steps[-1] if rollout.steps else None
    return trajectory_to_verifiers_record(
        task_id=f"production/{rollout.service}",
        messages=steps_to_messages(rollout.steps),
        verify_result=verdict,
        model=rollout.models[0] if rollout.models else None,
        environment=rollout.environment or None,
        is_truncated=last is not None and last.stop_reason == "max_tokens",
        stop_condition=None if last is None else last.stop_reason,
        info={"rollout": rollout.id, "version": rollout.version, "source": "production"},
    )


def write_production_task(reader: MonitorReader, rollout_id: str, directory: Path) -> list[str]:
    """Write a new task whose instruction is what the user of a rollout wrote first.

    Its tests fail without a reward until somebody writes them: a production trace does not say
    what the right result is. Return the names of the files.

    Raises:
        UsageError: The rollout is unknown or has no prompt, or the directory exists.
    """
    rollout = _loaded(reader, rollout_id)
    prompt = next((step.prompt for step in rollout.steps if step.prompt), None)
    if prompt is None:
        raise UsageError(
            f"the rollout {rollout_id!r} has no prompt",
            hint="let the agent report content, or choose another rollout",
        )
    names = [name for name in write_task(directory) if not name.startswith("solution/")]
    shutil.rmtree(directory / "solution")
    (directory / "instruction.md").write_text(f"{prompt.strip()}\n")
    (directory / "tests" / "test.sh").write_text(_NO_TESTS)
    return names


def _loaded(reader: MonitorReader, rollout_id: str) -> ObservedRollout:
    rollout = load_rollout(reader, rollout_id)
    if rollout is None:
        raise UsageError(
            f"no production rollout has the id {rollout_id!r}, or its spans were deleted by age",
            hint="list the rollouts by `bench monitor show`",
        )
    return rollout
