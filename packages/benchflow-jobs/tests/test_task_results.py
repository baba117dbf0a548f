"""Mean reward and pass@k by task."""

from pathlib import Path

from benchflow_contracts import RolloutRecord
from benchflow_jobs import summarise
from benchflow_jobs.task_results import TaskResult, mean_pass_at_k


def test_an_attempt_without_a_score_is_in_no_mean() -> None:
    result = TaskResult.of("t", [1.0, None, 0.5], 1.0)
    assert (result.attempts, result.scored, result.unscored, result.passes) == (3, 2, 1, 1)
    assert result.mean_reward == 0.75
    assert result.pass_at_k == {1: 0.5, 2: 1.0}


def test_the_reward_that_passes_can_be_chosen() -> None:
    assert TaskResult.of("t", [0.5, 0.4], 0.5).passes == 1


def test_a_job_has_the_mean_over_tasks_with_enough_attempts() -> None:
    often = TaskResult.of("often", [1.0, 0.0], 1.0)
    once = TaskResult.of("once", [1.0], 1.0)
    never = TaskResult.of("never", [None], 1.0)
    first, second = mean_pass_at_k([often, once, never])
    assert (first.k, first.value, first.tasks) == (1, 0.75, 2)
    assert (second.k, second.value, second.tasks) == (2, 1.0, 1)


def record(task: str, reward: float | None, tampered: int = 0) -> RolloutRecord:
    return RolloutRecord(
        rollout_id=f"{task}__1",
        task_id=task,
        task_digest="sha256:0",
        agent="oracle",
        model=None,
        sandbox="local",
        status="completed",
        reward=reward,
        tampered=tampered,
        claimed=1.0 if tampered else None,
        finished_at=1.0,
    )


def test_a_report_counts_by_task_and_a_tampered_attempt_as_0() -> None:
    records = [record("a", 1.0), record("b", None, tampered=1), record("b", None)]
    report = summarise(Path("job"), records, planned=4)
    by_task = {task.task_id: task for task in report.tasks}
    assert (by_task["b"].mean_reward, by_task["b"].unscored) == (0.0, 1)
    assert report.unscored == 2
    assert report.pass_at_k[0].value == 0.5
    counted = summarise(Path("job"), records, planned=4, count_tampered=True)
    assert counted.pass_at_k[0].value == 1.0
