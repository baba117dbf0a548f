"""pass@k of the attempts at one task."""

from itertools import combinations

import pytest
from benchflow_store import pass_at_k


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_pass(attempts: int) -> None:
    for passes in range(attempts + 1):
        results = [True] * passes + [False] * (attempts - passes)
        for k in range(1, attempts + 1):
            choices = list(combinations(results, k))
            share = sum(any(choice) for choice in choices) / len(choices)
            assert pass_at_k(attempts, passes, k) == pytest.approx(share)
