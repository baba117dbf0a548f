"""Rewards whose verdicts the test sets."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from benchflow_contracts.reward import Evidence
from benchflow_contracts.task import Task
from benchflow_contracts.tree import RolloutNode
from benchflow_contracts.verdict import VerifyResult

from .faults import FakeFaults, Fault

Verdict = float | VerifyResult | None
Judge = Callable[[RolloutNode, Evidence], Verdict | Awaitable[Verdict]]
GroupVerdicts = Callable[[Sequence[RolloutNode]], Sequence[float | VerifyResult]]


class FakeReward:
    """Scores with a constant or a callable, and records the nodes that it scored.

    `None` is an unscored result. Faults are keyed by `score`.
    """

    def __init__(
        self,
        verdict: Verdict | Judge = 1.0,
        *,
        name: str = "reward",
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.nodes: list[RolloutNode] = []
        self._verdict = verdict
        self._name = name

    @property
    def name(self) -> str:
        """The key of its verdict."""
        return self._name

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Return the verdict."""
        self.nodes.append(node)
        await self.faults.raise_or_hang("score")
        verdict = self._verdict(node, evidence) if callable(self._verdict) else self._verdict
        if isinstance(verdict, Awaitable):
            verdict = await verdict
        if isinstance(verdict, VerifyResult):
            return verdict
        if verdict is None:
            return VerifyResult.unscored("the fake was made without a verdict")
        return VerifyResult(reward=verdict)


class FakeGroupReward:
    """Scores groups with a callable, and records each task with the leaves that it scored.

    By default a leaf gets the share of leaves that have at most its number of steps. Faults are
    keyed by `score_group`.
    """

    def __init__(
        self,
        verdicts: GroupVerdicts | None = None,
        *,
        name: str = "rank",
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.groups: list[tuple[Task, list[RolloutNode]]] = []
        self._verdicts = verdicts or _shares
        self._name = name

    @property
    def name(self) -> str:
        """The key of its verdicts."""
        return self._name

    async def score_group(
        self, task: Task, leaves: Sequence[RolloutNode]
    ) -> Sequence[VerifyResult]:
        """Return the verdicts."""
        self.groups.append((task, list(leaves)))
        await self.faults.raise_or_hang("score_group")
        given = self._verdicts(leaves)
        return [v if isinstance(v, VerifyResult) else VerifyResult(reward=v) for v in given]


def _shares(leaves: Sequence[RolloutNode]) -> Sequence[float]:
    lengths = [len(leaf.steps) for leaf in leaves]
    return [sum(other <= own for other in lengths) / len(lengths) for own in lengths]
