"""A reward that says what it was told."""

from collections.abc import Awaitable, Callable, Mapping

from benchflow_contracts.reward import VerifyResult
from benchflow_contracts.tree import RolloutNode

from .faults import FakeFaults, Fault

Verdict = float | VerifyResult | None


class FakeReward:
    """Scores with a constant or a callable, and records the nodes it was shown.

    `None` is an unscored result. Faults are keyed by `score`.
    """

    def __init__(
        self,
        verdict: Verdict | Callable[[RolloutNode], Verdict | Awaitable[Verdict]] = 1.0,
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

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the verdict."""
        self.nodes.append(node)
        await self.faults.strike("score")
        verdict = self._verdict(node) if callable(self._verdict) else self._verdict
        if isinstance(verdict, Awaitable):
            verdict = await verdict
        if isinstance(verdict, VerifyResult):
            return verdict
        if verdict is None:
            return VerifyResult.unscored("the fake was told to give no score")
        return VerifyResult(reward=verdict)
