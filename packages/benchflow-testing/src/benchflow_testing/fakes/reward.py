"""A reward whose verdict the test sets."""

from collections.abc import Awaitable, Callable, Mapping

from benchflow_contracts.reward import Evidence
from benchflow_contracts.tree import RolloutNode
from benchflow_contracts.verdict import VerifyResult

from .faults import FakeFaults, Fault

Verdict = float | VerifyResult | None
Judge = Callable[[RolloutNode, Evidence], Verdict | Awaitable[Verdict]]


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
