"""Inter-tree advantages: the leaves of all rollouts of one prompt, against each other."""

from collections.abc import Callable, Iterator
from typing import Any

from benchflow_contracts import Credit
from benchflow_kernel import advantages

Row = dict[str, Any]


def with_inter_advantage(read: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Yield the trainer rows of a job, each with its `info.advantage.inter`.

    The group of a row is every scored leaf of every rollout of its task, as in Tree-GRPO;
    for rollouts that were not forked it is GRPO's own. A task that was rolled out once keeps
    `None`. `read` is called twice, so that a job's conversations need not be held at once.
    """
    given = _by_leaf(read())
    for row in read():
        info = row["info"]
        inter = given.get(_leaf(row))
        if inter is not None:
            credit = Credit.model_validate(info.get("advantage") or {})
            info["advantage"] = credit.model_copy(update={"inter": inter}).model_dump()
        yield row


def _leaf(row: Row) -> tuple[str, str]:
    return row["info"]["rollout_id"], row["info"]["leaf"]


def _by_leaf(rows: Iterator[Row]) -> dict[tuple[str, str], float]:
    groups: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows:
        if row["reward"] is not None:
            groups.setdefault(row["info"]["task_id"], {})[_leaf(row)] = row["reward"]
    given: dict[tuple[str, str], float] = {}
    for returns in groups.values():
        trees = {rollout for rollout, _ in returns}
        found = advantages(list(returns.values())) if len(trees) > 1 else None
        given.update(zip(returns, found or (), strict=False))
    return given
