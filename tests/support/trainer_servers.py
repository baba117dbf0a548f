"""Servers of rollout groups that a trainer makes by their import path."""

from dataclasses import replace

from benchflow_contracts import FinishedRollout, VerifyResult
from benchflow_export import StoredGroups
from forked_calls import call, forked, recorded, routed


def scored_rollout(
    name: str,
    left: float | None,
    right: float | None,
    *,
    broken: bool = False,
    versions: tuple[str | None, ...] = ("v3", "v4", "v3"),
    experts: bool = False,
) -> FinishedRollout:
    """Return the rollout of `forked_calls` with these returns; the first leaf may have a break."""
    calls = recorded()
    if broken:
        calls[1] = call("c2", calls[1].request["messages"], "left", [1, 99, 3, 4, 5, 6], [7])
    calls = [
        each.model_copy(update={"policy_version": version})
        for each, version in zip(calls, versions, strict=True)
    ]
    rollout = forked(routed(calls) if experts else calls, rollout_id=name)
    for leaf, reward in zip(rollout.tree.leaves, (left, right, None), strict=True):
        leaf.results["reward"] = (
            VerifyResult.unscored("lost") if reward is None else VerifyResult(reward=reward)
        )
    return rollout


def one_by_one(*returns: float | None, broken: bool = False, experts: bool = False) -> StoredGroups:
    """Return a server that answers each request with one rollout of one scored leaf."""
    # Stored rollouts of one prompt are one group: by its job, each is a group of its own.
    rollouts = [
        replace(scored_rollout(f"r{n}", each, None, broken=broken, experts=experts), job=f"j{n}")
        for n, each in enumerate(returns)
    ]
    return StoredGroups(lambda: rollouts)


SERVER: list[StoredGroups] = []
"""The last one is that of `make_server`."""


def make_server() -> StoredGroups:
    """Return the last of `SERVER`, for a configuration file."""
    return SERVER[-1]
