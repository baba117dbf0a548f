"""The error tree."""

import pytest

from benchflow_contracts import (
    AgentTimeoutError,
    BenchFlowError,
    HostError,
    ReadinessError,
    RewardError,
    SandboxError,
    SandboxTimeoutError,
    SnapshotError,
    TransferError,
    UsageError,
    errors,
)

EVERY = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BenchFlowError)
]


def test_the_list_is_not_empty():
    assert len(EVERY) >= 20


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_has_a_remedy_of_one_line(kind: type[BenchFlowError]):
    error = kind("what happened")
    assert error.hint
    assert "\n" not in error.hint
    assert str(error) == "what happened"
    assert error.retryable is issubclass(kind, HostError)


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (UsageError, "usage"),
        (SandboxTimeoutError, "sandbox"),
        (TransferError, "sandbox"),
        (AgentTimeoutError, "agent"),
        (ReadinessError, "environment"),
        (RewardError, "reward"),
        (SnapshotError, "snapshot"),
        (BenchFlowError, "internal"),
    ],
)
def test_a_leaf_of_the_tree_belongs_to_the_boundary_of_its_branch(kind, boundary):
    assert kind("x").boundary == boundary


def test_every_branch_of_the_tree_has_a_boundary_of_its_own():
    # Other packages have branches of their own.
    known = BenchFlowError.__subclasses__()
    branches = [branch for branch in known if branch.__module__.startswith("benchflow_contracts.")]
    boundaries = [branch.boundary for branch in branches]
    assert len(set(boundaries)) == len(boundaries)
    assert "internal" not in boundaries


def test_the_place_of_the_fault_comes_first_and_a_given_hint_wins():
    error = SandboxError("bad key 'x'", where="task.toml:3", hint="remove it", retryable=True)
    assert str(error) == "task.toml:3: bad key 'x'"
    assert (error.hint, error.retryable) == ("remove it", True)
