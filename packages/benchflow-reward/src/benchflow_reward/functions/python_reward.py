"""PythonReward: a Python function that the operator names."""

import importlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from benchflow_contracts import (
    BenchFlowError,
    Evidence,
    RewardError,
    RolloutNode,
    UsageError,
    VerifyResult,
)
from benchflow_contracts.verdict import MAX_REWARD

Verdict = float | VerifyResult
ScoreFunction = Callable[[RolloutNode, Evidence], Verdict | Awaitable[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonReward:
    """The result of `function(node, evidence)`: a number in `reward_range`, or a VerifyResult.

    The function runs in this process with the operator's rights, so it only ever
    comes from the operator: no task file can name one.
    """

    function: ScoreFunction
    name: str = "python"
    reward_range: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def load(cls, path: str, *, name: str = "python") -> "PythonReward":
        """Import `module:attr`, given on the operator's own command line or in code.

        Raises:
            UsageError: There is no such callable.
        """
        module_name, _, attribute = path.partition(":")
        try:
            function: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                function = getattr(function, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(
                f"cannot import {path!r}: {error}", hint="write it as module:attr"
            ) from error
        if not callable(function):
            raise UsageError(f"{path!r} is not callable")
        return cls(function=cast("ScoreFunction", function), name=name)

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Call the function. Any error in the function becomes a `RewardError`."""
        try:
            verdict = self.function(node, evidence)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except BenchFlowError:
            raise
        except Exception as error:
            raise RewardError(
                f"{self.name!r} failed: {type(error).__name__}: {error}",
                hint="fix the reward function",
            ) from error
        if isinstance(verdict, VerifyResult):
            if verdict.reward is not None:
                self._check(verdict.reward)
            return verdict
        return VerifyResult(reward=self._check(verdict))

    def _check(self, value: object) -> float:
        low, high = self.reward_range
        # A comparison with NaN is false, and an int may be too large for a float.
        if not isinstance(value, int | float) or not -MAX_REWARD <= value <= MAX_REWARD:
            raise RewardError(
                f"{self.name!r} returned {value!r}, which is not a number up to {MAX_REWARD:g}"
            )
        if not low <= value <= high:
            raise RewardError(f"{self.name!r} returned {value!r}, outside of [{low}, {high}]")
        return float(value)
