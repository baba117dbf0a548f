"""Flags become one branch policy."""

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.options import RunOptions


def test_without_a_branch_nothing_is_forked() -> None:
    assert RunOptions().rollout_config().branch is None


@pytest.mark.parametrize("kind", ["ask-user", "group", "value", "best-of"])
def test_every_kind_takes_its_flags_and_the_budget(kind: str) -> None:
    options = RunOptions.model_validate(
        {
            "branch": kind,
            "branch_n": 3,
            "branch_at": 2,
            "branch_every": 5,
            "branch_require": "live",
            "branch_tokens": 1000,
            "keep": "forks",
        }
    )
    config = options.rollout_config()
    policy = config.branch
    assert policy is not None
    assert (policy.kind, policy.require, policy.budget.tokens) == (kind, "live", 1000)
    assert getattr(policy, "n", 3) == 3
    assert getattr(policy, "at", 2) == 2
    assert getattr(policy, "every", 5) == 5
    assert config.keep.which == "forks"


def test_children_fork_as_they_are_told() -> None:
    policy = RunOptions(branch="group", branch_then="ask-user").rollout_config().branch
    assert policy is not None
    assert policy.then is not None
    assert policy.then.kind == "ask-user"


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        (RunOptions(branch_then="value"), "--branch-then"),
        (RunOptions(branch_n=3), "--branch-n"),
        (RunOptions(branch_require="live"), "--branch-require"),
        (RunOptions(branch="group", branch_n=9), "--branch-children 8"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(given: RunOptions, flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        given.rollout_config()
