"""Flags become one configuration."""

from typing import Any

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import FLAGS, RunFlags, run_config, with_flags
from benchflow_kernel import GroupBranch, ValueBranch


def test_without_a_branch_nothing_is_forked() -> None:
    assert RunConfig().rollout_config().branch is None


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("ask-user", {}),
        ("group", {"n": 3, "at": 2}),
        ("value", {"n": 3, "every": 5}),
        ("best-of", {"n": 3, "at": 2}),
    ],
)
def test_every_kind_takes_its_flags_and_the_budget(kind: str, own: dict[str, int]) -> None:
    flags: dict[str, Any] = {f"branch_{name}": value for name, value in own.items()}
    shared = {"branch_require": "live", "branch_tokens": 1000, "keep": "forks"}
    config = run_config(branch=kind, **shared, **flags)
    policy = config.rollout_config().branch
    assert policy is not None
    assert (policy.kind, policy.require, policy.budget.tokens) == (kind, "live", 1000)
    assert {name: getattr(policy, name) for name in own} == own
    assert config.rollout_config().keep.which == "forks"


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("ask-user", "n"),
        ("ask-user", "at"),
        ("ask-user", "every"),
        ("group", "every"),
        ("value", "at"),
        ("best-of", "every"),
    ],
)
def test_a_flag_of_another_fork_policy_is_refused(kind: str, setting: str) -> None:
    flags: dict[str, Any] = {f"branch_{setting}": 2}
    with pytest.raises(UsageError, match=f"--branch-{setting} has no effect: '{kind}'") as caught:
        run_config(branch=kind, **flags)
    assert caught.value.hint is not None
    assert kind not in caught.value.hint
    with pytest.raises(UsageError, match=f"--branch-{setting} has no effect: '{kind}'"):
        run_config(run_config(branch=kind), **flags)


def test_a_flag_may_be_for_the_children_alone() -> None:
    policy = run_config(branch="ask-user", branch_then="group", branch_n=3).branch
    assert policy is not None
    assert isinstance(policy.then, GroupBranch)
    assert policy.then.n == 3


def test_children_fork_as_they_are_told() -> None:
    policy = run_config(branch="group", branch_then="ask-user").rollout_config().branch
    assert policy is not None
    assert policy.then is not None
    assert policy.then.kind == "ask-user"


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"branch_then": "value"}, "--branch-then needs --branch"),
        ({"branch_n": 3}, "--branch-n needs --branch"),
        ({"branch_require": "live"}, "--branch-require needs --branch"),
        ({"branch": "group", "branch_n": 9}, "--branch-children 8"),
        ({"branch": "group", "branch_n": 1}, "at least 2 children, not 1"),
        ({"branch": "best-of", "branch_n": 1}, "branch.n|best-of"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        run_config(**given)


def test_without_flags_everything_has_the_default_of_its_setting() -> None:
    assert with_flags({}, RunFlags()) == RunConfig()
    defaults = {name: getattr(RunFlags(), name) for name in FLAGS}
    of_value = ("branch_every", "branch_every_call", "branch_call_share", "branch_seed")
    for name in of_value:  # `group` does not have them.
        del defaults[name]
    assert run_config(**{**defaults, "branch": "group"}).branch == GroupBranch()


def test_another_fork_policy_leaves_out_the_settings_that_it_does_not_have() -> None:
    base = run_config(branch="group", branch_n=3, branch_depth=2, branch_at=1)
    policy = run_config(base, branch="value").branch
    assert isinstance(policy, ValueBranch)
    assert (policy.n, policy.budget.max_depth) == (3, 2)
    assert run_config(base, branch=None).branch is None


def test_an_unknown_option_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(UsageError, match="'agnt': unknown option; did you mean 'agent'"):
        run_config(agnt="nop")
