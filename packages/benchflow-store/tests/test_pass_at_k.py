"""pass@k of the attempts at one task, and the ids of attempts."""

from itertools import combinations

import pytest
from benchflow_store import new_rollout_id, pass_at_k


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_pass(attempts: int) -> None:
    for passes in range(attempts + 1):
        results = [True] * passes + [False] * (attempts - passes)
        for k in range(1, attempts + 1):
            choices = list(combinations(results, k))
            share = sum(any(choice) for choice in choices) / len(choices)
            assert pass_at_k(attempts, passes, k) == pytest.approx(share)


@pytest.mark.parametrize("task", ["n" * 300, "bench/" + "n" * 300, "日" * 200])
def test_the_id_of_a_rollout_of_a_task_with_a_long_name_is_a_file_name(task: str) -> None:
    name = new_rollout_id(task)
    assert len(name.encode()) <= 255
    assert name.startswith(task.rsplit("/", 1)[-1][:60])
